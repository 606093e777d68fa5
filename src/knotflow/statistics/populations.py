r"""Populations of states and the free energies between them, with error bars.

A state is a set of rows; states may overlap and need not cover all rows. With weights $w$, state $i$ has the
population $p_i = \sum_{r \in i} w_r / \sum_r w_r$, and $F_j - F_i = \log(p_i / p_j)$ in kT. Errors are by the
bootstrap, over samples or over blocks of a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from knotflow.statistics.autocorrelation import autocorrelation_time, stretches, table_of_chains
from knotflow.statistics.estimates import FEWEST_BLOCKS, Estimate, Floats, Rows, blocks, bootstrap

Bools = NDArray[np.bool_]

FEWEST_VISITS: Final = 3
"""Visits below which the population of a state has no error bar: of three, 5 % of repeats have none."""


@dataclass(frozen=True)
class Populations:
    """Populations of states, numbered from 0, and the free energies between all pairs."""

    shares: tuple[Estimate, ...]
    """From 0 to 1; NaN without any weight. No error if the state, or what is outside of it, is visited too
    rarely for one."""
    differences: dict[tuple[int, int], Estimate]
    """$F_j - F_i$ in kT for i < j; infinite if one is never visited, NaN if both are not. No error if one of
    them is visited too rarely."""


def of_samples(members: Bools, weight: Floats | None = None, *, seed: int = 0) -> Populations:
    r"""Populations in independent samples.

    A sample with most of the weight of its state counts as one, however many others are there: there is no
    error (NaN) unless the effective number $(\sum w)^2 / \sum w^2$ is `FEWEST_VISITS`.

    Args:
        members: Whether each sample is in each state, shape ``(n, states)``.
        weight: Weight of each sample; equal by default.
        seed: Seed of the bootstrap.
    """
    w = np.ones(len(members)) if weight is None else weight

    def visits(inside: Bools) -> float:
        squares = float((w[inside] ** 2).sum())
        return float(w[inside].sum()) ** 2 / squares if squares > 0 else 0.0

    sums = np.column_stack((members * w[:, None], w))
    return _populations(members, sums, visits, lambda _: 0.0, seed)


def of_frames(members: Bools, replica: ArrayLike, *, block: Rows | None = None, seed: int = 0) -> Populations:
    r"""Populations in frames of a simulation, which are correlated.

    The error is that of the bootstrap over blocks. With few replicas, blocks are pieces of them and may be
    shorter than a visit. So the error is then at least that of a chain with the autocorrelation time $\tau$
    of the state: for a share $p$ of n frames, $\sqrt{\tau p (1 - p) / n}$.

    One long visit says as little as a short one, however many frames it lasts. So there is no error (NaN)
    unless there are `FEWEST_VISITS` visits, in as many blocks.

    Args:
        members: Whether each frame is in each state, shape ``(n, states)``; rows of a replica in the order of
            time.
        replica: The independent simulation of each row.
        block: The block of each row; those of `knotflow.statistics.estimates.blocks` by default.
        seed: Seed of the bootstrap.
    """
    replica, block = np.asarray(replica), blocks(replica) if block is None else block
    few = len(np.unique(replica)) < FEWEST_BLOCKS

    def visits(inside: Bools) -> float:
        return min(stretches(inside, replica), len(np.unique(block[inside])))

    def least_error(influence: Floats) -> float:
        if not few:
            return 0.0
        tau = autocorrelation_time(table_of_chains(influence, replica))
        return math.sqrt(tau * float(influence.var()) / len(influence))

    columns = np.column_stack((members, np.ones(len(members))))
    sums: Floats = np.stack([np.bincount(block, column) for column in columns.T], 1).astype(np.float64)
    return _populations(members, sums, visits, least_error, seed)


def _populations(
    members: Bools,
    sums: Floats,
    visits: Callable[[Bools], float],
    least_error: Callable[[Floats], float],
    seed: int,
) -> Populations:
    """Populations from the weights of each block in each state, and in all, shape ``(blocks, states + 1)``.

    Args:
        members: Whether each row is in each state.
        sums: The weights.
        visits: The number of independent visits of a state.
        least_error: The least standard error of the mean of a column.
        seed: Seed of the bootstrap.
    """
    n = members.shape[1]
    pairs = list(combinations(range(n), 2))
    left, right = [i for i, _ in pairs], [j for _, j in pairs]

    def statistic(rows: Rows) -> Floats:
        total = np.bincount(rows, minlength=len(sums)) @ sums  # faster than a sum of chosen rows
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.concatenate((total[:n] / total[n], np.log(total[left] / total[right])))

    values, errors = statistic(np.arange(len(sums))), bootstrap(statistic, np.arange(len(sums)), seed=seed)
    inside, outside = ([visits(column) for column in part.T] for part in (members, ~members))

    def estimate(place: int, least_visits: float, influence: Floats) -> Estimate:
        value, error = float(values[place]), math.nan
        if math.isfinite(value) and least_visits >= FEWEST_VISITS:
            error = max(float(errors[place]), least_error(influence))
        return Estimate(value, error)

    share = members.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_share = share / share.mean(0)  # the influence of each row on the logarithm, up to a constant
    return Populations(
        tuple(estimate(i, min(inside[i], outside[i]), share[:, i]) for i in range(n)),
        {
            (i, j): estimate(n + k, min(inside[i], inside[j]), log_share[:, i] - log_share[:, j])
            for k, (i, j) in enumerate(pairs)
        },
    )
