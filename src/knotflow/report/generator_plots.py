"""Pictures of a Boltzmann generator, a small one for each thing, so that they stack on a narrow screen.

Lines differ in dashes and width, not in colour alone, and maps get darker all the way: everything can be
read in black and white.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.free_energy_profiles import Marginal, Profile, bins_for
from knotflow.analysis.learned_maps import LearnedMap
from knotflow.report.plots import MapPanel, draw_maps, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Floats = NDArray[np.float64]

MD, FLOW, REWEIGHTED, TRUTH = "MD", "flow", "reweighted", "force field"
STYLES: Final[dict[str, dict[str, Any]]] = {
    MD: {"color": "black", "linestyle": "-", "linewidth": 1.8},
    FLOW: {"color": "#d55e00", "linestyle": (0, (4, 1.5)), "linewidth": 1.4},
    REWEIGHTED: {"color": "#0072b2", "linestyle": (0, (1, 1)), "linewidth": 1.6},
    TRUTH: {"color": "black", "linestyle": "-", "linewidth": 1.8},
}
DEGREES: Final = (-180, -90, 0, 90, 180)
RAMACHANDRAN_BINS: Final = 72
DENSITIES: Final = (1e-6, 1e-3)
"""Per square degree, that colours tell apart."""
HIGHEST: Final = 10.0
"""In kT: free energies above the lowest one of the data that colours tell apart."""
NOISE: Final = 0.5
"""In kT: contours of a free energy with a larger error are not drawn."""
LARGEST_ERROR: Final = 1.0
"""In kT: errors of free energies that greys tell apart."""
ENERGY_BINS: Final = (15, 60)
"""Fewest and most bins of a histogram of energies."""


def png(figure: Figure) -> bytes:
    """A figure as a PNG file."""
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def draw_ramachandran(title: str, angles: Floats, weight: Floats | None = None) -> Figure:
    """How often pairs (phi, psi) occur, on a logarithmic scale: angles in rad, shape (n, 2)."""
    figure, axis = _square(title)
    from matplotlib.colors import LogNorm

    known = np.isfinite(angles).all(1)
    shares = np.ones(known.sum()) if weight is None else weight[known]
    phi, psi = np.degrees(angles[known]).T
    counts, _, _ = np.histogram2d(phi, psi, bins=RAMACHANDRAN_BINS, range=[(-180, 180)] * 2, weights=shares)
    with np.errstate(invalid="ignore", divide="ignore"):
        density = counts / counts.sum() * (RAMACHANDRAN_BINS / 360) ** 2
    density = np.where(density > 0, density, np.nan)
    image = _torsion_image(axis, density, cmap="viridis_r", norm=LogNorm(*DENSITIES, clip=True))
    _bar(axis, image, "density, 1/degree²")
    return figure


def draw_profiles(label: str, profiles: Mapping[str, Profile], floor: float) -> Figure:
    """Free energies along one torsion with bands of two standard errors; ``floor`` becomes zero."""
    figure = new_figure(5.4, 3.2)
    axis = figure.subplots()
    for name, profile in profiles.items():
        x, value = np.degrees(profile.middle), profile.value - floor
        axis.plot(x, value, label=name, **STYLES[name])
        axis.fill_between(
            x,
            value - 2 * profile.error,
            value + 2 * profile.error,
            color=STYLES[name]["color"],
            alpha=0.18,
            linewidth=0,
        )
    axis.set_xlim(-180, 180)
    axis.set_xticks(DEGREES)
    axis.set_ylim(-0.7, HIGHEST + 2)
    axis.set_xlabel(f"{label}, degrees")
    axis.set_ylabel(f"F({label}), kT")
    _finish(axis)
    return figure


def draw_surface(title: str, profile: Profile, floor: float) -> Figure:
    """The free energy on (phi, psi) in colours and, unless it is noise, contours 2 kT apart."""
    figure, axis = _square(title)
    value = profile.value - floor
    image = _torsion_image(axis, value, cmap="viridis", vmin=0, vmax=HIGHEST)
    middle = np.degrees(profile.middle)
    # Lines through noise would only confuse.
    if np.isfinite(profile.error).any() and np.nanmedian(profile.error) < NOISE:
        lines = axis.contour(
            middle, middle, np.ma.masked_invalid(value.T), levels=np.arange(1, HIGHEST, 2), colors="black",
            linewidths=0.5,
        )  # fmt: skip
        axis.clabel(lines, fontsize=6, fmt="%g")
    _bar(axis, image, "F, kT", extend="max")
    return figure


def draw_surface_error(title: str, profile: Profile) -> Figure:
    """Standard errors of the free energy on (phi, psi); crosses where it is known without one."""
    figure, axis = _square(title)
    image = _torsion_image(axis, profile.error, cmap="Greys", vmin=0, vmax=LARGEST_ERROR)
    i, j = np.nonzero(np.isfinite(profile.value) & ~np.isfinite(profile.error))
    middle = np.degrees(profile.middle)
    axis.plot(middle[i], middle[j], linestyle="", marker="x", markersize=2.2, color="0.35", mew=0.5)
    _bar(axis, image, "standard error, kT", extend="max")
    return figure


def draw_forces(title: str, true: Floats, learned: Floats) -> Figure:
    """Components of the flow's forces over those of the force field, as in figure 3 of the paper."""
    figure, axis = _square(title)
    x, y = true.ravel(), learned.ravel()
    reach = max(1.0, 1.1 * float(np.quantile(np.abs(x), 0.999))) if len(x) else 1.0
    reach = min(reach, 5_000.0)
    axis.plot([-reach, reach], [-reach, reach], color="black", linewidth=0.8, linestyle="--")
    inside = (np.abs(x) <= reach) & (np.abs(y) <= reach)
    if inside.any():
        image = axis.hexbin(
            x[inside],
            y[inside],
            gridsize=60,
            extent=(-reach, reach, -reach, reach),
            bins="log",
            mincnt=1,
            cmap="viridis_r",
            linewidths=0.1,
        )
        image.set_clim(1, max(10.0, float(np.max(np.asarray(image.get_array())))))
        _bar(axis, image, "components")
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), box_aspect=1)
    axis.locator_params(nbins=5)
    axis.set_xlabel("force field, kT/nm")
    axis.set_ylabel("flow, kT/nm")
    axis.tick_params(labelsize=8)
    axis.grid(visible=True, color="0.92")
    axis.set_axisbelow(True)
    return figure


