"""Distances between samples and data: of energies, of forces, and of torsions on the torus.

All functions take plain arrays. Weights need not be normalised; without weights all rows count equally. If
all weights are zero or NaN, the result is NaN.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.energies.energy import cut
from knotflow.extras import optional
from knotflow.statistics.estimates import Floats, Rows

BINS: Final = 64
"""Bins of each torsion in a histogram."""
PSEUDO_COUNT: Final = 0.01
"""Frames added to each bin of a histogram, so that no logarithm is infinite."""
HEADROOM: Final = 100.0
"""Energies of samples are cut this far above the largest of the data before they are compared, in kT."""


def cut_energy(u: Floats) -> Floats:
    """`knotflow.energies.energy.cut` for arrays."""
    found: Floats = cut(torch.from_numpy(u)).numpy()
    return found


def force_error(a: NDArray[np.floating], b: NDArray[np.floating]) -> Floats:
    """Mean squared difference of forces (n, atoms, 3) over atoms and directions, for each frame: (n,)."""
    square: Floats = ((a.astype(np.float64) - b) ** 2).mean((-2, -1))
    return square


def torus_bins(angles: Floats, bins: int) -> Rows:
    """Bin numbers of angles in rad, of any period and shape, in equal bins from -π to π."""
    place: Rows = np.floor((angles + np.pi) / (2 * np.pi) * bins).astype(np.intp) % bins
    return place


def torus_cells(angles: Floats, bins: int = BINS) -> Rows:
    """The cell of each pair of angles, in rad, (n, 2), among ``bins × bins`` cells of the torus."""
    place = torus_bins(angles, bins)
    return place[:, 0] * bins + place[:, 1]


def histogram(cells: Rows, weight: Floats | None = None, bins: int = BINS) -> Floats:
    """Shares of n pairs of angles in the cells of the torus, of sum one: shape (bins²,).

    Weights are scaled to sum to n; then each cell gets `PSEUDO_COUNT` more.

    Args:
        cells: The cell of each pair, see `torus_cells`, shape ``(n,)``.
        weight: Shape ``(n,)``.
        bins: Number of bins along each angle.
    """
    weight = _scaled(weight, len(cells))
    counts = np.bincount(cells, weight, minlength=bins * bins) + PSEUDO_COUNT
    shares: Floats = counts / counts.sum()
    return shares


def divergence(p: Floats, q: Floats) -> float:
    r"""Kullback-Leibler divergence $\sum p \log p/q$ of shares of sum one, in nats."""
    return float((p * np.log(p / q)).sum())


def total_variation(p: Floats, q: Floats) -> float:
    r"""Total variation $\frac12 \sum |p - q|$, from 0 to 1: the share that would have to move."""
    return float(np.abs(p - q).sum() / 2)


def energy_distance(
    u: Floats, v: Floats, u_weight: Floats | None = None, v_weight: Floats | None = None
) -> float:
    r"""Wasserstein distance in kT of two sets of energies, exact: $W_2^2 = \int_0^1 (F^{-1} - G^{-1})^2$."""
    with optional("distances"):
        import ot
    shares = (_scaled(weight, len(x)) / len(x) for x, weight in ((u, u_weight), (v, v_weight)))
    return _root(float(ot.wasserstein_1d(u, v, *shares, p=2)))


def torus_distance(a: Floats, b: Floats) -> float:
    r"""Wasserstein distance $W_2$ in rad of two sets of points on a torus, angles (n, d) and (m, d).

    The squared distance of two points is the periodic one, $\sum_k \min(|\delta_k|, 2\pi - |\delta_k|)^2$.
    The transport plan is exact, and its time grows faster than $n^2$. Finite sets from the same distribution
    are also apart: compare with the distance between two sets of data.
    """
    with optional("distances"):
        import ot
    delta = np.abs(a[:, None] - b) % (2 * np.pi)
    cost = (np.minimum(delta, 2 * np.pi - delta) ** 2).sum(-1)
    uniform = (np.full(len(points), 1 / len(points)) for points in (a, b))
    return _root(float(ot.emd2(*uniform, cost, numItermax=10_000_000)))


def capped(u: Floats, data: Floats) -> Floats:
    """Energies cut `HEADROOM` above the largest of the data; those that are not finite count as cut."""
    top = float(data.max()) + HEADROOM
    return np.where(np.isfinite(u), np.minimum(u, top), top)


def _scaled(weight: Floats | None, n: int) -> Floats:
    """Weights of sum n; NaN if their sum is not positive."""
    if weight is None:
        return np.ones(n)
    total = weight.sum()
    return weight * (n / total) if total > 0 else np.full(n, np.nan)


def _root(square: float) -> float:
    """Square root of a number that rounding may have made negative."""
    return math.nan if math.isnan(square) else math.sqrt(max(0.0, square))
