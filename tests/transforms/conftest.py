"""Every law and oracle holds for the kernels and for the definition in torch."""

import contextlib
from collections.abc import Iterator

import pytest

from knotflow.kernels import ops
from tests.transforms.registry import REGISTRY, parts


@pytest.fixture(autouse=True, params=["kernels", "torch"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which one computes B-splines."""
    with ops.disabled() if request.param == "torch" else contextlib.nullcontext():
        yield request.param


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A family without a kernel is the same on both engines: it is tested once."""
    items[:] = [item for item in items if not _is_repetition(item)]


def _is_repetition(item: pytest.Item) -> bool:
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    family = REGISTRY.get(str(given.get("name")))
    if given.get("engine") != "torch" or family is None:
        return False
    return all(part.kernel is None for part in parts(family))
