"""Pictures that compare two sets of samples of one molecule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from knotflow.analysis.distances import torus_bins
from knotflow.analysis.free_energy_profiles import free_energies
from knotflow.report.figures import COLORS, DASHES, new_figure
from knotflow.report.torsion_plots import torsion_image
from knotflow.statistics.estimates import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS: Final = 72
"""Bins of each torsion in a map: 5 degrees."""
DEPTH: Final = 8.0
"""Range of the colours of free energies, in kT."""
FAR: Final = 4.0
"""Range of the colours of deviations, in error bars."""
EMPTY: Final = "0.93"
"""The grey of bins without a value."""


@dataclass(frozen=True)
class SampleSet:
    """Samples of a molecule."""

    name: str
    energy: Floats
    """In kT, shape (n,)."""
    angles: Floats | None = None
    """(phi, psi) in rad, shape (n, 2); None if the molecule has none."""


def draw_comparison(first: SampleSet, second: SampleSet, deviations: Floats | None = None) -> Figure:
    """Draw free energies of (phi, psi) of both, their deviation, and both distributions of energies.

    Args:
        first: The reference.
        second: The samples to compare with it.
        deviations: Deviations of the shares of samples in coarse bins of (phi, psi), in error bars, shape
            (bins, bins), indexed ``[phi, psi]``; NaN where samples are too few. Left out without angles.

    Raises:
        ValueError: if one has angles and the other has not.
    """
    if (first.angles is None) != (second.angles is None):
        raise ValueError("either both sets of samples need (phi, psi), or none of them.")
    if first.angles is None or second.angles is None:
        figure = new_figure(4.6, 3.4)
        _draw_energies(figure.subplots(), first, second)
        return figure
    figure = new_figure(9.2, 7.6)
    axes = figure.subplots(2, 2)
    for axis, samples, angles in ((axes[0, 0], first, first.angles), (axes[0, 1], second, second.angles)):
        free = free_energies(torus_bins(angles, BINS), BINS)
        free = np.where(np.isfinite(free), free - free.min(), math.nan)
        image = torsion_image(axis, free, background=EMPTY, cmap="viridis", vmin=0.0, vmax=DEPTH)
        axis.set_title(f"{samples.name}: free energy", fontsize=10)
        figure.colorbar(image, ax=axis, label="kT", extend="max")
    if deviations is None:
        axes[1, 0].set_axis_off()
    else:
        image = torsion_image(axes[1, 0], deviations, background=EMPTY, cmap="RdBu_r", vmin=-FAR, vmax=FAR)
        _write_numbers(axes[1, 0], deviations)
        axes[1, 0].set_title(f"{second.name} - {first.name}, in error bars", fontsize=10)
        figure.colorbar(image, ax=axes[1, 0], label="error bars", extend="both")
    _draw_energies(axes[1, 1], first, second)
    return figure


def _write_numbers(axis: Axes, values: Floats) -> None:
    bins = len(values)
    for (i, j), value in np.ndenumerate(values):
        if math.isfinite(value):
            x, y = (-180 + (k + 0.5) * 360 / bins for k in (i, j))
            color = "white" if abs(value) > 0.6 * FAR else "black"
            axis.text(x, y, f"{value:.1f}", ha="center", va="center", fontsize=8, color=color)


def _draw_energies(axis: Axes, first: SampleSet, second: SampleSet) -> None:
    both = np.concatenate((first.energy, second.energy))
    low, high = np.quantile(both, (0.0005, 0.9995)).tolist()
    edges = np.linspace(low, high, 61)
    for number, samples in enumerate((first, second)):
        # Shares of all samples, including those beyond the edges.
        shares = np.histogram(samples.energy, edges)[0] / (len(samples.energy) * np.diff(edges))
        axis.stairs(shares, edges, color=COLORS[number], linestyle=DASHES[number], label=samples.name)
    axis.set_title("energies", fontsize=10)
    axis.set(xlabel="U, kT", ylabel="density")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
