"""What is said when optional packages are missing."""

import re
import sys
from importlib.metadata import requires

import pytest

from knotflow.extras import MODULES, need, optional


@pytest.mark.parametrize("extra", MODULES)
def test_packages_are_those_of_the_project(extra: str) -> None:
    named = [line for line in requires("knotflow") or [] if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    assert {re.split(r"[<>=; ]", line)[0].lower() for line in named} == {n.lower() for n in MODULES[extra]}


def test_nothing_is_said_of_what_is_there() -> None:
    need("tests", *MODULES)


def test_all_that_is_missing_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ot", "pymbar", "lightning"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError) as error:
        need("the quickstart", *MODULES)
    assert str(error.value) == (
        "POT, pymbar, lightning missing for the quickstart; run: pip install 'knotflow[analysis,train]'"
    )


def test_an_import_that_fails_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    sentence = r"distances need POT, not installed here; run: pip install 'knotflow\[analysis\]'"
    with pytest.raises(ModuleNotFoundError, match=sentence), optional("distances"):
        import ot  # noqa: F401


def test_an_import_that_no_extra_mends_fails_as_usual() -> None:
    sentence = r"^No module named 'knotflow\.nothing'$"
    with pytest.raises(ModuleNotFoundError, match=sentence), optional("molecules"):
        import knotflow.nothing  # noqa: F401
