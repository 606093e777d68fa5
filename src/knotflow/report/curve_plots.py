"""Pictures of training curves: logged values over the steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from knotflow.report.figures import COLORS, DASHES, MARKERS, check_some, new_figure, spans_decades

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = tuple[NDArray[Any], NDArray[np.float64]]
"""Steps and the values at these steps, both of shape (points,)."""


def draw_curves(
    curves: Mapping[str, Curve],
    points: Mapping[str, Curve] | None = None,
    *,
    label: str = "negative log-likelihood",
    log: bool | None = None,
) -> Figure:
    """Draw training curves in one axis.

    Args:
        curves: Steps and values by the name in the legend.
        points: Values measured now and then, such as validation losses, drawn with markers. A curve of the
            same name, such as a noisy training loss, is drawn pale behind them in the same colour.
        label: Label of the values.
        log: Whether their axis is logarithmic. By default, it is if all values are positive and span more
            than two decades.

    Raises:
        ValueError: if there is nothing to draw, or steps and values do not pair up.
    """
    points = points or {}
    for name, (steps, values) in (*curves.items(), *points.items()):
        if np.ndim(steps) != 1 or np.shape(steps) != np.shape(values):
            raise ValueError(
                f"curve {name!r} needs as many values as steps, both of shape (points,), got shapes "
                f"{np.shape(steps)} and {np.shape(values)}; give one value for each step."
            )
    names = list(dict.fromkeys((*curves, *points)))
    check_some("curve", names)
    figure = new_figure(6.4, 3.8)
    axis = figure.subplots()
    for i, name in enumerate(names):
        color, dash, marker = COLORS[i % len(COLORS)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)]
        if name in points:
            every = max(1, len(points[name][0]) // 20)
            style: dict[str, Any] = {"marker": marker, "markersize": 4.5, "markevery": every}
            axis.plot(*points[name], color=color, linewidth=1.2, label=name, **style)
        if name in curves and name in points:
            axis.plot(*curves[name], color=color, linewidth=0.7, alpha=0.4, zorder=1)
        elif name in curves:
            axis.plot(*curves[name], color=color, linewidth=1.2, linestyle=dash, label=name)
    if log is None:
        log = spans_decades(np.concatenate([curve[1] for curve in (*curves.values(), *points.values())]))
    axis.set(yscale="log" if log else "linear", xlabel="step", ylabel=label)
    axis.margins(x=0.01)
    axis.grid(visible=True, color="0.92")
    axis.legend(frameon=False, fontsize=9, handlelength=3)
    return figure
