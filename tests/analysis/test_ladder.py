"""Averages over a tempering run: against closed forms, pymbar's own errors, and repeated runs."""

import math
from pathlib import Path

import numpy as np
import pytest

from knotflow.analysis.free_energy import import_pymbar
from knotflow.analysis.ladder import LadderAverages, ladder_averages
from knotflow.molecules.units import BOLTZMANN
from tests.analysis.generators import chain_data
from tests.analysis.ladders import exact, ladder_data

RUNGS = np.array([300.0, 380.0, 480.0, 600.0])
WANTED = (300.0, 350.0, 480.0, 600.0)
FREEDOM = 8
"""Harmonic coordinates: U has a gamma distribution, -log Z = const - FREEDOM/2 log kT."""


def run(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Independent energies on all rungs, and their temperatures."""
    random = np.random.default_rng(seed)
    temperature = np.repeat(RUNGS, n)
    return random.gamma(FREEDOM / 2, BOLTZMANN * temperature), temperature


def test_a_harmonic_system_in_closed_form() -> None:
    energies, temperature = run(4000, 0)
    found = LadderAverages(energies, temperature, np.arange(len(energies)), WANTED)
    for place, t in enumerate(WANTED):
        expected = (
            (found.free_energy(place), -FREEDOM / 2 * math.log(t / 300)),
            (found.energy(place), FREEDOM / 2 * BOLTZMANN * t),
            (found.heat_capacity(place), FREEDOM / 2 * 1000 * BOLTZMANN),
        )
        for estimate, value in expected:
            assert abs(estimate.value - value) <= 4 * estimate.error + 1e-12, t
    assert (found.free_energy(0).value, found.free_energy(0).error) == (0.0, 0.0)


def test_errors_of_independent_frames_are_those_of_pymbar() -> None:
    energies, temperature = run(2000, 1)
    found = LadderAverages(energies, temperature, np.arange(len(energies)), WANTED)
    states = np.concatenate((WANTED, RUNGS))
    u = energies / (BOLTZMANN * states[:, None])
    mbar = import_pymbar().MBAR(u, np.repeat([0, 2000], 4))
    free = mbar.compute_free_energy_differences()
    means = mbar.compute_expectations(energies)
    for place in range(1, 4):
        assert found.free_energy(place).value == pytest.approx(free["Delta_f"][0, place], abs=1e-6)
        assert found.free_energy(place).error == pytest.approx(free["dDelta_f"][0, place], rel=0.05)
    for place in range(4):
        assert found.energy(place).value == pytest.approx(means["mu"][place], rel=1e-6)
        assert found.energy(place).error == pytest.approx(means["sigma"][place], rel=0.05)


def test_errors_are_the_spread_of_repeated_runs() -> None:
    """Also when every energy occurs five times in a block, which pymbar's errors do not know."""
    values, errors = [], []
    for seed in range(60):
        energies, temperature = (np.repeat(part, 5) for part in run(60, seed))
        found = LadderAverages(energies, temperature, np.arange(len(energies)) // 5, WANTED)
        estimates = [found.free_energy(1), found.energy(1), found.heat_capacity(1), found.heat_capacity(3)]
        values.append([estimate.value for estimate in estimates])
        errors.append([estimate.error for estimate in estimates])
    np.testing.assert_allclose(np.mean(errors, 0), np.std(values, 0), rtol=0.3)


def test_files(tmp_path: Path) -> None:
    data = ladder_data(tmp_path / "chain.h5")
    found = ladder_averages(data, (300.0, 430.0, 600.0))
    assert found is not None
    for place, t in enumerate((300.0, 430.0, 600.0)):
        log_z, mean, variance = exact(t)
        assert found.free_energy(place).value == pytest.approx(exact(300.0)[0] - log_z, abs=0.1)
        for estimate, value in (
            (found.energy(place), mean),
            (found.heat_capacity(place), 1000 * variance / BOLTZMANN / t**2),
        ):
            assert abs(estimate.value - value) < 4.5 * estimate.error < 0.2 * value
    assert ladder_averages(data, (300.0, 700.0)) is None
    assert ladder_averages(chain_data(tmp_path / "one.h5", 120), (300.0,)) is None
