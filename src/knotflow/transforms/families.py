"""The registry: families that flows, presets and the command line offer by name, one line each."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple


class Family(NamedTuple):
    """Where a family is, and how large it is unless a user says so. Its file is imported when it is used."""

    module: str
    """Of this package."""
    title: str
    """Name of the class."""
    size: str | None = None
    """The field that says of how many parts a map consists; None: there is none."""
    usual: int = 0
    """Its value in presets."""

    @property
    def kind(self) -> Any:
        """The class: a `Transform` that is a frozen dataclass."""
        return getattr(import_module(f"knotflow.transforms.{self.module}"), self.title)


FAMILIES: Final = {
    "bspline": Family("bspline", "BSpline", "bins", 32),
    "rq": Family("rational_quadratic", "RationalQuadratic", "bins", 16),
    "bump": Family("bump", "Bump", "components", 8),
}
RENAMED: Final = {"smooth": "bump"}
"""Names that files of earlier versions have."""
