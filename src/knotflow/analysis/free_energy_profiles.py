r"""Free energies along torsions with error bars, and densities of single coordinates.

$F = -\log p$ in kT, with the density $p$ of an angle in 1/rad, estimated by a histogram. Profiles are not
shifted, so those of data and samples can be compared. Errors are by the bootstrap: over blocks for data, over
samples for samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from knotflow.analysis.distances import torus_bins
from knotflow.statistics.estimates import Floats, Rows, bootstrap

BINS: Final = 60
"""Bins of one torsion: 6 degrees each."""
SURFACE_BINS: Final = 36
"""Bins of each of two torsions: 10 degrees."""
REPEATS: Final = 100
"""Repeats of the bootstrap: errors are then known to 7 %."""
MARGINAL_BINS: Final = (10, 40)
"""Fewest and most bins of a marginal; in between, as many as the smaller set can fill (`bins_for`)."""


@dataclass(frozen=True, eq=False)
class Profile:
    """A free energy on the midpoints of equal bins of one angle or two; NaN if unknown."""

    value: Floats
    """In kT, shape ``(bins,)`` or ``(bins, bins)``."""
    error: Floats
    """Standard error, of the same shape; NaN where a bin is visited too rarely for one."""

    @property
    def middle(self) -> Floats:
        """The midpoints along each angle, in rad."""
        return midpoints(len(self.value))


def midpoints(bins: int) -> Floats:
    """Midpoints of equal bins from -π to π."""
    edges = np.linspace(-np.pi, np.pi, bins + 1)
    points: Floats = (edges[:-1] + edges[1:]) / 2
    return points


def profile(
    angles: Floats,
    weight: Floats | None = None,
    block: Rows | None = None,
    *,
    bins: int | None = None,
    seed: int = 0,
) -> Profile:
    r"""$F = -\log p$ along one angle or two.

    Args:
        angles: In rad, any period, shape ``(n,)`` or ``(n, k)`` with k of 1 or 2. Rows that are not finite
            are ignored.
        weight: Weight of each row; equal by default.
        block: The block of each row, if rows are not independent.
        bins: Bins along each angle; by default `BINS` or `SURFACE_BINS`.
        seed: Seed of the bootstrap.
    """
    angles = angles[:, None] if angles.ndim == 1 else angles
    weight = np.ones(len(angles)) if weight is None else weight
    block = np.arange(len(angles)) if block is None else block
    finite = np.isfinite(angles).all(1)
    angles, weight, block = angles[finite], weight[finite], block[finite]
    bins = bins or (BINS if angles.shape[1] == 1 else SURFACE_BINS)
    place = torus_bins(angles, bins)

    def statistic(rows: Rows) -> Floats:
        return free_energies(place[rows], bins, weight[rows])

    value = statistic(np.arange(len(place)))
    error = bootstrap(statistic, block, seed=seed, repeats=REPEATS) if len(place) else value * np.nan
    return Profile(np.where(np.isfinite(value), value, np.nan), error)


def free_energies(place: Rows, bins: int, weight: Floats | None = None) -> Floats:
    r"""$-\log p$ in kT on bins of one angle or two, shape ``(bins,)`` or ``(bins, bins)``.

    Infinite where no row is.

    Args:
        place: Bin numbers (`knotflow.analysis.distances.torus_bins`) of rows, shape ``(n, k)``.
        bins: Bins along each angle.
        weight: Weight of each row; equal by default.
    """
    k = place.shape[1]
    shares = np.bincount(place @ (bins ** np.arange(k)[::-1]), weight, minlength=bins**k)
    with np.errstate(divide="ignore", invalid="ignore"):
        free: Floats = -np.log(shares / shares.sum() * (bins / (2 * np.pi)) ** k)
    return free.reshape((bins,) * k)


@dataclass(frozen=True, eq=False)
class Marginal:
    """Densities of one internal coordinate in data and in samples, in 1/nm or 1/rad."""

    name: str
    edges: Floats
    """Edges of the bins, shape ``(bins + 1,)``."""
    data: Floats | None
    samples: Floats
    reweighted: Floats

    @property
    def difference(self) -> float:
        """Total variation between data and samples, from 0 to 1; NaN without data."""
        if self.data is None:
            return float("nan")
        return float(np.abs(self.data - self.samples) @ np.diff(self.edges) / 2)


def marginal(
    name: str, data: Floats | None, samples: Floats, weight: Floats, *, turns: bool = False
) -> Marginal:
    """Densities of one coordinate, on bins that hold nearly all data and samples.

    Args:
        name: Name of the coordinate.
        data: Values in data, shape ``(n,)``, or None.
        samples: Values in samples, shape ``(m,)``.
        weight: Weights of the samples.
        turns: Whether it is an angle from -π to π, so that bins end there.
    """
    known = np.isfinite(samples)
    samples, weight = samples[known], weight[known]
    # A few samples may be far out; they are counted in the outermost bins.
    tails = [(data, 0.0005), (samples, 0.01)]
    ends = [np.quantile(part, (p, 1 - p)) for part, p in tails if part is not None and len(part)]
    low, high = (min(e[0] for e in ends), max(e[1] for e in ends)) if ends else (0.0, 1.0)
    margin = 0.08 * (high - low) or 0.5
    low, high = low - margin, high + margin
    if turns:
        low, high = max(low, -np.pi), min(high, np.pi)
    bins = bins_for(min(len(part) for part in (data, samples) if part is not None), *MARGINAL_BINS)
    edges = np.linspace(low, high, bins + 1)
    return Marginal(
        name,
        edges,
        None if data is None else _density(data, edges),
        _density(samples, edges),
        _density(samples, edges, weight),
    )


def bins_for(n: int, fewest: int, most: int) -> int:
    r"""Number of bins that n values can fill, $2 n^{1/3}$ (Rice's rule), within limits."""
    return int(np.clip(2 * np.cbrt(n), fewest, most))


def _density(values: Floats, edges: Floats, weight: Floats | None = None) -> Floats:
    inside = values.clip(edges[0], edges[-1])
    counts = np.histogram(inside, edges, weights=weight)[0].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        density: Floats = counts / counts.sum() / np.diff(edges)
    return density
