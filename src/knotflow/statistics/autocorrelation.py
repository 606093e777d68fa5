r"""Integrated autocorrelation times of chains of samples.

The mean of $n$ values of a stationary chain with autocorrelations $\rho(t)$ has the variance
$\sigma^2 \tau / n$, with

$$\tau = 1 + 2 \sum_{t=1}^{\infty} \rho(t) .$$

So $\tau$ values are worth one independent value, and $n / \tau$ is the effective number of samples.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from knotflow.statistics.estimates import Floats

WINDOW: Final = 5
"""Autocorrelations are summed up to this multiple of the result."""


def autocorrelation(values: ArrayLike) -> Floats:
    r"""Autocorrelations $\rho(0) = 1, \rho(1), \dots$ of values (n,) or (n, chains), shape (n,).

    Deviations are from the mean over all chains, so chains that never meet stay correlated forever.
    """
    x = _table(values)
    n = len(x)
    x = x - x.mean()
    # Zeros after the values keep the end of a chain from correlating with its beginning.
    spectrum = np.abs(np.fft.rfft(x, 2 * n, axis=0)) ** 2
    covariance: Floats = np.fft.irfft(spectrum, axis=0)[:n].mean(1) / n
    return covariance / covariance[0] if covariance[0] > 0 else np.full(n, math.nan)


def autocorrelation_time(values: ArrayLike) -> float:
    r"""Integrated autocorrelation time $\tau$ of values (n,) or (n, chains), in rows.

    The sum runs up to the first $t \ge 5 \max(1, \tau(t))$, beyond which noise outweighs the rest (Madras &
    Sokal 1988). With fewer than about 20 τ rows the result is too small; error bars from independent chains
    are better then.

    Returns:
        At least 1 for chains that do not alternate; infinity if all values are equal, as in chains that have
        never moved; NaN for fewer than two rows or for values that are not finite.
    """
    x = _table(values)
    if len(x) < 2 or not np.isfinite(x).all():
        return math.nan
    if (x == x[0, 0]).all():
        return math.inf
    tau = 2 * np.cumsum(autocorrelation(x)) - 1
    enough = np.arange(len(tau)) >= WINDOW * np.maximum(tau, 1)
    return float(tau[int(enough.argmax()) if enough.any() else -1])


def table_of_chains(values: ArrayLike, chain: ArrayLike) -> Floats:
    """Values (m,) of several chains as a table (n, chains), each cut to the length of the shortest.

    Args:
        values: One number per row; rows of a chain in order.
        chain: The chain of each row.
    """
    order = np.argsort(np.asarray(chain), kind="stable")
    _, counts = np.unique(np.asarray(chain), return_counts=True)
    x, starts = np.asarray(values, dtype=np.float64)[order], np.cumsum(counts) - counts
    return np.stack([x[start : start + counts.min()] for start in starts], axis=1)


def stretches(inside: ArrayLike, chain: ArrayLike) -> int:
    """Number of visits: stretches of successive rows of a chain for which ``inside`` (m,) holds."""
    order = np.argsort(np.asarray(chain), kind="stable")
    here, of = np.asarray(inside, dtype=bool)[order], np.asarray(chain)[order]
    goes_on = here[1:] & here[:-1] & (of[1:] == of[:-1])
    return int(here.sum() - goes_on.sum())


def _table(values: ArrayLike) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim not in (1, 2):
        raise ValueError(f"values must have shape (n,) or (n, chains), got {x.shape}.")
    return x[:, None] if x.ndim == 1 else x
