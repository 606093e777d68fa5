"""Pictures of the distributions of energies and internal coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from knotflow.analysis.free_energy_profiles import Marginal, bins_for
from knotflow.report.figures import FLOW, MD, STYLES, finish, new_figure, titled_axis
from knotflow.statistics.estimates import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENERGY_BINS: Final = (15, 60)
"""Fewest and most bins of a histogram of energies."""


def draw_energy_histograms(
    title: str,
    energies: Mapping[str, tuple[Floats, Floats | None]],
    label: str,
    span: tuple[float, float] | None = None,
) -> Figure:
    """Histograms of energies in kT, by source, some of them weighted; the legend gives the share beyond."""
    figure, axis = titled_axis(title)
    low, high = span or energy_span(*(u for u, _ in energies.values()))
    bins = bins_for(min(len(u) for u, _ in energies.values()), *ENERGY_BINS)
    edges = np.linspace(low, high, bins + 1)
    for name, (u, weight) in energies.items():
        weight = np.ones(len(u)) if weight is None else weight
        known = np.isfinite(u)
        counts = np.histogram(u[known], edges, weights=weight[known])[0]
        total = float(weight.sum())
        if total > 0:
            beyond = 1 - float(counts.sum()) / total
            text = f"{name}, {beyond:.0%} beyond".replace("%", " %") if beyond >= 0.005 else name
            axis.stairs(counts / total / np.diff(edges), edges, label=text, baseline=None, **STYLES[name])
    axis.margins(y=0.25)  # room for the legend
    axis.set_ylim(bottom=0)
    axis.set(xlabel=label, ylabel="density, 1/kT", xlim=(low, high))
    finish(axis)
    return figure


def energy_span(*energies: Floats) -> tuple[float, float]:
    """The range from the lowest energy to well above the bulk of the first set, the reference."""
    finite = [u[np.isfinite(u)] for u in energies if np.isfinite(u).any()]
    if not finite:
        return 0.0, 1.0
    lowest = min(float(np.quantile(u, 0.001)) for u in finite)
    middle, high = np.quantile(finite[0], (0.5, 0.75))
    return lowest - 1, float(max(middle + 8 * (high - middle), lowest + 1))


def draw_marginal(marginal: Marginal) -> Figure:
    """Densities of one coordinate in data and samples as a small picture, without a scale of the density."""
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
