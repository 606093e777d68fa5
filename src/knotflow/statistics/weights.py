r"""Importance weights of samples: effective sample size, Pareto k, clipping and resampling.

A sample $x$ of the density $p$ represents the target $e^{-u}/Z$ with the weight $W = e^{-u(x)}/p(x)$. All
functions take $\log W$, shape ``(n,)``, float64; $-\infty$ is a weight of zero, and such samples still count
in $n$. Unless the docstring says otherwise, adding a constant to all $\log W$ does not change the result.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from knotflow.extras import optional
from knotflow.statistics.estimates import Floats, Rows

CUT: Final = 1e-4
"""Share of the samples whose weights `clipped` cuts."""
FEWEST: Final = 25
"""Samples needed to fit a Pareto distribution, which uses the largest fifth of their weights."""


def log_weights(log_prob: ArrayLike, energy: ArrayLike, allowed: ArrayLike = True) -> Floats:
    r"""$\log W = -u - \log p$, and $-\infty$ for samples that are not allowed or not finite.

    Args:
        log_prob: $\log p$ of the samples, shape ``(n,)``.
        energy: Their reduced energies $u$.
        allowed: Whether the target has density there; false for the wrong handedness, for example.
    """
    with np.errstate(invalid="ignore"):
        log_w = -np.asarray(energy, dtype=np.float64) - np.asarray(log_prob, dtype=np.float64)
    return np.where(np.isfinite(log_w) & np.asarray(allowed, dtype=bool), log_w, -np.inf)


def log_mean_exp(log_w: Floats) -> float:
    r"""$\log \frac1n \sum W$, an estimate of $\log Z$; $-\infty$ if no weight is positive."""
    top = float(log_w.max(initial=-np.inf))
    return top + math.log(float(np.exp(log_w - top).mean())) if math.isfinite(top) else -math.inf


def normalised(log_w: Floats) -> Floats:
    """Weights of sum one; NaN if all are zero."""
    top = log_w.max(initial=-np.inf)
    if not np.isfinite(top):
        return np.full_like(log_w, np.nan)
    w: Floats = np.exp(log_w - top)
    w /= w.sum()
    return w


def effective_share(log_w: Floats) -> float:
    r"""Kish's effective sample size as a share of $n$: $(\sum W)^2 / (n \sum W^2)$, from $1/n$ to 1.

    NaN if all weights are zero. Kish, *Survey Sampling*, 1965.
    """
    running = RunningShare()
    running.add(log_w)
    return running.share


class RunningShare:
    """Effective sample size of weights that come in pieces; infinite and NaN log-weights count as zero."""

    def __init__(self) -> None:
        self.n = 0
        self.not_finite = 0
        """Number of log-weights that were infinite or NaN."""
        self._top, self._sum, self._squares = -math.inf, 0.0, 0.0

    def add(self, log_w: Floats) -> None:
        """Add more weights."""
        finite = log_w[np.isfinite(log_w)]
        self.n += len(log_w)
        self.not_finite += len(log_w) - len(finite)
        if len(finite) == 0:
            return
        top = max(self._top, float(finite.max()))
        shrink, w = math.exp(self._top - top), np.exp(finite - top)
        self._top = top
        self._sum = self._sum * shrink + float(w.sum())
        self._squares = self._squares * shrink**2 + float((w**2).sum())

    @property
    def share(self) -> float:
        """The `effective_share` of all weights so far."""
        return self._sum**2 / (self.n * self._squares) if self._squares else math.nan


def clipped(log_w: Floats, share: float = CUT) -> Floats:
    r"""Log-weights with the $\lceil \text{share} \cdot n \rceil$ largest weights cut down to the next one.

    Clipping keeps a single sample in a region that the flow hardly covers from outweighing all others. The
    price is a bias, which is small as long as the cut weights are a small part of the sum.
    """
    cut = math.ceil(share * len(log_w))
    if cut >= len(log_w):
        return log_w
    next_one = np.partition(log_w, -cut - 1)[-cut - 1] if cut else np.inf
    # If the next one is zero, nearly all weights are, and only the largest carry information.
    return np.minimum(log_w, next_one) if np.isfinite(next_one) else log_w


def pareto_k(log_w: Floats) -> float:
    r"""Shape $\hat k$ of the generalised Pareto distribution that fits the largest weights.

    Moments of the weights exist up to the order $1/k$. Estimates with these weights can be trusted below 0.7;
    above it, not even their error bars can (Vehtari, Simpson, Gelman, Yao, Gabry, JMLR 25, 2024).

    Returns:
        The shape; NaN for fewer than 25 samples or if the largest weights are all equal; infinity if all but
        a few weights vanish beside the largest.
    """
    with optional("weights"):
        from arviz_stats.base import array_stats
    n, top = len(log_w), log_w.max(initial=-np.inf)
    if n < FEWEST or not np.isfinite(top):
        return math.nan
    # The same tail as in the fit, which divides by the first quartile of the excess.
    tail = math.floor(3 * math.sqrt(n)) if n > 225 else n // 5
    ordered = np.exp(np.sort(log_w)[-tail - 1 :] - top)
    if ordered[0] == ordered[-1]:
        return math.nan
    if ordered[int(tail / 4 + 0.5)] == ordered[0]:
        return math.inf
    # Zero weights become the smallest positive number, which does not change the fit.
    shifted = np.maximum(log_w - top, math.log(np.finfo(np.float64).tiny))
    with np.errstate(all="ignore"):
        k = float(array_stats.psislw(-shifted)[1])
    return k if math.isfinite(k) else math.inf


def resampled(log_w: Floats, n: int, random: np.random.Generator) -> Rows:
    """Row numbers of n samples, drawn by their weights (`systematic`).

    Raises:
        ValueError: if all weights are zero.
    """
    if not np.isfinite(log_w).any():
        raise ValueError("all weights are zero, so none of the samples can be drawn.")
    return systematic(normalised(log_w), n, random.random())


def systematic(weight: Floats, n: int, start: float) -> Rows:
    r"""Draw n rows by their weights: row i is drawn $n w_i / \sum w$ times, rounded up or down.

    These are the rows at $(j + \text{start})/n$ of the running sum, j = 0 .. n - 1, in order (Kitagawa 1996;
    low-variance resampling).

    Args:
        weight: Non-negative weights, shape ``(m,)``, at least one of them positive.
        n: Number of rows to draw.
        start: A random number in [0, 1).
    """
    rows = np.flatnonzero(weight)
    sums = np.cumsum(weight[rows])
    places = (np.arange(n) + start) * (sums[-1] / n)
    chosen: Rows = rows[np.searchsorted(sums, places, side="right").clip(max=len(rows) - 1)]
    return chosen
