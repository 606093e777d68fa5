"""Distances: brute force, SciPy, NumPy and closed forms say the same."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import optimize, stats

from knotflow.analysis.distances import (
    HEADROOM,
    PSEUDO_COUNT,
    capped,
    cut_energy,
    divergence,
    energy_distance,
    force_error,
    histogram,
    torus_cells,
    torus_distance,
    total_variation,
)
from knotflow.energies.energy import CUT_OFF

angles = arrays(np.float64, st.tuples(st.integers(1, 40), st.just(2)), elements=st.floats(-math.pi, math.pi))


@given(angles, angles)
def test_divergences_of_histograms(a: np.ndarray, b: np.ndarray) -> None:
    p, q = histogram(torus_cells(a)), histogram(torus_cells(b))
    assert p.sum() == pytest.approx(1) and (p > 0).all()
    assert divergence(p, q) >= -1e-12 and divergence(p, p) == 0
    assert divergence(p, q) == pytest.approx(stats.entropy(p, q), abs=1e-12)
    assert 0 <= total_variation(p, q) <= 1 and total_variation(p, q) == total_variation(q, p)
    assert divergence(p, q) >= 2 * total_variation(p, q) ** 2 - 1e-12  # Pinsker's inequality


def test_histogram_is_that_of_numpy() -> None:
    random = np.random.default_rng(0)
    a, w = random.uniform(-math.pi, math.pi, (5000, 2)), random.random(5000)
    edges = np.linspace(-math.pi, math.pi, 65)
    expected = np.histogram2d(*a.T, bins=[edges, edges], weights=w)[0] * 5000 / w.sum() + PSEUDO_COUNT
    np.testing.assert_allclose(histogram(torus_cells(a), w), (expected / expected.sum()).ravel(), atol=1e-12)
    further = histogram(torus_cells(a + 2 * math.pi), 7 * w)
    np.testing.assert_allclose(further, histogram(torus_cells(a), w), atol=1e-12)


def test_divergence_of_known_densities() -> None:
    """Two von Mises densities of phi; fine histograms of many points come near the integral."""
    random = np.random.default_rng(1)
    n = 400_000
    uniform = random.uniform(-math.pi, math.pi, (2, n))
    a = np.stack((random.vonmises(0.0, 1.0, n), uniform[0]), -1)
    b = np.stack((random.vonmises(0.5, 1.0, n), uniform[1]), -1)
    x = np.linspace(-math.pi, math.pi, 2001)[:-1]
    p, q = stats.vonmises.pdf(x, 1.0), stats.vonmises.pdf(x, 1.0, loc=0.5)
    exact = float((p * np.log(p / q)).mean() * 2 * math.pi)
    assert divergence(*(histogram(torus_cells(x, 16), bins=16) for x in (a, b))) == pytest.approx(
        exact, rel=0.04
    )


def test_energy_distance_of_equal_numbers_is_that_of_sorted_values() -> None:
    random = np.random.default_rng(2)
    u, v = random.normal(size=500), random.exponential(size=500)
    expected = math.sqrt(((np.sort(u) - np.sort(v)) ** 2).mean())
    assert energy_distance(u, v) == pytest.approx(expected)
    assert energy_distance(u, u) == 0 and energy_distance(u, u + 3.0) == pytest.approx(3.0)


def test_energy_distance_of_gaussians() -> None:
    random = np.random.default_rng(3)
    u, v = random.normal(1.0, 2.0, 100_000), random.normal(0.0, 0.5, 80_000)
    assert energy_distance(u, v) == pytest.approx(math.hypot(1.0, 1.5), rel=0.01)


def test_weights_are_repetitions() -> None:
    random = np.random.default_rng(4)
    u, v, w = random.normal(size=30), random.normal(size=40), random.integers(0, 5, 30)
    expected = energy_distance(np.repeat(u, w), v)
    assert energy_distance(u, v, 0.1 * w) == pytest.approx(expected)
    assert energy_distance(v, u, None, w.astype(float)) == pytest.approx(expected)


def test_torus_distance_is_that_of_the_best_assignment() -> None:
    random = np.random.default_rng(5)
    a, b = random.uniform(-math.pi, math.pi, (2, 80, 2))
    cost = np.array(
        [
            [sum((math.remainder(s - t, 2 * math.pi)) ** 2 for s, t in zip(p, q, strict=True)) for q in b]
            for p in a
        ]
    )
    rows, columns = optimize.linear_sum_assignment(cost)
    expected = math.sqrt(cost[rows, columns].mean())
    assert torus_distance(a, b) == pytest.approx(expected)
    assert torus_distance(a + 2 * math.pi, b) == pytest.approx(expected)
    assert torus_distance(a, a) == 0


def test_torus_distance_goes_over_the_seam() -> None:
    a = np.array([[math.pi - 0.1, 0.0]])
    assert torus_distance(a, np.array([[-math.pi + 0.2, 0.4]])) == pytest.approx(0.5)
    many = np.random.default_rng(6).normal(scale=0.1, size=(50, 2))
    assert torus_distance(many, many[:25]) > 0  # sets of different size


def test_without_weight_all_is_nan() -> None:
    points, nothing = np.zeros((3, 2)), np.zeros(3)
    assert np.isnan(histogram(torus_cells(points), nothing)).all()
    assert math.isnan(divergence(histogram(torus_cells(points)), histogram(torus_cells(points), nothing)))
    assert math.isnan(energy_distance(nothing, nothing, nothing))
    assert math.isnan(energy_distance(nothing, nothing, np.full(3, np.nan)))


def test_cut_energy_is_smooth_and_logarithmic() -> None:
    u = np.array([-1e9, 0.0, CUT_OFF, CUT_OFF + 1e-6, CUT_OFF + math.e - 1, 1e30])
    found = cut_energy(u)
    np.testing.assert_allclose(found[:4], u[:4])
    assert found[4] == pytest.approx(CUT_OFF + 1) and found[5] == pytest.approx(CUT_OFF + 30 * math.log(10))
    slope = (cut_energy(np.array([CUT_OFF + 1e-4])) - CUT_OFF) / 1e-4
    assert slope == pytest.approx(1.0, abs=1e-3)


def test_capped_energies() -> None:
    data = np.array([1.0, 2.0])
    found = capped(np.array([1.5, 1e9, np.inf, np.nan, -np.inf]), data)
    assert list(found) == [1.5, *[2.0 + HEADROOM] * 4]


def test_force_error_is_a_mean_over_atoms_and_directions() -> None:
    a, b = np.random.default_rng(7).normal(size=(2, 4, 5, 3))
    expected = [np.mean([(x - y) ** 2 for x, y in zip(a[i].flat, b[i].flat, strict=True)]) for i in range(4)]
    np.testing.assert_allclose(force_error(a, b), expected)
