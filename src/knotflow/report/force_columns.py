"""Figure 3 of Hong & Chun (2023): forces of flows over true ones, a picture for each flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.report.plots import check_some, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.floating[Any]]

GRID: Final = 45
"""Hexagons across a panel."""
WIDTH, HEIGHT = 2.15, 2.25
"""Of a panel, in inches: five side by side on a wide page."""


@dataclass(frozen=True, eq=False)
class ForceColumn:
    """Panels of one flow, from top to bottom: true and learned forces in kT/nm, of one shape, by title."""

    title: str
    panels: Mapping[str, tuple[Floats, Floats]]


def reach_of(columns: Sequence[ForceColumn]) -> float:
    """How far the axes of all pictures go, in kT/nm: beyond 99.9 % of the true forces in their first panels.

    Forces on samples, where atoms may clash, have no bounds.
    """
    first = [next(iter(column.panels.values()))[0] for column in columns if column.panels]
    sizes = [np.abs(true).ravel() for true in first]
    known = np.concatenate([np.empty(0), *sizes])
    known = known[np.isfinite(known)]
    return max(1.0, 1.1 * float(np.quantile(known, 0.999))) if len(known) else 1.0


def draw_force_columns(columns: Sequence[ForceColumn]) -> list[Figure]:
    """A picture for each flow, all with the same axes and colours, so that they can be compared.

    Dots are hexagons that get darker with the number of components in them; what is beyond the axes is
    counted in the corner.

    Raises:
        ValueError: if there is no column.
        ModuleNotFoundError: if matplotlib, which is optional, is not installed.
    """
    check_some("flow", columns)
    reach = reach_of(columns)
    figures, images = [], []
    for column in columns:
        figure = new_figure(WIDTH, HEIGHT * len(column.panels))
        axes = figure.subplots(len(column.panels), 1, squeeze=False, sharex=True)[:, 0]
        figure.suptitle(column.title, fontsize=10)
        for axis, (name, (true, learned)) in zip(axes, column.panels.items(), strict=True):
            x, y = np.ravel(true), np.ravel(learned)
            inside = (np.abs(x) <= reach) & (np.abs(y) <= reach)
            axis.plot([-reach, reach], [-reach, reach], color="black", linewidth=0.7, linestyle="--")
            if inside.any():
                extent = (-reach, reach, -reach, reach)
                dots = axis.hexbin(
                    x[inside], y[inside], gridsize=GRID, extent=extent, bins="log", mincnt=1,
                    cmap="viridis_r", linewidths=0.1,
                )  # fmt: skip
                images.append(dots)
            beyond = 1 - float(inside.mean()) if len(x) else 0.0
            if beyond > 0:
                axis.text(0.04, 0.9, f"{_percent(beyond)} beyond", transform=axis.transAxes, fontsize=7)
            axis.set(xlim=(-reach, reach), ylim=(-reach, reach), box_aspect=1)
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


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-4 else "< 0.01 %"
