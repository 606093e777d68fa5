"""Pictures of forces of flows over true forces, as in figure 3 of Hong & Chun (2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.report.figures import check_some, color_bar, grid, new_figure, titled_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

Floats = NDArray[np.floating[Any]]

GRID: Final = 60
"""Hexagons across a picture of one flow."""
FARTHEST: Final = 5_000.0
"""The axes of one picture end here however large the forces are, in kT/nm."""
COLUMN_GRID: Final = 45
"""Hexagons across a panel of a column."""
WIDTH, HEIGHT = 2.15, 2.25
"""Size of such a panel in inches: five fit side by side on a wide page."""


@dataclass(frozen=True, eq=False)
class ForceColumn:
    """Panels of one flow, from top to bottom: true and learned forces in kT/nm, of equal shape, by title."""

    title: str
    panels: Mapping[str, tuple[Floats, Floats]]


def draw_forces(title: str, true: Floats, learned: Floats) -> Figure:
    """Components of the flow's forces over those of the force field; those beyond the axes are left out."""
    figure, axis = titled_axis(title)
    dots, _ = _draw_components(axis, true, learned, min(_reach(true), FARTHEST), GRID)
    if dots is not None:
        dots.set_clim(1, max(10.0, float(np.max(np.asarray(dots.get_array())))))
        color_bar(axis, dots, "components")
    axis.locator_params(nbins=5)
    axis.set(xlabel="force field, kT/nm", ylabel="flow, kT/nm")
    axis.tick_params(labelsize=8)
    grid(axis)
    return figure


def reach_of(columns: Sequence[ForceColumn]) -> float:
    """Range of the axes of all columns in kT/nm: beyond 99.9 % of the true forces in their first panels.

    The others may show samples whose atoms clash, with forces of any size.
    """
    first = [next(iter(column.panels.values()))[0].ravel() for column in columns if column.panels]
    return _reach(np.concatenate([np.empty(0), *first]))


def draw_force_columns(columns: Sequence[ForceColumn]) -> list[Figure]:
    """A picture for each flow, all with the same axes and colours for comparison.

    Hexagons get darker with the number of components in them; the corner says how many are beyond the axes.

    Raises:
        ValueError: if there is no column.
    """
    check_some("flow", columns)
    reach = reach_of(columns)
    figures, images = [], []
    for column in columns:
        figure = new_figure(WIDTH, HEIGHT * len(column.panels))
        axes = figure.subplots(len(column.panels), 1, squeeze=False, sharex=True)[:, 0]
        figure.suptitle(column.title, fontsize=10)
        for axis, (name, (true, learned)) in zip(axes, column.panels.items(), strict=True):
            dots, beyond = _draw_components(axis, true, learned, reach, COLUMN_GRID)
            if dots is not None:
                images.append(dots)
            if beyond > 0:
                share = f"{100 * beyond:.2g} %" if beyond >= 1e-4 else "< 0.01 %"
                axis.text(0.04, 0.9, f"{share} beyond", transform=axis.transAxes, fontsize=7)
            axis.set_title(name, fontsize=8)
            axis.locator_params(nbins=3)
            axis.tick_params(labelsize=7)
            axis.set_ylabel("flow, kT/nm", fontsize=8)
        axes[-1].set_xlabel("force field, kT/nm", fontsize=8)
        figures.append(figure)
    most = max((float(np.max(np.asarray(dots.get_array()))) for dots in images), default=10.0)
    for dots in images:
        dots.set_clim(1, max(10.0, most))
    return figures


def _reach(true: Floats) -> float:
    """Range of axes: beyond 99.9 % of the finite true forces."""
    sizes = np.abs(true[np.isfinite(true)])
    return max(1.0, 1.1 * float(np.quantile(sizes, 0.999))) if sizes.size else 1.0


def _draw_components(
    axis: Axes, true: Floats, learned: Floats, reach: float, hexagons: int
) -> tuple[PolyCollection | None, float]:
    """Draw hexagons of all components and the line of equal forces; return them and the share beyond."""
    x, y = np.ravel(true), np.ravel(learned)
    inside = (np.abs(x) <= reach) & (np.abs(y) <= reach)
    axis.plot([-reach, reach], [-reach, reach], color="black", linewidth=0.8, linestyle="--")
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), box_aspect=1)
    if not inside.any():
        return None, 1.0 if len(x) else 0.0
    dots = axis.hexbin(
        x[inside], y[inside], gridsize=hexagons, extent=(-reach, reach, -reach, reach), bins="log", mincnt=1,
        cmap="viridis_r", linewidths=0.1,
    )  # fmt: skip
    return dots, 1 - float(inside.mean())
