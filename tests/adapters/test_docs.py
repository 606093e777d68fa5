"""Every code block of docs/adapters.md runs as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_runs(block: str) -> None:
    if "import zuko\n" in block:
        pytest.importorskip("zuko")
    if "import pyro\n" in block:
        pytest.importorskip("pyro").clear_param_store()
    exec(compile(block, str(PAGE), "exec"), {"__name__": "docs"})


def test_finds_the_code() -> None:
    assert BLOCKS
