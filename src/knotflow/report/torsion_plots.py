"""Pictures of torsions: how often they occur, and free energies with error bars.

Brightness is monotone in all maps, so that they can be read in black and white.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from knotflow.analysis.free_energy_profiles import Profile
from knotflow.report.figures import STYLES, color_bar, finish, new_figure, titled_axis
from knotflow.statistics.estimates import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

DEGREES: Final = (-180, -90, 0, 90, 180)
RAMACHANDRAN_BINS: Final = 72
DENSITIES: Final = (1e-6, 1e-3)
"""Range of the colours, per square degree."""
HIGHEST: Final = 10.0
"""Range of the colours of free energies above the lowest one of the data, in kT."""
NOISE: Final = 0.5
"""Contours of a free energy with a larger error, in kT, are not drawn."""
LARGEST_ERROR: Final = 1.0
"""Range of the greys of errors, in kT."""


BACKBONE: Final = ("phi", "psi")


def draw_ramachandran(
    title: str, angles: Floats, weight: Floats | None = None, labels: tuple[str, str] = BACKBONE
) -> Figure:
    """How often pairs of torsions occur, on a logarithmic scale: angles in rad, shape (n, 2)."""
    figure, axis = titled_axis(title)
    from matplotlib.colors import LogNorm

    known = np.isfinite(angles).all(1)
    shares = np.ones(known.sum()) if weight is None else weight[known]
    phi, psi = np.degrees(angles[known]).T
    counts, _, _ = np.histogram2d(phi, psi, bins=RAMACHANDRAN_BINS, range=[(-180, 180)] * 2, weights=shares)
    with np.errstate(invalid="ignore", divide="ignore"):
        density = counts / counts.sum() * (RAMACHANDRAN_BINS / 360) ** 2
    density = np.where(density > 0, density, np.nan)
    image = torsion_image(axis, density, labels=labels, cmap="viridis_r", norm=LogNorm(*DENSITIES, clip=True))
    color_bar(axis, image, "density, 1/degree²")
    return figure


def draw_profiles(label: str, profiles: Mapping[str, Profile], floor: float) -> Figure:
    """Free energies along one torsion with bands of two standard errors; ``floor`` becomes zero."""
    figure = new_figure(5.4, 3.2)
    axis = figure.subplots()
    for name, profile in profiles.items():
        x, value, band = np.degrees(profile.middle), profile.value - floor, 2 * profile.error
        style = STYLES[name]
        axis.plot(x, value, label=name, **style)
        axis.fill_between(x, value - band, value + band, color=style["color"], alpha=0.18, linewidth=0)
    axis.set(xlim=(-180, 180), ylim=(-0.7, HIGHEST + 2), xlabel=f"{label}, degrees", ylabel=f"F({label}), kT")
    axis.set_xticks(DEGREES)
    finish(axis)
    return figure


def draw_surface(title: str, profile: Profile, floor: float, labels: tuple[str, str] = BACKBONE) -> Figure:
    """The free energy on two torsions in colours and, unless it is too noisy, contours 2 kT apart."""
    figure, axis = titled_axis(title)
    value = profile.value - floor
    image = torsion_image(axis, value, labels=labels, cmap="viridis", vmin=0, vmax=HIGHEST)
    middle = np.degrees(profile.middle)
    if np.isfinite(profile.error).any() and np.nanmedian(profile.error) < NOISE:
        lines = axis.contour(
            middle, middle, np.ma.masked_invalid(value.T), levels=np.arange(1, HIGHEST, 2), colors="black",
            linewidths=0.5,
        )  # fmt: skip
        axis.clabel(lines, fontsize=6, fmt="%g")
    color_bar(axis, image, "F, kT", extend="max")
    return figure


def draw_surface_error(title: str, profile: Profile, labels: tuple[str, str] = BACKBONE) -> Figure:
    """Standard errors of the free energy on two torsions; crosses where only the error is unknown."""
    figure, axis = titled_axis(title)
    image = torsion_image(axis, profile.error, labels=labels, cmap="Greys", vmin=0, vmax=LARGEST_ERROR)
    i, j = np.nonzero(np.isfinite(profile.value) & ~np.isfinite(profile.error))
    middle = np.degrees(profile.middle)
    axis.plot(middle[i], middle[j], linestyle="", marker="x", markersize=2.2, color="0.35", mew=0.5)
    color_bar(axis, image, "standard error, kT", extend="max")
    return figure


def torsion_image(
    axis: Axes,
    values: Floats,
    background: str = "white",
    labels: tuple[str, str] = BACKBONE,
    **colours: Any,
) -> AxesImage:
    """Draw values on bins, indexed ``[first, second]``, in colours over axes in degrees."""
    square = (-180, 180, -180, 180)
    image = axis.imshow(
        values.T, origin="lower", extent=square, aspect="auto", interpolation="nearest", **colours
    )
    # Fixed, so that contours and crosses drawn later do not move them.
    x, y = (f"{label}, degrees" for label in labels)
    axis.set(xlim=(-180, 180), ylim=(-180, 180), box_aspect=1, xlabel=x, ylabel=y)
    axis.set_xticks(DEGREES)
    axis.set_yticks(DEGREES)
    axis.tick_params(labelsize=8)
    axis.set_facecolor(background)
    return image
