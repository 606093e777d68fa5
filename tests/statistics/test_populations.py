"""Populations of states, and the free energies between them, have the errors of closed forms."""

import math

import numpy as np
import pytest

from knotflow.statistics.populations import FEWEST_VISITS, of_frames, of_samples

SHARES = np.array([0.6, 0.3, 0.1])


def drawn(n: int, seed: int = 0) -> np.ndarray:
    """Members (n, 3) of states with the populations `SHARES`."""
    return np.random.default_rng(seed).choice(3, n, p=SHARES)[:, None] == np.arange(3)


def telegraph(n: int, replicas: int, stay: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The same, drawn anew at each step with probability 1 - stay; and replicas."""
    random = np.random.default_rng(seed)
    x = random.choice(3, (n, replicas), p=SHARES)
    for row in range(1, n):
        kept = random.random(replicas) < stay
        x[row, kept] = x[row - 1, kept]
    return x.T.reshape(-1, 1) == np.arange(3), np.repeat(np.arange(replicas), n)


def test_samples_of_equal_weight_are_bernoulli() -> None:
    n = 4000
    members = drawn(n)
    found, p = of_samples(members), members.mean(0)
    for i in range(3):
        assert found.shares[i].value == pytest.approx(p[i])
        assert found.shares[i].error == pytest.approx(math.sqrt(p[i] * (1 - p[i]) / n), rel=0.15)
    for (i, j), difference in found.differences.items():
        assert difference.value == pytest.approx(math.log(p[i] / p[j]))
        # Of two exclusive states the errors of log p add to 1/p_i + 1/p_j.
        assert difference.error == pytest.approx(math.sqrt((1 / p[i] + 1 / p[j]) / n), rel=0.15)
    assert found == of_samples(members, np.full(n, 0.25))


def test_weighted_samples_have_the_error_of_a_ratio() -> None:
    members, w = drawn(4000), np.random.default_rng(1).lognormal(0, 1, 4000)
    found, total = of_samples(members, w), w.sum()
    sums = (members * w[:, None]).sum(0)
    for i in range(3):
        error = math.sqrt((w**2 * (members[:, i] - sums[i] / total) ** 2).sum()) / total
        assert found.shares[i].value == pytest.approx(sums[i] / total)
        assert found.shares[i].error == pytest.approx(error, rel=0.15)
    for (i, j), difference in found.differences.items():
        influence = w * (members[:, i] / sums[i] - members[:, j] / sums[j])
        assert difference.value == pytest.approx(math.log(sums[i] / sums[j]))
        assert difference.error == pytest.approx(math.sqrt((influence**2).sum()), rel=0.15)


@pytest.mark.parametrize("replicas", [2, 20])
def test_frames_have_the_error_of_a_correlated_chain(replicas: int) -> None:
    """A chain that stays with probability s has the autocorrelation time (1 + s)/(1 - s)."""
    stay, n = 0.9, 40_000
    tau = (1 + stay) / (1 - stay)
    found = [of_frames(*telegraph(n // replicas, replicas, stay, seed)) for seed in range(6)]
    for i, p in enumerate(SHARES):
        shares = [one.shares[i] for one in found]
        assert np.mean([s.error for s in shares]) == pytest.approx(math.sqrt(tau * p * (1 - p) / n), rel=0.3)
        assert math.sqrt(np.mean([((s.value - p) / s.error) ** 2 for s in shares])) < 2.2
    for i, j in ((0, 1), (0, 2), (1, 2)):
        error = math.sqrt(tau * (1 / SHARES[i] + 1 / SHARES[j]) / n)
        assert np.mean([one.differences[i, j].error for one in found]) == pytest.approx(error, rel=0.3)


def test_states_may_overlap() -> None:
    """The difference between a state and itself is exactly zero, that to everything is -log p."""
    members = drawn(1000)
    both = np.column_stack((members[:, 0], members[:, 0], np.ones(1000, dtype=bool)))
    found = of_samples(both)
    assert (found.differences[0, 1].value, found.differences[0, 1].error) == (0, 0)
    p = members[:, 0].mean()
    assert found.differences[0, 2].value == pytest.approx(math.log(p))
    assert found.differences[0, 2].error == pytest.approx(math.sqrt((1 - p) / p / 1000), rel=0.15)
    assert found.shares[2].value == 1 and math.isnan(found.shares[2].error)  # nothing is outside


def test_what_is_visited_too_rarely_has_no_error() -> None:
    members = np.zeros((600, 2), dtype=bool)
    members[:, 0] = True
    for visits in (0, FEWEST_VISITS - 1, FEWEST_VISITS):
        members[: 60 * visits : 60] = (False, True)
        for found in (of_samples(members), of_frames(members, np.repeat(np.arange(20), 30))):
            assert found.shares[1].value == pytest.approx(visits / 600)
            assert math.isfinite(found.shares[1].error) == (visits == FEWEST_VISITS)
            assert math.isfinite(found.differences[0, 1].error) == (visits == FEWEST_VISITS)
            assert visits or found.differences[0, 1].value == math.inf
    heavy = np.ones(600)
    heavy[0] = 1e6
    assert math.isnan(of_samples(members, heavy).shares[1].error)
    nothing = of_samples(members, np.zeros(600))
    assert math.isnan(nothing.shares[0].value) and math.isnan(nothing.differences[0, 1].value)
