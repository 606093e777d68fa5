"""The registry of transform families that flows, presets and the command line offer by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple


class Family(NamedTuple):
    """Where to find a family, and its usual size. Its module is imported on first use."""

    module: str
    """Module in this package."""
    title: str
    """Name of the class."""
    size: str | None = None
    """Field that holds the number of bins or components of a map; None if there is none."""
    usual: int = 0
    """Value of that field in presets."""

    @property
    def kind(self) -> Any:
        """The class, a `Transform` and frozen dataclass."""
        return getattr(import_module(f"knotflow.transforms.{self.module}"), self.title)


FAMILIES: Final = {
    "bspline": Family("bspline", "BSpline", "bins", 32),
    "rq": Family("rational_quadratic", "RationalQuadratic", "bins", 16),
    "bump": Family("bump", "Bump", "components", 8),
}
RENAMED: Final = {"smooth": "bump"}
"""Current names of families that files of earlier versions name differently."""
