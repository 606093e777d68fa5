"""Velocities, temperatures and bonds."""

import math

import pytest
import torch

from knotflow.dynamics import Bonds, Masses
from knotflow.molecules.units import BOLTZMANN
from tests.analysis.generators import LENGTH, chain

MASSES = [1.0, 12.0, 16.0]


def test_velocities_are_those_of_maxwell_and_boltzmann_without_momentum() -> None:
    """Given a momentum of zero, the covariance of velocities along an axis is kT (δ_ij / m_i - 1 / M)."""
    n, masses = 40_000, Masses.molecule(MASSES, 300.0)
    v = masses.thermal_velocities(n, generator=torch.Generator().manual_seed(0))
    masses = torch.tensor(MASSES, dtype=torch.float64)
    assert float((masses[:, None] * v).sum(1).abs().max()) < 1e-12
    expected = BOLTZMANN * 300 * (torch.diag(1 / masses) - 1 / masses.sum())
    samples = v.transpose(1, 2).reshape(-1, 3)
    found = samples.T @ samples / len(samples)
    # The error of a covariance of normal numbers (Isserlis).
    error = ((expected.square() + expected.diag()[:, None] * expected.diag()) / len(samples)).sqrt()
    assert bool(((found - expected).abs() < 4 * error).all())


def test_degrees_of_freedom_are_those_that_carry_heat() -> None:
    n, masses = 20_000, Masses.molecule(MASSES, 300.0)
    assert masses.degrees_of_freedom == 6 and Masses.unit(5).degrees_of_freedom == 5
    temperature = masses.kinetic_temperature(masses.thermal_velocities(n))
    assert float(temperature.mean()) == pytest.approx(300, abs=4 * 300 * math.sqrt(2 / 6 / n))


def test_kinetic_energy_is_in_kt() -> None:
    masses = Masses.molecule([2.0, 3.0], 350.0)
    v = torch.tensor([[[1.0, 0, 0], [0, 2.0, 0]]], dtype=torch.float64)
    assert float(masses.kinetic_energy(v)) == pytest.approx((0.5 * 2 + 0.5 * 3 * 4) / (BOLTZMANN * 350))
    assert float(Masses.unit(2, mass=3.0).kinetic_energy(torch.tensor([[1.0, 2.0]]))) == 7.5


def test_taking_momentum_away_twice_changes_nothing() -> None:
    masses = Masses.molecule(MASSES, 300.0)
    v = torch.randn(4, 3, 3, dtype=torch.float64)
    once = masses.at_rest(v)
    torch.testing.assert_close(masses.at_rest(once), once)
    # What is taken away is orthogonal to what stays, in the metric of the masses.
    torch.testing.assert_close(
        masses.kinetic_energy(v), masses.kinetic_energy(once) + masses.kinetic_energy(v - once)
    )


def test_bonds_are_broken_beyond_their_strain() -> None:
    bonds = Bonds.of(chain(), strain=1.5)
    x = torch.tensor(chain().positions).repeat(5, 1, 1)
    direction = (x[0, 0] - x[0, 1]) / LENGTH
    x[1, 0] += 0.49 * LENGTH * direction
    x[2, 0] += 0.51 * LENGTH * direction
    x[3, 0] -= 0.33 * LENGTH * direction
    x[4, 0] -= 0.34 * LENGTH * direction
    assert bonds.broken(x).tolist() == [False, False, True, False, True]
    expected = x.new_tensor([1.0, 1.49, 1.51, 1 / 0.67, 1 / 0.66])
    torch.testing.assert_close(bonds.largest_strain(x), expected)


@pytest.mark.parametrize("masses", [[1.0], [1.0, 0.0], [[1.0, 2.0]]])
def test_impossible_masses_are_refused(masses: list[float]) -> None:
    with pytest.raises(ValueError, match="masses must be positive"):
        Masses.molecule(masses, 300.0)
