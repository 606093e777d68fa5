r"""Numbers with error bars, and the two ways in which error bars are found here.

**Linearisation.** A smooth estimate $\theta$ changes by its influence $\psi_i$ with each row of data (the
infinitesimal jackknife), so that $\mathrm{var}\,\theta \approx \sum_i \psi_i^2$ for independent rows.
**Bootstrap**: rows are drawn with replacement, the estimate is made again, and its spread is the error.

Frames of a simulation are not independent, whole replicas are. So the unit is a block: a replica, or a long
piece of one if there are few. Errors are honest as long as a block is longer than the memory of the dynamics.
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
"""Numbers of rows, or of the blocks they belong to."""

FEWEST_BLOCKS: Final = 10
"""With fewer replicas than this, each is cut into pieces."""
REPEATS: Final = 200
"""Of the bootstrap: error bars are then known to 5 %."""
FINITE: Final = 0.95
"""Share of the repeats that must give a finite number for an error bar."""


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error; NaN where it is not known."""

    value: float
    error: float = math.nan

    @classmethod
    def read(cls, plain: Mapping[str, Any], value: str = "value", error: str = "error") -> Estimate:
        """From what JSON holds under these keys: what is missing or null is NaN."""
        found = (plain.get(key) for key in (value, error))
        return Estimate(*(math.nan if number is None else float(number) for number in found))

    def __mul__(self, factor: float) -> Estimate:
        return Estimate(self.value * factor, self.error * abs(factor))

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of independent numbers."""
        return Estimate(self.value - other.value, math.hypot(self.error, other.error))

    def __str__(self) -> str:
        """Two digits of the error, or four of a value without one; a dash for NaN."""
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
    """The block of each row: its replica, or a piece of one, numbered from 0.

    With fewer than `FEWEST_BLOCKS` replicas, each is cut into so many pieces, equal and in order, that
    there are at least that many blocks, if there are as many rows.

    Args:
        replica: Which of the independent simulations each row belongs to, shape ``(n,)``.
    """
    _, place, counts = np.unique(np.asarray(replica), return_inverse=True, return_counts=True)
    if len(counts) >= FEWEST_BLOCKS or len(counts) == 0:
        return place
    pieces = math.ceil(FEWEST_BLOCKS / len(counts))
    label = np.empty(len(place), dtype=np.intp)
    for number, count in enumerate(counts):
        label[place == number] = number * pieces + np.arange(count) * pieces // count
    return np.unique(label, return_inverse=True)[1]


def spread(influence: Floats, block: Rows | None = None) -> float:
    r"""Standard error that follows from influences $\psi_i$: $\sqrt{\sum_b (\sum_{i \in b} \psi_i)^2}$.

    Args:
        influence: First-order change of the estimate with each row, shape ``(n,)``, of sum zero.
        block: The block of each row, for rows that are not independent.

    Returns:
        The error, with the correction $B/(B - 1)$ of the variance for $B$ blocks; NaN for fewer than two.
    """
    sums = influence if block is None else np.bincount(block, influence)
    n = len(sums)
    return math.sqrt(float((sums**2).sum()) * n / (n - 1)) if n > 1 else math.nan


def mean(values: Floats, block: Rows | None = None) -> Estimate:
    """The mean of values, shape ``(n,)``; NaN without any."""
    if len(values) == 0:
        return Estimate(math.nan)
    average = float(values.mean())
    return Estimate(average, spread((values - average) / len(values), block))


def over_replicas(values: Floats, replica: ArrayLike) -> Estimate:
    """The mean of values, shape ``(n,)``, with an error from the spread of whole replicas.

    Replicas are independent of each other, whatever the correlations inside of them. So the error is honest
    as long as there are several and each is long enough to have forgotten where it started. NaN for one.
    """
    return mean(values, np.unique(np.asarray(replica), return_inverse=True)[1])


def bootstrap(
    statistic: Callable[..., ArrayLike], *labels: Rows, seed: int = 0, repeats: int = REPEATS
) -> Floats:
    """Standard errors of a statistic of one or several sets of rows, each resampled on its own.

    Args:
        statistic: Takes the numbers of the rows to use, an array for each set; gives one number or several.
        *labels: For each set, the block of each row; ``np.arange(n)`` for independent rows.
        seed: Of the random numbers.
        repeats: How often to resample.

    Returns:
        Standard deviations over the repeats, in the shape of the statistic; NaN where fewer than `FINITE` of
        the repeats gave a finite number.
    """
    random = np.random.default_rng(seed)
    draws = [_resampler(label) for label in labels]
    values = np.array([statistic(*(draw(random) for draw in draws)) for _ in range(repeats)], dtype=float)
    finite = np.isfinite(values)
    several = all(len(np.unique(label)) > 1 for label in labels)
    known = several & (finite.sum(0) >= max(2, FINITE * repeats))
    errors = np.full(values.shape[1:], np.nan)
    if np.any(known):
        found = np.ma.masked_array(values, ~finite).std(axis=0, ddof=1)
        errors = np.where(known, np.ma.filled(found, np.nan), np.nan)
    return errors


def _resampler(label: Rows) -> Callable[[np.random.Generator], Rows]:
    """A function that draws blocks with replacement, as many as there are, and gives their rows."""
    _, place, counts = np.unique(label, return_inverse=True, return_counts=True)
    n = len(counts)
    if n == len(label):
        return lambda random: random.integers(n, size=n)
    members: list[Any] = np.split(np.argsort(place, kind="stable"), np.cumsum(counts)[:-1])
    return lambda random: np.concatenate([members[k] for k in random.integers(n, size=n)])
