"""Pictures of densities and their forces on the unit square: figures 1 and 5 of Hong & Chun (2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from knotflow.report.figures import check_some, new_figure
from knotflow.statistics.estimates import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARROWS: Final = 12
"""Arrows along a side of a force field."""
ARROW_STYLE: Final[dict[str, Any]] = {
    "angles": "xy", "scale_units": "xy", "pivot": "mid", "color": "white",
    "width": 0.0045, "headwidth": 4.5, "headlength": 4.5, "headaxislength": 4,
}  # fmt: skip
NEGLIGIBLE: Final = 1e-2
"""Densities below this fraction of the maximum do not count for the range of the forces."""
DECADES: Final = 2
"""Decades of force in the colours: enough for its zeros on crests, few enough to see jumps."""


@dataclass(frozen=True)
class FieldPanel:
    """A density on the unit square and its force, on the midpoints of an n by n grid."""

    title: str
    density: Floats
    """Densities, shape (n, n), indexed ``[i, j]`` for the point ``(x_i, y_j)``."""
    force: Floats
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

    Colours show the density and the magnitude of the force, on scales that all panels share; arrows show the
    direction of the force. The scales come from the first panel, the truth: densities end at its maximum;
    magnitudes span the two decades below its strongest force where its density is not negligible. Values
    beyond have the colour of the end, so a singular force is a bright spot or line. NaN is white.

    Args:
        panels: The panels, the truth first.
        caption: A line above the picture.

    Raises:
        ValueError: if there is no panel, or no finite density and force in the first one.
    """
    check_some("panel", panels)
    top, weakest, strongest = _scales(panels[0])
    figure = new_figure(2.55 * len(panels) + 0.9, 5.5 if caption is None else 5.8)
    # By now matplotlib is known to be installed.
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    densities, forces = Normalize(0.0, top), LogNorm(weakest, strongest)
    # Without the palest colours, on which white arrows would vanish.
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


def _scales(truth: FieldPanel) -> tuple[float, float, float]:
    """The maximum of a density, and the range of magnitudes of its force."""
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


def _draw_image(axis: Axes, values: Floats, **style: Any) -> None:
    # Images are indexed [row, column]: y comes first.
    axis.imshow(values.T, origin="lower", extent=(0, 1, 0, 1), **style)
    axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axis.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axis.tick_params(labelsize=8, length=2.5)


def _draw_arrows(axis: Axes, force: Floats) -> None:
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