def draw_energies(
    title: str,
    energies: Mapping[str, tuple[Floats, Floats | None]],
    label: str,
    span: tuple[float, float] | None = None,
) -> Figure:
    """Histograms of energies in kT, some of them weighted; the legend has the share that is beyond."""
    figure = new_figure(3.6, 2.9)
    axis = figure.subplots()
    axis.set_title(title, fontsize=10)
    low, high = span or energy_span(*(u for u, _ in energies.values()))
    bins = bins_for(min(len(u) for u, _ in energies.values()), *ENERGY_BINS)
    edges = np.linspace(low, high, bins + 1)
    for name, (u, weight) in energies.items():
        weight = np.ones(len(u)) if weight is None else weight
        known = np.isfinite(u)
        counts = np.histogram(u[known], edges, weights=weight[known])[0]
        total = float(weight.sum())
        beyond = 1 - float(counts.sum()) / total if total > 0 else 0.0
        text = f"{name}, {beyond:.0%} beyond".replace("%", " %") if beyond >= 0.005 else name
        if total > 0:
            axis.stairs(counts / total / np.diff(edges), edges, label=text, baseline=None, **STYLES[name])
    axis.set_xlabel(label)
    axis.set_ylabel("density, 1/kT")
    axis.margins(y=0.25)  # room for the legend
    axis.set_ylim(bottom=0)
    axis.set_xlim(low, high)
    _finish(axis)
    return figure


