"""Pictures of monotone maps and their slopes, as in figure 2 of Hong & Chun (2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from knotflow.analysis.learned_maps import LearnedMap
from knotflow.report.figures import COLORS, check_some, new_figure
from knotflow.statistics.estimates import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class MapPanel:
    """Several maps of one domain, drawn above their slopes."""

    title: str
    x: Floats
    """Points, shape (points,)."""
    y: Floats
    """Images, shape (maps, points)."""
    slopes: Floats
    """Slopes, shape (maps, points)."""
    marks: Sequence[float] = ()
    """Places of vertical lines: ends, seams or joins."""

    def __post_init__(self) -> None:
        shapes = np.shape(self.x), np.shape(self.y), np.shape(self.slopes)
        if len(shapes[0]) != 1 or len(shapes[1]) != 2 or shapes[1][1:] != shapes[0] or shapes[2] != shapes[1]:
            raise ValueError(
                f"panel {self.title!r} needs x of shape (points,), y and slopes of shape (maps, points), got "
                f"{shapes[0]}, {shapes[1]} and {shapes[2]}; give one row for each map."
            )


def draw_maps(
    panels: Sequence[MapPanel], *, line_width: float = 1.1, alpha: float = 1.0, color: str | None = None
) -> Figure:
    """Draw maps (above) and their slopes on a logarithmic axis (below), a column for each panel.

    On a circle, images may cross the seam, from its end to its start; the line is broken there.

    Args:
        panels: Panels from left to right.
        line_width: Width of the lines in points.
        alpha: Their opacity, from 0 to 1.
        color: Their colour; by default a different one for each map.

    Raises:
        ValueError: if there is no panel.
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


def draw_accumulation(panels: Sequence[MapPanel]) -> Figure:
    """Draw many maps of [0, 1] on top of each other, see `draw_maps`.

    The lines are thin and translucent, so the picture is dark where many maps pass.
    """
    most = max((len(panel.y) for panel in panels), default=1)
    alpha = float(np.clip(20 / most, 0.1, 0.8))
    figure = draw_maps(panels, line_width=0.7, alpha=alpha, color=COLORS[0])
    figure.set_size_inches(3.3 * len(panels) + 0.3, 6.5)
    for axis in figure.axes:
        axis.set_box_aspect(1)
        axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    above, below = figure.axes[: len(panels)], figure.axes[len(panels) :]
    for axis in above:
        axis.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
        axis.margins(y=0)
    for axis in below[1:]:
        axis.sharey(below[0])
    below[0].autoscale(axis="y")
    for axis in below:
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
    return figure


def draw_learned(learned: LearnedMap) -> Figure:
    """Maps of one coordinate at several frames, and their slopes, as in figure 2 of the paper."""
    panel = MapPanel(f"{learned.name}, coupling {learned.coupling}", learned.x, learned.y, learned.slopes)
    figure = draw_maps([panel], line_width=0.7, alpha=0.5, color=COLORS[0])
    from matplotlib.ticker import LogLocator

    figure.set_size_inches(3.6, 5.0)
    below = figure.axes[1]
    low, high = float(learned.slopes.min()), float(learned.slopes.max())
    # Wide enough, or equal slopes would show their rounding errors.
    room = 1.3 if high > 2 * low else 2.0
    below.set_ylim(low / room, high * room)
    below.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    below.yaxis.set_major_formatter("{x:g}")
    below.yaxis.set_minor_formatter("")
    return figure


def _broken_at_seam(panel: MapPanel) -> Floats:
    """Images with NaN before each drop by half of the domain, which monotone maps have at the seam only."""
    falls = np.diff(panel.y, axis=-1, append=panel.y[:, -1:]) < -0.5 * np.ptp(panel.x)
    return np.where(falls, np.nan, panel.y)
