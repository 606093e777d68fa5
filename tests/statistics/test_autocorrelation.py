"""Autocorrelation times of series for which they are known."""

import math

import numpy as np
import pytest
from arviz_stats.base import array_stats

from knotflow.statistics.autocorrelation import (
    autocorrelation,
    autocorrelation_time,
    stretches,
    table_of_chains,
)


def autoregressive(memory: float, n: int, chains: int, seed: int = 0) -> np.ndarray:
    """x ← memory x + noise, stationary: its autocorrelations are powers of the memory."""
    random = np.random.default_rng(seed)
    x = np.empty((n, chains))
    x[0] = random.standard_normal(chains)
    for i in range(1, n):
        x[i] = memory * x[i - 1] + math.sqrt(1 - memory**2) * random.standard_normal(chains)
    return x


@pytest.mark.parametrize("memory", [-0.5, 0.0, 0.5, 0.9, 0.97])
def test_known_times(memory: float) -> None:
    x = autoregressive(memory, 4000, 32)
    assert autocorrelation_time(x) == pytest.approx((1 + memory) / (1 - memory), rel=0.06, abs=0.05)
    np.testing.assert_allclose(autocorrelation(x)[:5], memory ** np.arange(5), atol=0.05)


def test_agrees_with_arviz() -> None:
    x = autoregressive(0.9, 4000, 8, seed=1)
    theirs = x.size / array_stats.ess(x.T, chain_axis=0, draw_axis=1, method="mean")
    assert autocorrelation_time(x) == pytest.approx(theirs, rel=0.15)


def test_agrees_with_plain_sums() -> None:
    x = autoregressive(0.7, 50, 1)[:, 0]
    d = x - x.mean()
    plain = [sum(d[i] * d[i + t] for i in range(50 - t)) / sum(d * d) for t in range(50)]
    np.testing.assert_allclose(autocorrelation(x), plain, atol=1e-12)


def test_chains_that_never_meet_are_correlated_for_long() -> None:
    x = autoregressive(0.0, 1000, 4)
    x[:, :2] += 10
    assert autocorrelation_time(x) > 100


def test_what_cannot_be_told() -> None:
    assert autocorrelation_time(np.ones((10, 3))) == math.inf
    assert math.isnan(autocorrelation_time(np.ones(1)))
    assert math.isnan(autocorrelation_time(np.array([1.0, math.nan, 2.0])))
    with pytest.raises(ValueError, match=r"\(n,\) or \(n, chains\)"):
        autocorrelation_time(np.ones((2, 2, 2)))


def test_visits_are_stretches_of_a_chain() -> None:
    inside = np.array([1, 1, 0, 1, 1, 0, 0, 1], dtype=bool)
    assert stretches(inside, np.zeros(8)) == 3
    assert stretches(inside, [0, 0, 0, 0, 1, 1, 1, 1]) == 4
    # Chains take turns in the rows, as in files: 1 0 1 0 and 1 1 0 1.
    assert stretches(inside, [5, 3] * 4) == 4
    assert stretches(~inside, np.zeros(8)) == 2 and stretches(np.zeros(8), np.zeros(8)) == 0


def test_chains_are_cut_to_the_shortest() -> None:
    table = table_of_chains([1, 10, 2, 20, 3, 30, 40], [0, 7, 0, 7, 0, 7, 7])
    assert table.tolist() == [[1, 10], [2, 20], [3, 30]]
