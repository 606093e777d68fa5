"""Plots of transforms."""

from __future__ import annotations

import io
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from knotflow.extras import optional
from knotflow.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
DPI = 150


@dataclass(frozen=True)
class MapPanel:
    """A bundle of maps of one domain, drawn above their slopes."""

    title: str
    x: NDArray[np.float64]
    """Points, shape (points,)."""
    y: NDArray[np.float64]
    """Images, shape (maps, points)."""
    slopes: NDArray[np.float64]
    """Slopes, shape (maps, points)."""
    marks: Sequence[float] = ()
    """Where vertical lines go: ends, seams or joins."""

    def __post_init__(self) -> None:
        shapes = np.shape(self.x), np.shape(self.y), np.shape(self.slopes)
        if len(shapes[0]) != 1 or len(shapes[1]) != 2 or shapes[1][1:] != shapes[0] or shapes[2] != shapes[1]:
            raise ValueError(
                f"panel {self.title!r} needs x of shape (points,), y and slopes of shape (maps, points), got "
                f"{shapes[0]}, {shapes[1]} and {shapes[2]}; give one row for each map."
            )


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, measured in inches.

    Raises:
        ModuleNotFoundError: if matplotlib, which is optional, is not installed.
    """
    with optional("pictures", "matplotlib", "plot"):
        from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=DPI)


def check_some(what: str, items: Sized) -> None:
    """Refuse to draw nothing.

    Raises:
        ValueError: if there are no items.
    """
    if not len(items):
        raise ValueError(f"a figure needs at least one {what}, got none; check what was selected for it.")


def draw_maps(
    panels: Sequence[MapPanel], *, line_width: float = 1.1, alpha: float = 1.0, color: str | None = None
) -> Figure:
    """Draw maps (above) and their slopes on a logarithmic axis (below), a column for each panel.

    An image of a circle may pass the seam, from its end to its start; its line is broken there.

    Args:
        panels: What to draw.
        line_width: Width of the lines in points.
        alpha: Their opacity, from 0 to 1.
        color: Their colour, a different one for each map if missing.

    Raises:
        ValueError: if there is no panel.
        ModuleNotFoundError: if matplotlib, which is optional, is not installed.
    """
    check_some("panel", panels)
    figure = new_figure(3.6 * len(panels), 5.2)
    axes = figure.subplots(2, len(panels), sharex="col", squeeze=False)
    for column, panel in enumerate(panels):
        above, below = axes[0, column], axes[1, column]
        above.plot(panel.x, _broken_at_seam(panel).T, linewidth=line_width, alpha=alpha, color=color)
        above.plot(panel.x, panel.x, color="black", linewidth=0.6, linestyle=":")
        above.set_title(panel.title, fontsize=10)
        below.plot(panel.x, panel.slopes.T, linewidth=line_width, alpha=alpha, color=color)
        below.set_yscale("log")
        below.set_xlabel("x")
        for axis in (above, below):
            for mark in panel.marks:
                axis.axvline(mark, color="0.6", linewidth=0.8, linestyle="--")
            axis.margins(x=0)
            axis.grid(visible=True, color="0.92")
    axes[0, 0].set_ylabel("f(x)")
    axes[1, 0].set_ylabel("slope f'(x)")
    return figure


def _broken_at_seam(panel: MapPanel) -> NDArray[np.float64]:
    """Images with a NaN before each fall by half of the domain, which a monotone map has at the seam only."""
    falls = np.diff(panel.y, axis=-1, append=panel.y[:, -1:]) < -0.5 * np.ptp(panel.x)
    return np.where(falls, np.nan, panel.y)


def save(figure: Figure, path: Path) -> None:
    """Write a figure; an older file of that name stays until the new one is complete.

    Raises:
        ValueError: if the name does not end in one of `FORMATS`.
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"expected a picture name ending in {', '.join(FORMATS)}, got {path.name!r}.")
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:].lower())
    write_atomically(path, content.getvalue())