def energy_span(*energies: Floats) -> tuple[float, float]:
    """From the lowest energy to well above the bulk of the first set, which is the reference."""
    finite = [u[np.isfinite(u)] for u in energies]
    finite = [u for u in finite if len(u)]
    if not finite:
        return 0.0, 1.0
    lowest = min(float(np.quantile(u, 0.001)) for u in finite)
    middle, high = np.quantile(finite[0], (0.5, 0.75))
    return lowest - 1, float(max(middle + 8 * (high - middle), lowest + 1))


def draw_marginal(marginal: Marginal) -> Figure:
    """Densities of one coordinate in data and samples, without the unit of the density: a small picture."""
    figure = new_figure(1.7, 1.15)
    axis = figure.subplots()
    scale = 1.0 if marginal.name.startswith("bond") else 180 / np.pi
    edges = marginal.edges * scale
    for name, density in ((MD, marginal.data), (FLOW, marginal.samples)):
        if density is not None and np.isfinite(density).all():
            axis.stairs(density, edges, baseline=None, **{**STYLES[name], "linewidth": 1.1})
    axis.set_yticks([])
    axis.set_ylim(bottom=0)
    axis.set_xlim(edges[0], edges[-1])
    axis.locator_params(axis="x", nbins=3)
    axis.tick_params(labelsize=7, length=2)
    for side in ("left", "right", "top"):
        axis.spines[side].set_visible(False)
    return figure


def draw_learned(learned: LearnedMap) -> Figure:
    """Maps of one coordinate at several frames, and their slopes, as in figure 2 of the paper."""
    panel = MapPanel(f"{learned.name}, coupling {learned.coupling}", learned.x, learned.y, learned.slopes)
    figure = draw_maps([panel], line_width=0.7, alpha=0.5, color=STYLES[REWEIGHTED]["color"])
    from matplotlib.ticker import LogLocator

    figure.set_size_inches(3.6, 5.0)
    below = figure.axes[1]
    low, high = float(learned.slopes.min()), float(learned.slopes.max())
    # Wide enough, or slopes that are all the same would be a picture of rounding.
    room = 1.3 if high > 2 * low else 2.0
    below.set_ylim(low / room, high * room)
    below.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    below.yaxis.set_major_formatter("{x:g}")
    below.yaxis.set_minor_formatter("")
    return figure


def _square(title: str) -> tuple[Figure, Axes]:
    figure = new_figure(3.6, 2.9)
    axis = figure.subplots()
    axis.set_title(title, fontsize=10)
    return figure, axis


def _bar(axis: Axes, image: Any, label: str, **options: Any) -> None:
    """A bar of colours, as high as the picture."""
    bar = axis.figure.colorbar(image, cax=axis.inset_axes((1.04, 0, 0.05, 1)), label=label, **options)
    bar.ax.tick_params(labelsize=8)


def _torsion_image(axis: Axes, values: Floats, **colours: Any) -> AxesImage:
    """Values on bins of (phi, psi), which they are numbered by, in colours over axes in degrees."""
    image = axis.imshow(
        values.T,
        origin="lower",
        extent=(-180, 180, -180, 180),
        aspect="auto",
        interpolation="nearest",
        **colours,
    )
    # Contours and crosses that come later do not move these limits.
    axis.set(xlim=(-180, 180), ylim=(-180, 180), box_aspect=1, xlabel="phi, degrees", ylabel="psi, degrees")
    axis.set_xticks(DEGREES)
    axis.set_yticks(DEGREES)
    axis.tick_params(labelsize=8)
    axis.set_facecolor("white")
    return image


def _finish(axis: Axes) -> None:
    axis.grid(visible=True, color="0.92")
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize=8, handlelength=3)
