r"""Numbers with error bars, by linearisation or by the bootstrap.

**Linearisation** (the infinitesimal jackknife). Each row of data changes a smooth estimate $\theta$ by its
influence $\psi_i$, so $\mathrm{var}\,\theta \approx \sum_i \psi_i^2$ for independent rows. **Bootstrap.**
Rows are drawn with replacement and the estimate is repeated; its spread is the error.

Frames of a simulation are not independent, but whole replicas are. So the unit is a block: a replica, or a
long piece of one if there are few. Errors are reliable if blocks are longer than the memory of the dynamics.
The spread of a few blocks is itself uncertain, so errors from few blocks are larger by Student's factor
(`student`): 1.96 of them hold the truth in 95 of 100 cases, however few the blocks are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
"""Row numbers, or the block number of each row."""

FEWEST_BLOCKS: Final = 10
"""With fewer replicas than this, each is cut into pieces."""
REPEATS: Final = 200
"""Repeats of the bootstrap: error bars are then known to 5 %."""
NORMAL: Final = 1.959964
"""Standard deviations of a normal distribution that hold 95 % of it."""
FINITE: Final = 0.95
"""Share of the repeats that must be finite for an error bar."""


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error; NaN if unknown."""

    value: float
    error: float = math.nan

    @classmethod
    def read(cls, plain: Mapping[str, Any], value: str = "value", error: str = "error") -> Estimate:
        """Read the numbers under these keys of a JSON object; a missing or null number is NaN."""
        found = (plain.get(key) for key in (value, error))
        return Estimate(*(math.nan if number is None else float(number) for number in found))

    def __mul__(self, factor: float) -> Estimate:
        return Estimate(self.value * factor, self.error * abs(factor))

    def __sub__(self, other: Estimate) -> Estimate:
        """Difference of independent numbers."""
        return Estimate(self.value - other.value, math.hypot(self.error, other.error))

    def __str__(self) -> str:
        """Two digits of the error, or four digits of a value without error; a dash for NaN."""
        value, error = self.value, self.error
        if math.isnan(value):
            return "–"
        if not (math.isfinite(value) and math.isfinite(error) and error > 0):
            return f"{value:,.0f}" if value % 1 == 0 and abs(value) < 1e9 else f"{value:.4g}"
        digits, power = 1 - math.floor(math.log10(error)), 0
        if digits > 4 or max(abs(value), error) >= 1e6:
            power = math.floor(math.log10(max(abs(value), error)))
        form = f".{max(0, digits + power)}f"
        text = f"{value / 10**power:{form}} ± {error / 10**power:{form}}"
        return f"({text})e{power}" if power else text


def blocks(replica: ArrayLike) -> Rows:
    """The block of each row: its replica, or a piece of it, numbered from 0.

    With fewer than `FEWEST_BLOCKS` replicas, each is cut into equal pieces in order, so that there are at
    least that many blocks (if there are as many rows).

    Args:
        replica: The independent simulation that each row belongs to, shape ``(n,)``.
    """
    _, place, counts = np.unique(np.asarray(replica), return_inverse=True, return_counts=True)
    if len(counts) >= FEWEST_BLOCKS or len(counts) == 0:
        return place
    pieces = math.ceil(FEWEST_BLOCKS / len(counts))
    label = np.empty(len(place), dtype=np.intp)
    for number, count in enumerate(counts):
        label[place == number] = number * pieces + np.arange(count) * pieces // count
    return np.unique(label, return_inverse=True)[1]


def student(n: int) -> float:
    r"""Factor of a standard error from the spread of n blocks: the 97.5 % quantile of Student's t, over 1.96.

    With $z = 1.96$ and $\nu = n - 1$ it is the expansion of Fisher and Cornish,

    $$1 + \frac{z^2 + 1}{4\nu} + \frac{5z^4 + 16z^2 + 3}{96\nu^2}
      + \frac{3z^6 + 19z^4 + 17z^2 - 15}{384\nu^3},$$

    to 3 % for three blocks and far better for more; for two blocks it is exact. NaN for fewer.
    """
    if n < 3:
        return math.tan(0.475 * math.pi) / NORMAL if n == 2 else math.nan
    v, s = n - 1, NORMAL**2
    return (
        1
        + (s + 1) / (4 * v)
        + (5 * s**2 + 16 * s + 3) / (96 * v**2)
        + (3 * s**3 + 19 * s**2 + 17 * s - 15) / (384 * v**3)
    )


