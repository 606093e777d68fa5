"""Free energies along torsions and densities of coordinates against distributions that are known."""

import math

import numpy as np
import pytest
from scipy import stats

from knotflow.analysis.distances import torus_bins
from knotflow.analysis.free_energy_profiles import (
    BINS,
    SURFACE_BINS,
    bins_for,
    free_energies,
    marginal,
    midpoints,
    profile,
)

KAPPA = 2.0


def bin_shares(bins: int) -> np.ndarray:
    """Exact shares of a von Mises distribution in equal bins."""
    edges = np.linspace(-math.pi, math.pi, bins + 1)
    return np.diff(stats.vonmises.cdf(edges, KAPPA))


def test_a_profile_is_minus_the_log_of_the_density_with_binomial_errors() -> None:
    n = 20_000
    angles = stats.vonmises.rvs(KAPPA, size=n, random_state=0)
    found, shares = profile(angles), bin_shares(BINS)
    exact = -np.log(shares * BINS / (2 * math.pi))
    error = np.sqrt((1 - shares) / (n * shares))
    assert found.value.shape == found.error.shape == (BINS,)
    assert np.abs((found.value - exact) / error).max() < 4.5
    # The error that the counts themselves tell, where it is small enough for a logarithm to be linear.
    counted = np.exp(-found.value) * 2 * math.pi / BINS
    told = np.sqrt((1 - counted) / (n * counted))
    many = counted * n > 100
    assert many.sum() > BINS / 2 and np.allclose(found.error[many], told[many], rtol=0.35)
    assert np.mean(found.error[many] / told[many]) == pytest.approx(1, abs=0.05)
    assert np.array_equal(found.middle, midpoints(BINS))


def test_any_period_gives_the_same() -> None:
    angles = np.random.default_rng(0).uniform(-math.pi, math.pi, (500, 2))
    turned = angles + 2 * math.pi * np.array([1, -2])
    assert np.allclose(profile(angles).value, profile(turned).value, equal_nan=True)


def test_weights_turn_uniform_angles_into_others() -> None:
    n = 40_000
    angles = np.random.default_rng(1).uniform(-math.pi, math.pi, n)
    found = profile(angles, np.exp(KAPPA * np.cos(angles)))
    exact = -np.log(bin_shares(BINS) * BINS / (2 * math.pi))
    assert np.abs((found.value - exact) / found.error).max() < 4.5


def test_repeated_rows_do_not_make_errors_smaller() -> None:
    angles = stats.vonmises.rvs(KAPPA, size=2_000, random_state=0)
    once = profile(angles, bins=8)
    again = profile(np.repeat(angles, 10), block=np.repeat(np.arange(2_000), 10), bins=8)
    naive = profile(np.repeat(angles, 10), bins=8)
    assert np.allclose(again.value, once.value)
    assert np.allclose(again.error, once.error, rtol=0.4)
    assert np.allclose(naive.error, once.error / math.sqrt(10), rtol=0.4)


def test_two_angles_and_bins_that_are_rarely_or_never_visited() -> None:
    angles = np.full((400, 2), 0.1)
    angles[0] = -3.0
    found = profile(angles)
    assert found.value.shape == (SURFACE_BINS, SURFACE_BINS)
    i, j = (np.searchsorted(midpoints(SURFACE_BINS), x - math.pi / SURFACE_BINS) for x in (0.1, 0.1))
    cell = (2 * math.pi / SURFACE_BINS) ** 2
    assert found.value[i, j] == pytest.approx(-math.log(399 / 400 / cell))
    assert np.isfinite(found.value).sum() == 2
    assert np.isnan(found.error[0, 0])  # seen once: most resamples do not have it
    assert np.isfinite(found.error[i, j])


def test_rows_that_are_not_finite_count_as_not_there() -> None:
    angles = np.array([0.5, np.nan, 0.5, np.inf])
    assert np.allclose(profile(angles).value, profile(angles[[0, 2]]).value, equal_nan=True)
    assert np.isnan(profile(angles[[1]]).value).all()


def test_weights_that_are_all_zero_give_nothing() -> None:
    found = profile(np.linspace(-3, 3, 50), np.full(50, np.nan))
    assert np.isnan(found.value).all() and np.isnan(found.error).all()


def test_marginals_are_densities_and_differ_by_total_variation() -> None:
    random = np.random.default_rng(0)
    data, samples = random.normal(0.15, 0.01, 100_000), random.normal(0.155, 0.01, 100_000)
    found = marginal("bond C0-C1", data, samples, np.ones(100_000))
    widths = np.diff(found.edges)
    for density in (found.data, found.samples, found.reweighted):
        assert density @ widths == pytest.approx(1)
    # Of two normal distributions half a deviation apart.
    assert found.difference == pytest.approx(2 * stats.norm.cdf(0.25) - 1, abs=0.01)
    assert np.allclose(found.samples, found.reweighted)


def test_weights_move_a_marginal_and_outliers_stay_in_the_outermost_bins() -> None:
    random = np.random.default_rng(0)
    samples = random.normal(0, 1, 50_000)
    samples[:3] = 1e9
    found = marginal("angle", None, samples, np.exp(0.5 * samples.clip(max=10)) * (samples < 10))
    assert found.data is None and math.isnan(found.difference)
    middle = (found.edges[1:] + found.edges[:-1]) / 2
    assert found.edges[-1] < 5
    assert (middle * found.reweighted) @ np.diff(found.edges) == pytest.approx(0.5, abs=0.05)
    assert (middle * found.samples) @ np.diff(found.edges) == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize(("n", "bins"), [(0, 10), (64, 10), (1000, 20), (8000, 40), (10**6, 40)])
def test_few_values_fill_few_bins(n: int, bins: int) -> None:
    assert bins_for(n, 10, 40) == bins


def test_bins_of_an_angle_end_at_a_turn() -> None:
    angles = np.random.default_rng(0).uniform(-math.pi, math.pi, 2000)
    found = marginal("torsion", angles, angles, np.ones(2000), turns=True)
    assert found.edges[[0, -1]] == pytest.approx([-math.pi, math.pi], abs=1e-9)
    assert np.allclose(found.data, 1 / (2 * math.pi), rtol=0.4)
    assert marginal("bond", angles, angles, np.ones(2000)).edges[-1] > 3.3


def test_free_energies_are_those_of_a_histogram() -> None:
    angles = np.random.default_rng(0).vonmises(-1, 2, (500, 2))
    found = free_energies(torus_bins(angles, 10), 10)
    edges = np.linspace(-math.pi, math.pi, 11)
    density = np.histogram2d(*angles.T, (edges, edges), density=True)[0]
    assert np.array_equal(np.isinf(found), density == 0)
    np.testing.assert_allclose(found[density > 0], -np.log(density[density > 0]))
    # An angle of any period is as good.
    np.testing.assert_array_equal(torus_bins(angles + 4 * math.pi, 10), torus_bins(angles, 10))
