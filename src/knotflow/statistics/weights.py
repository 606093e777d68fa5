r"""Importance weights of samples: how much each counts for the target, and how many count at all.

A sample $x$ of the density $p$ stands for the target $e^{-u}/Z$ with the weight $W = e^{-u(x)}/p(x)$. All
functions take $\log W$, shape ``(n,)``, float64; $-\infty$ is a weight of zero, and such samples still count
in $n$. None of them changes if a constant is added to all $\log W$, unless its docstring says so.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from knotflow.extras import optional

Floats = NDArray[np.float64]

CUT: Final = 1e-4
"""Share of the samples whose weights `clipped` cuts."""
FEWEST: Final = 25
"""Samples that the fit of a Pareto distribution needs: it takes the largest fifth of their weights."""


def log_weights(log_prob: ArrayLike, energy: ArrayLike, allowed: ArrayLike = True) -> Floats:
    r"""$\log W = -u - \log p$, and $-\infty$ for samples that are not allowed or not finite.

    Args:
        log_prob: $\log p$ of the samples, shape ``(n,)``.
        energy: Their reduced energies $u$.
        allowed: Whether the target has any density there, as for the right handedness.
    """
    with np.errstate(invalid="ignore"):
        log_w = -np.asarray(energy, dtype=np.float64) - np.asarray(log_prob, dtype=np.float64)
    return np.where(np.isfinite(log_w) & np.asarray(allowed, dtype=bool), log_w, -np.inf)


def log_mean_exp(log_w: Floats) -> float:
    r"""$\log \frac1n \sum W$, which for weights estimates $\log Z$; $-\infty$ if all are zero, or none."""
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
    """The effective sample size of weights that come in pieces.

    Weights that are infinite or NaN count as zero.
    """

    def __init__(self) -> None:
        self.n = 0
        self.not_finite = 0
        """How many log-weights were infinite or NaN."""
        self._top, self._sum, self._squares = -math.inf, 0.0, 0.0

    def add(self, log_w: Floats) -> None:
        """Count more weights."""
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
        """As of `effective_share`."""
        return self._sum**2 / (self.n * self._squares) if self._squares else math.nan


def clipped(log_w: Floats, share: float = CUT) -> Floats:
    r"""The same with the $\lceil \text{share} \cdot n \rceil$ largest weights cut down to the next one.

    A single sample in a corner that the flow hardly covers can outweigh all others; after this it does not.
    The price is a bias, which is small as long as the cut weights are a small part of the sum.
    """
    cut = math.ceil(share * len(log_w))
    if cut >= len(log_w):
        return log_w
    next_one = np.partition(log_w, -cut - 1)[-cut - 1] if cut else np.inf
    # Not if it is zero: then nearly all weights are, and the cut ones are all there is.
    return np.minimum(log_w, next_one) if np.isfinite(next_one) else log_w


def pareto_k(log_w: Floats) -> float:
    r"""Shape $\hat k$ of the generalised Pareto distribution that fits the largest weights.

    Moments of the weights exist up to the order $1/k$. Below 0.7 estimates with these weights can be trusted,
    above it not even their error bars (Vehtari, Simpson, Gelman, Yao, Gabry, JMLR 25, 2024).

    Returns:
        The shape; NaN for fewer than 25 samples or if the largest weights are all the same, infinity if all
        but a few weights vanish beside the largest.
    """
    with optional("weights"):
        from arviz_stats.base import array_stats
    n, top = len(log_w), log_w.max(initial=-np.inf)
    if n < FEWEST or not np.isfinite(top):
        return math.nan
    # As many of the largest weights as there; the fit divides by the first quartile of their excess.
    tail = math.floor(3 * math.sqrt(n)) if n > 225 else n // 5
    ordered = np.exp(np.sort(log_w)[-tail - 1 :] - top)
    if ordered[0] == ordered[-1]:
        return math.nan
    if ordered[int(tail / 4 + 0.5)] == ordered[0]:
        return math.inf
    # Zero weights as the smallest that is told from zero; the fit does not notice.
    shifted = np.maximum(log_w - top, math.log(np.finfo(np.float64).tiny))
    with np.errstate(all="ignore"):
        k = float(array_stats.psislw(-shifted)[1])
    return k if math.isfinite(k) else math.inf


def resampled(log_w: Floats, n: int, random: np.random.Generator) -> NDArray[np.intp]:
    """Numbers of n samples, each drawn as often as its weight says, but for rounding: `systematic`.

    Raises:
        ValueError: if all weights are zero.
    """
    if not np.isfinite(log_w).any():
        raise ValueError("all weights are zero, so none of the samples can be drawn.")
    return systematic(normalised(log_w), n, random.random())


def systematic(weight: Floats, n: int, start: float) -> NDArray[np.intp]:
    r"""Rows drawn n times by their weights: row i comes $n w_i / \sum w$ times, rounded up or down.

    They are the rows at $(j + \text{start})/n$ of the running sum, j = 0 .. n - 1, in order (Kitagawa 1996;
    low variance resampling).

    Args:
        weight: Not negative, shape ``(m,)``, some of them positive.
        n: How many rows to draw.
        start: A random number in [0, 1).
    """
    rows = np.flatnonzero(weight)
    sums = np.cumsum(weight[rows])
    places = (np.arange(n) + start) * (sums[-1] / n)
    chosen: NDArray[np.intp] = rows[np.searchsorted(sums, places, side="right").clip(max=len(rows) - 1)]
    return chosen
