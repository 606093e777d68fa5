"""log Z and divergences of Gaussians, where all is known, with error bars as wide as the errors are."""

import math

import numpy as np
import pymbar
import pytest
from scipy import optimize, special, stats

from knotflow.analysis.free_energy import (
    bar,
    between,
    forward_kl,
    importance,
    nll_limit,
    reverse_kl,
    side_difference,
    side_of_frames,
    side_of_samples,
)

SCALE, SHIFT, OFFSET = 0.7, 0.6, -150.0
LOG_Z = math.log(SCALE * math.sqrt(2 * math.pi)) - OFFSET
FORWARD = -math.log(SCALE) + (SCALE**2 + SHIFT**2 - 1) / 2
REVERSE = math.log(SCALE) + (1 + SHIFT**2) / (2 * SCALE**2) - 0.5
ENTROPY = 0.5 * math.log(2 * math.pi * math.e * SCALE**2)


def energy(x: np.ndarray) -> np.ndarray:
    return (x - SHIFT) ** 2 / (2 * SCALE**2) + OFFSET


def log_w(x: np.ndarray) -> np.ndarray:
    """Of the flow N(0, 1) for the target N(SHIFT, SCALE²)."""
    return -energy(x) - stats.norm.logpdf(x)


def drawn(seed: int, n: int = 4000, n_data: int = 3000, replicas: int = 30) -> tuple:
    """Samples, data and their blocks; each frame of data comes three times, so they are not independent."""
    random = np.random.default_rng(seed)
    data = SHIFT + SCALE * random.normal(size=n_data // 3)
    return random.normal(size=n), np.repeat(data, 3), np.arange(n_data) * replicas // n_data


def test_all_estimates_are_right_within_their_error_bars() -> None:
    """Deviations from the closed forms, in units of the error, over many trials."""
    z = []
    for seed in range(150):
        x, data, block = drawn(seed)
        w, w_data = log_w(x), log_w(data)
        both, alone = bar(w, w_data), importance(w, len(data))
        found = [
            (both.estimate(block), LOG_Z),
            (alone.estimate(block), LOG_Z),
            (forward_kl(both, w_data, block), FORWARD),
            (forward_kl(alone, w_data, block), FORWARD),
            (reverse_kl(both, w, block), REVERSE),
            (nll_limit(both, energy(data), block), ENTROPY),
        ]
        z.append([(estimate.value - truth) / estimate.error for estimate, truth in found])
    z = np.array(z)
    np.testing.assert_allclose(z.std(0), 1.0, atol=0.2)
    assert (np.abs(z.mean(0)) < 0.35).all()


def test_bar_is_that_of_pymbar_and_of_the_equation() -> None:
    x, data, _ = drawn(0)
    w, w_data = log_w(x), log_w(data)
    found = bar(w, w_data)
    expected = pymbar.bar(-w, w_data)
    assert -found.value == pytest.approx(expected["Delta_f"], abs=1e-8)
    m = math.log(len(x) / len(data))
    root = optimize.brentq(
        lambda F: special.expit(w + F - m).sum() - special.expit(m - w_data - F).sum(), 100 - 400, 0
    )
    assert -found.value == pytest.approx(root, abs=1e-9)
    independent = bar(w, log_w(SHIFT + SCALE * np.random.default_rng(9).normal(size=3000)))
    theirs = pymbar.bar(-w, log_w(SHIFT + SCALE * np.random.default_rng(9).normal(size=3000)))
    assert independent.estimate().error == pytest.approx(theirs["dDelta_f"], rel=0.05)


def test_bar_is_better_than_importance_sampling_where_the_flow_is_narrow() -> None:
    random = np.random.default_rng(1)
    x, data = 0.3 * random.normal(size=2000), random.normal(size=2000)

    def w(x: np.ndarray) -> np.ndarray:
        return -(x**2) / 2 - stats.norm.logpdf(x, scale=0.3)

    truth = math.log(math.sqrt(2 * math.pi))
    both, alone = bar(w(x), w(data)), importance(w(x))
    assert abs(both.value - truth) < 4 * both.estimate().error < abs(alone.value - truth)


def test_samples_without_weight_and_huge_works_do_not_matter() -> None:
    """Zero weights are the limit of tiny ones; the equation is solved the same with works of 1e8."""
    x, data, _ = drawn(2)
    w, w_data = log_w(x), log_w(data)
    w[:500] = -np.inf
    without = bar(w, w_data)
    w[:250] = -1e8
    assert bar(w, w_data).value == pytest.approx(without.value, abs=1e-9)
    m = math.log(len(x) / len(data))
    root = optimize.brentq(
        lambda F: special.expit(w + F - m).sum() - special.expit(m - w_data - F).sum(), -300, 0
    )
    assert -without.value == pytest.approx(root, abs=1e-9)
    assert importance(w).value == pytest.approx(special.logsumexp(w) - math.log(len(w)))


def test_a_target_on_half_of_the_line() -> None:
    """Samples at x < 0 have no weight: log Z is less by log 2, divergences are those of half Gaussians."""
    random = np.random.default_rng(3)
    x, data = random.normal(size=20_000), np.abs(SCALE * random.normal(size=20_000))

    def w(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, -(x**2) / (2 * SCALE**2) - stats.norm.logpdf(x), -np.inf)

    both = bar(w(x), w(data))
    centred = math.log(SCALE) + 1 / (2 * SCALE**2) - 0.5
    for found, truth in (
        (both.estimate(), math.log(SCALE * math.sqrt(2 * math.pi) / 2)),
        (importance(w(x)).estimate(), math.log(SCALE * math.sqrt(2 * math.pi) / 2)),
        (reverse_kl(both, w(x)), centred),
        (forward_kl(both, w(data)), math.log(2) - math.log(SCALE) + (SCALE**2 - 1) / 2),
    ):
        assert abs(found.value - truth) < 4 * found.error < 0.1


def test_error_of_the_reverse_divergence_knows_of_lost_samples() -> None:
    """Half of the samples have no weight; their share enters the divergence, and its noise the error."""
    z = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        x = random.normal(size=300)
        w = np.where(x > 1, -3.0 * x - stats.norm.logpdf(x), -np.inf)
        share, tail = stats.norm.sf(1), stats.norm.pdf(1)
        # The Gaussian at x > 1, and e^(-3 x) there: the mean of x is tail / share, of x² one more.
        log_z = -3 - math.log(3)
        work = -0.5 * math.log(2 * math.pi) - (1 + tail / share) / 2 + 3 * tail / share
        found = reverse_kl(importance(w), w)
        z.append((found.value - (work + log_z - math.log(share))) / found.error)
    assert np.std(z) == pytest.approx(1.0, abs=0.2)


def test_frames_without_density_are_left_out_of_the_average_only() -> None:
    x, data, block = drawn(4)
    w_data = log_w(data)
    all_of_it = forward_kl(importance(log_w(x), len(data)), w_data, block)
    w_data[::100] = np.inf
    z = bar(log_w(x), w_data)
    assert math.isfinite(z.value) and z.value < LOG_Z + 0.1
    found = forward_kl(importance(log_w(x), len(data)), w_data, block)
    assert found.value == pytest.approx(all_of_it.value, abs=0.05) and math.isfinite(found.error)


@pytest.mark.parametrize(
    ("samples", "data"),
    [
        (np.full(10, -np.inf), np.zeros(10)),
        (np.zeros(10), np.full(10, np.inf)),
        (np.zeros(100), np.full(100, 1e4)),
        (np.zeros(100), np.full(100, 350.0)),
    ],
)
def test_nothing_in_common_is_nan(samples: np.ndarray, data: np.ndarray) -> None:
    found = bar(samples, data)
    assert math.isnan(found.value) and math.isnan(found.estimate().error)


def test_nothing_at_all_is_nan() -> None:
    nothing = np.full(10, -np.inf)
    z = importance(nothing, 5)
    assert math.isnan(z.value) and math.isnan(z.estimate().error)
    assert math.isnan(reverse_kl(z, nothing).value)
    assert math.isnan(forward_kl(importance(np.zeros(5), 5), np.full(5, np.inf)).value)


def test_sides_of_a_torsion() -> None:
    phi = np.array([-1.0, -2.0, -0.5, 1.0])
    assert side_difference(phi) == pytest.approx(math.log(3))
    assert side_difference(phi, np.array([1.0, 0.0, 1.0, 8.0])) == pytest.approx(-math.log(4))
    assert side_difference(phi[:3]) == math.inf and side_difference(phi[3:]) == -math.inf
    assert math.isnan(side_difference(phi, np.zeros(4))) and math.isnan(side_difference(phi[:0]))


def telegraph(n: int, replicas: int, p: float, stay: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles at phi > 0 with probability p, drawn anew at each step with probability 1 - stay; replicas."""
    random = np.random.default_rng(seed)
    x = random.random((n, replicas)) < p
    for row in range(1, n):
        kept = random.random(replicas) < stay
        x[row, kept] = x[row - 1, kept]
    return np.where(x, 1.0, -1.0).T.ravel(), np.repeat(np.arange(replicas), n)


@pytest.mark.parametrize("replicas", [2, 20])
def test_error_of_sides_is_that_of_correlated_frames(replicas: int) -> None:
    """A chain that keeps its side with probability s has the autocorrelation time (1 + s)/(1 - s)."""
    p, stay, n = 0.1, 0.9, 40_000
    error = math.sqrt((1 + stay) / (1 - stay) / (n * p * (1 - p)))
    found = [side_of_frames(*telegraph(n // replicas, replicas, p, stay, seed)) for seed in range(8)]
    assert np.mean([one.error for one in found]) == pytest.approx(error, rel=0.25)
    z = np.array([(one.value - math.log((1 - p) / p)) / one.error for one in found])
    assert 0.3 < math.sqrt((z**2).mean()) < 2


def test_a_long_visit_is_one_visit() -> None:
    """A third of a trajectory in one visit fills several blocks, but who knows when the next one comes?"""
    replica, phi = np.zeros(900), np.full(900, -1.0)
    phi[300:600] = 1.0
    once = side_of_frames(phi, replica)
    assert once.value == pytest.approx(math.log(2)) and math.isnan(once.error)
    phi[:] = np.where(np.arange(900) // 100 % 3 == 1, 1.0, -1.0)
    assert side_of_frames(phi, replica).error > 0.5  # three visits


@pytest.mark.parametrize(("visits", "known"), [(0, False), (1, False), (2, False), (3, True)])
def test_few_visits_of_a_side_have_no_error(visits: int, known: bool) -> None:
    phi, replica = np.full(600, -1.0), np.repeat(np.arange(20), 30)
    phi[: 60 * visits : 60] = 1.0
    found = side_of_frames(phi, replica)
    assert found.value == (pytest.approx(math.log(600 / visits - 1)) if visits else math.inf)
    assert math.isfinite(found.error) == known
    # Three visits: the error of the logarithm of a Poisson number is about 1/√3.
    assert not known or 0.4 < found.error < 0.9


def test_a_sample_with_all_the_weight_of_its_side_counts_once() -> None:
    random = np.random.default_rng(0)
    phi, w = np.where(random.random(2000) < 0.1, 1.0, -1.0), np.ones(2000)
    equal = side_of_samples(phi, w)
    assert equal.error == pytest.approx(1 / math.sqrt(2000 * 0.1 * 0.9), rel=0.2)
    assert equal == side_of_samples(phi)
    w[np.flatnonzero(phi > 0)[0]] = 1000.0
    heavy = side_of_samples(phi, w)
    assert math.isfinite(heavy.value) and math.isnan(heavy.error)
    assert math.isnan(side_of_samples(phi, np.zeros(2000)).value)


def test_free_energies_between_targets_are_right_and_shared_samples_cancel() -> None:
    """Two normal targets of known log Z, reached from the same samples, with and without data of one."""
    z, errors = [], []
    for seed in range(150):
        random = np.random.default_rng(seed)
        x, data = random.normal(size=2000), SHIFT + SCALE * random.normal(size=1000)
        first, near = log_w(x), log_w(x) + 0.3 * x  # times exp(0.3 x): another normal density
        truth = -(0.3 * SHIFT + 0.5 * (0.3 * SCALE) ** 2)
        alone = importance(first), importance(near)
        both = bar(first, log_w(data)), importance(near, 0)
        same = between(*alone, same_samples=True)
        apart = between(*alone, same_samples=False)
        with_data = between(*both, (np.arange(len(data)), None), same_samples=True)
        z.append([(found.value - truth) / found.error for found in (same, with_data)])
        errors.append([same.error, apart.error])
    deviations = np.array(z)
    assert (np.abs(deviations.mean(0)) < 4 / math.sqrt(150)).all()
    assert ((deviations.std(0) > 0.8) & (deviations.std(0) < 1.25)).all()
    assert np.mean(errors, 0)[0] < 0.5 * np.mean(errors, 0)[1]
