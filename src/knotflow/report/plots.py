"""Plots of transforms."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")


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
    marks: Sequence[float]
    """Where vertical lines go: ends, seams or joins."""


def draw_maps(panels: Sequence[MapPanel]) -> Figure:
    """Draw maps (above) and their slopes on a logarithmic axis (below), a column for each panel.

    Raises:
        ModuleNotFoundError: if matplotlib, which is optional, is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "pictures need matplotlib, which is not installed; run: pip install 'knotflow[plot]'"
        ) from None

    figure = Figure(figsize=(3.6 * len(panels), 5.2), layout="constrained", dpi=150)
    axes = figure.subplots(2, len(panels), sharex="col", squeeze=False)
    for column, panel in enumerate(panels):
        above, below = axes[0, column], axes[1, column]
        above.plot(panel.x, panel.y.T, linewidth=1.1)
        above.plot(panel.x, panel.x, color="black", linewidth=0.6, linestyle=":")
        above.set_title(panel.title, fontsize=10)
        below.plot(panel.x, panel.slopes.T, linewidth=1.1)
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


def save(figure: Figure, path: Path) -> None:
    """Write a figure; an older file of that name stays until the new one is complete.

    Raises:
        ValueError: if the name does not end in one of `FORMATS`.
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"expected a picture name ending in {', '.join(FORMATS)}, got {path.name!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        figure.savefig(part)
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
