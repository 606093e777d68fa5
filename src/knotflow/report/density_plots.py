"""Pictures of densities, forces, learned maps and training: figures 1, 2 and 5 of Hong & Chun (2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.report.plots import MapPanel, check_some, draw_maps, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[NDArray[Any], NDArray[np.float64]]
"""Steps and the values at these steps, both of shape (points,)."""

ARROWS: Final = 12
"""Arrows along a side of a force field."""
ARROW_STYLE: Final[dict[str, Any]] = {
    "angles": "xy",
    "scale_units": "xy",
    "pivot": "mid",
    "color": "white",
    "width": 0.0045,
    "headwidth": 4.5,
    "headlength": 4.5,
    "headaxislength": 4,
}
NEGLIGIBLE: Final = 1e-2
"""Densities below this fraction of the maximum have no say in the range of the forces."""
DECADES: Final = 2
"""Decades of force that colours tell apart: enough for its zeros on crests, few enough to see jumps."""
DASHES: Final = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS: Final = "os^Dv"
COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "black")
"""Told apart by most colour-blind readers (Okabe & Ito); dashes and markers do in black and white."""


@dataclass(frozen=True)
class FieldPanel:
    """A density on the unit square and its force, on the midpoints of an n by n grid."""

    title: str
    density: NDArray[np.float64]
    """Densities, shape (n, n), indexed ``[i, j]`` for the point ``(x_i, y_j)``."""
    force: NDArray[np.float64]
    """Forces, shape (n, n, 2). They may be infinite or NaN where they do not exist."""

    def __post_init__(self) -> None:
        shape = np.shape(self.density)
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0 or np.shape(self.force) != (*shape, 2):
            raise ValueError(
                f"panel {self.title!r} needs a density of shape (n, n) and a force of shape (n, n, 2), got "
                f"{shape} and {np.shape(self.force)}; evaluate both on the midpoints of one square grid."
            )


def draw_fields(panels: Sequence[FieldPanel], caption: str | None = None) -> Figure:
    """Draw densities (above) and their forces (below), a column for each panel.

    Colours tell the density and the magnitude of the force, on scales that all panels share, and arrows
    tell the direction of the force. The scales come from the first panel, the truth: densities end at its
    maximum; magnitudes span the two decades below its strongest force where its density is not negligible.
    All beyond shows in the colour of the end, so a singular force is a bright spot or line. White is NaN.

    Args:
        panels: What to draw, the truth first.
        caption: A line above the picture.

    Raises:
        ValueError: if there is no panel, or no finite density and force in the first one.
        ModuleNotFoundError: if matplotlib, which is optional, is not installed.
    """
    check_some("panel", panels)
    top, weakest, strongest = _scales(panels[0])
    figure = new_figure(2.55 * len(panels) + 0.9, 5.5 if caption is None else 5.8)
    # Only now is matplotlib known to be there.
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    densities, forces = Normalize(0.0, top), LogNorm(weakest, strongest)
    # Without its palest colours, on which white arrows would vanish.
    magma = ListedColormap(colormaps["magma"](np.linspace(0, 0.8, 256)))
    axes = figure.subplots(2, len(panels), sharex=True, sharey=True, squeeze=False)
    for column, panel in enumerate(panels):
        above, below = axes[:, column]
        above.set_title(panel.title, fontsize=11)
        _draw_image(above, panel.density, norm=densities, cmap="viridis")
        # Clipped here because a logarithmic scale has no place for the zeros between opposite forces.
        magnitude = np.clip(np.linalg.norm(panel.force, axis=-1), weakest, strongest)
        _draw_image(below, magnitude, norm=forces, cmap=magma)
        _draw_arrows(below, panel.force)
    denser = any(np.any(panel.density > top) for panel in panels)
    for row, label, extend in zip(
        axes, ("density", "|force|"), ("max" if denser else "neither", "both"), strict=True
    ):
        image = row[0].images[0]
        figure.colorbar(image, ax=list(row), label=label, extend=extend, shrink=0.9, aspect=18, pad=0.015)
    if caption is not None:
        figure.suptitle(caption, fontsize=11)
    return figure


AccumulationPanel = MapPanel
"""Maps of [0, 1] to be laid over each other; they need no marks."""


def draw_accumulation(panels: Sequence[MapPanel]) -> Figure:
    """Draw many maps of [0, 1] over each other (above), and their slopes (below), a column for each panel.

    The lines are thin and translucent: where many maps go, it gets dark.

    Raises:
        ValueError: if there is no panel.
        ModuleNotFoundError: if matplotlib, which is optional, is not installed.
    """
    most = max((len(panel.y) for panel in panels), default=1)
    figure = draw_maps(
        panels,
        line_width=0.7,
        alpha=float(np.clip(20 / most, 0.1, 0.8)),
        color=COLORS[0],
    )
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
            same name, such as its noisy training loss, goes pale in the same colour behind them.
        label: What the values are.
        log: Whether their axis is logarithmic. If missing, it is when all values are positive and
            span more than two decades.

    Raises:
        ValueError: if there is nothing to draw, or steps and values do not pair up.
        ModuleNotFoundError: if matplotlib, which is optional, is not installed.
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
            axis.plot(
                *points[name],
                color=color,
                linewidth=1.2,
                marker=marker,
                markersize=4.5,
                markevery=every,
                label=name,
            )
        if name in curves and name in points:
            axis.plot(*curves[name], color=color, linewidth=0.7, alpha=0.4, zorder=1)
        elif name in curves:
            axis.plot(*curves[name], color=color, linewidth=1.2, linestyle=dash, label=name)
    if log is None:
        values = np.concatenate([curve[1] for curve in (*curves.values(), *points.values())])
        values = values[np.isfinite(values)]
        log = values.size > 0 and bool(values.min() > 0) and bool(values.max() > 100 * values.min())
    axis.set_yscale("log" if log else "linear")
    axis.set_xlabel("step")
    axis.set_ylabel(label)
    axis.margins(x=0.01)
    axis.grid(visible=True, color="0.92")
    axis.legend(frameon=False, fontsize=9, handlelength=3)
    return figure


def _scales(truth: FieldPanel) -> tuple[float, float, float]:
    """The maximum of a density, and the least and greatest magnitude of the force to tell apart."""
    density = np.where(np.isfinite(truth.density), truth.density, 0.0)
    top = float(density.max())
    magnitude = np.linalg.norm(truth.force, axis=-1)[density > NEGLIGIBLE * top]
    magnitude = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
    if top <= 0 or magnitude.size == 0:
        raise ValueError(
            f"the first panel, {truth.title!r}, sets the colour scales and needs densities and forces that "
            "are finite and not all zero; put the truth first."
        )
    strongest = float(magnitude.max())
    return top, strongest / 10**DECADES, strongest


def _draw_image(axis: Axes, values: NDArray[np.float64], **style: Any) -> None:
    # Images are indexed [row, column]: y comes first.
    axis.imshow(values.T, origin="lower", extent=(0, 1, 0, 1), **style)
    axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axis.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axis.tick_params(labelsize=8, length=2.5)


def _draw_arrows(axis: Axes, force: NDArray[np.float64]) -> None:
    n = len(force)
    count = min(ARROWS, n)
    picked = ((np.arange(count) + 0.5) * n / count).astype(int)
    i, j = (index.ravel() for index in np.meshgrid(picked, picked, indexing="ij"))
    length = np.linalg.norm(force[i, j], axis=-1)
    # Where the force is zero or infinite it has no direction.
    known = (length > 0) & np.isfinite(length)
    i, j, length = i[known], j[known], length[known]
    u, v = (force[i, j] / length[:, None]).T
    axis.quiver((i + 0.5) / n, (j + 0.5) / n, u, v, scale=1.6 * count, **ARROW_STYLE)