def spread(influence: Floats, block: Rows | None = None) -> float:
    r"""Standard error from influences $\psi_i$: $\sqrt{\sum_b (\sum_{i \in b} \psi_i)^2}$.

    The variance of $B$ blocks is corrected by $B/(B - 1)$, and the error by `student`; with fewer than two it
    is NaN.

    Args:
        influence: First-order change of the estimate with each row, shape ``(n,)``, of sum zero.
        block: The block of each row, for rows that are not independent.
    """
    sums = influence if block is None else np.bincount(block, influence)
    n = len(sums)
    return student(n) * math.sqrt(float((sums**2).sum()) * n / (n - 1)) if n > 1 else math.nan


def mean(values: Floats, block: Rows | None = None) -> Estimate:
    """Mean of values of shape ``(n,)``; NaN if there are none."""
    if len(values) == 0:
        return Estimate(math.nan)
    average = float(values.mean())
    return Estimate(average, spread((values - average) / len(values), block))


def over_replicas(values: Floats, replica: ArrayLike) -> Estimate:
    """Mean of values of shape ``(n,)``, with an error from the spread of whole replicas.

    Replicas are independent, however correlated the frames inside them are. So the error is reliable if there
    are several and each is long enough to have forgotten its start. It is NaN for a single replica.
    """
    return mean(values, np.unique(np.asarray(replica), return_inverse=True)[1])


def share_interval(count: float, n: int, errors: float) -> tuple[float, float]:
    r"""The shares p that explain ``count`` of n independent events within some standard errors.

    These are the p with $(p - \hat p)^2 \le z^2 p(1 - p)/n$, an interval that has a length even if none or
    all of the events happened (Wilson, JASA 22, 1927).
    """
    z, p = errors**2 / n, count / n
    half = math.sqrt(z * p * (1 - p) + z**2 / 4)
    return max(0.0, (p + z / 2 - half) / (1 + z)), min(1.0, (p + z / 2 + half) / (1 + z))


def bootstrap(
    statistic: Callable[..., ArrayLike], *labels: Rows, seed: int = 0, repeats: int = REPEATS
) -> Floats:
    """Standard errors of a statistic of one or more sets of rows, each resampled independently.

    Args:
        statistic: Takes an array of row numbers for each set and returns one or more numbers.
        *labels: For each set, the block of each row; ``np.arange(n)`` for independent rows.
        seed: Seed of the random numbers.
        repeats: Number of resamplings.

    Returns:
        Standard deviations over the repeats, corrected for few blocks as those of `spread` are, in the shape
        of the statistic; NaN where less than `FINITE` of the repeats are finite.
    """
    random = np.random.default_rng(seed)
    draws = [_resampler(label) for label in labels]
    values = np.array([statistic(*(draw(random) for draw in draws)) for _ in range(repeats)], dtype=float)
    finite = np.isfinite(values)
    fewest = min(len(np.unique(label)) for label in labels)
    known = (fewest > 1) & (finite.sum(0) >= max(2, FINITE * repeats))
    found = np.ma.masked_array(values, ~finite).std(axis=0, ddof=1)
    if fewest > 1:
        found = found * student(fewest) * math.sqrt(fewest / (fewest - 1))
    return np.where(known, np.ma.filled(found, np.nan), np.nan)


def _resampler(label: Rows) -> Callable[[np.random.Generator], Rows]:
    """A function that draws as many blocks as there are, with replacement, and returns their rows."""
    _, place, counts = np.unique(label, return_inverse=True, return_counts=True)
    n = len(counts)
    if n == len(label):
        return lambda random: random.integers(n, size=n)
    members: list[Any] = np.split(np.argsort(place, kind="stable"), np.cumsum(counts)[:-1])
    return lambda random: np.concatenate([members[k] for k in random.integers(n, size=n)])
