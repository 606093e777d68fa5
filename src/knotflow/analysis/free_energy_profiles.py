r"""Free energies along torsions, and densities of single coordinates, with error bars.

With the density $p$ of an angle, estimated by a histogram, $F = -\log p$ in kT, for $p$ in 1/rad. Nothing is
shifted, so that profiles of data and of samples can be compared. Errors are by the bootstrap: of data over
blocks, of samples over samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.distances import torus_bins
from knotflow.statistics.estimates import Rows, bootstrap

Floats = NDArray[np.float64]

BINS: Final = 60
"""Of one torsion: 6 degrees each."""
SURFACE_BINS: Final = 36
"""Of each of two torsions: 10 degrees."""
REPEATS: Final = 100
"""Of the bootstrap: errors are then known to 7 %."""
MARGINAL_BINS: Final = (10, 40)
"""Fewest and most bins of a marginal; between, as many as the smaller set can fill (`bins_for`)."""


@dataclass(frozen=True, eq=False)
class Profile:
    """A free energy on the midpoints of equal bins of one angle or two; NaN where it is not known."""

    value: Floats
    """In kT, shape ``(bins,)`` or ``(bins, bins)``."""
    error: Floats
    """Standard error, of the same shape; NaN where a bin is too rarely visited to tell."""

    @property
    def middle(self) -> Floats:
        """The midpoints along each angle, in rad."""
        return midpoints(len(self.value))


def midpoints(bins: int) -> Floats:
    """Of equal bins from -π to π."""
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
            count as not there.
        weight: Of each row; missing: all the same.
        block: The block of each row, if rows are not independent.
        bins: Along each angle; by default `BINS` or `SURFACE_BINS`.
        seed: Of the bootstrap.
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


def free_energies(place: NDArray[np.intp], bins: int, weight: Floats | None = None) -> Floats:
    r"""$-\log p$ in kT of rows in bins of one angle or two, infinite where there are none.

    Args:
        place: Numbers of bins (`knotflow.analysis.distances.torus_bins`), shape ``(n, k)``.
        bins: Along each angle.
        weight: Of each row; missing: all the same.

    Returns:
        Shape ``(bins,)`` or ``(bins, bins)``.
    """
    k = place.shape[1]
    shares = np.bincount(place @ (bins ** np.arange(k)[::-1]), weight, minlength=bins**k)
    with np.errstate(divide="ignore", invalid="ignore"):
        free: Floats = -np.log(shares / shares.sum() * (bins / (2 * np.pi)) ** k)
    return free.reshape((bins,) * k)


@dataclass(frozen=True, eq=False)
class Marginal:
    """How one internal coordinate is distributed in data and in samples; densities in 1/nm or 1/rad."""

    name: str
    edges: Floats
    """Of the bins, shape ``(bins + 1,)``."""
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
    """Densities of one coordinate, on bins that hold nearly all of data and samples.

    Args:
        name: Of the coordinate.
        data: Values in data, shape ``(n,)``, or None.
        samples: Values in samples, shape ``(m,)``.
        weight: Of the samples.
        turns: Whether it is an angle from -π to π, so that bins end there.
    """
    known = np.isfinite(samples)
    samples, weight = samples[known], weight[known]
    # A few samples may be far out; they are in the outermost bins.
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
    r"""Bins that n values can fill, $2 n^{1/3}$ (Rice's rule), within limits."""
    return int(np.clip(2 * np.cbrt(n), fewest, most))


def _density(values: Floats, edges: Floats, weight: Floats | None = None) -> Floats:
    inside = values.clip(edges[0], edges[-1])
    counts = np.histogram(inside, edges, weights=weight)[0].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        density: Floats = counts / counts.sum() / np.diff(edges)
    return density
