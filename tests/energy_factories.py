"""Potentials that tests name by ``tests.energy_factories:function``, as users name theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.morse import MorsePotential
from torch import Tensor, nn


def emt() -> EMT:
    return EMT()


def lennard_jones() -> LennardJones:
    return LennardJones(sigma=0.9, epsilon=0.5, rc=20.0)


def morse() -> MorsePotential:
    return MorsePotential(r0=1.2, epsilon=2.0, rcut1=20.0, rcut2=25.0)


def not_a_calculator() -> str:
    return "EMT"


def broken() -> Any:
    raise RuntimeError("no licence")


class Fragile(Calculator):  # type: ignore[misc]
    """Zero everywhere; raises if the first atom is at x > 1 Å, returns NaN if it is at x < -1 Å."""

    implemented_properties = ("energy", "forces")

    def calculate(self, atoms: Any = None, properties: Any = None, changes: Any = all_changes) -> None:
        super().calculate(atoms, properties, changes)
        x = atoms.positions[0, 0]
        if x > 1:
            raise ArithmeticError("no convergence\nafter 250 cycles")
        self.results = {"energy": np.nan if x < -1 else 0.0, "forces": np.zeros((len(atoms), 3))}


def fragile() -> Fragile:
    return Fragile()


class Charged(Calculator):  # type: ignore[misc]
    """The energy in eV is the charge plus ten times the multiplicity."""

    implemented_properties = ("energy", "forces")

    def calculate(self, atoms: Any = None, properties: Any = None, changes: Any = all_changes) -> None:
        super().calculate(atoms, properties, changes)
        energy = atoms.info["charge"] + 10.0 * atoms.info["spin"]
        self.results = {"energy": energy, "forces": np.zeros((len(atoms), 3))}


class Springs(nn.Module):
    r"""$\sum_{i<j} \tfrac12 k (|x_i - x_j| - d_{ij})^2$ with distances $d_{ij} = d (Z_i + Z_j)$."""

    def __init__(self, k: float, d: float) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(k, dtype=torch.float64))
        self.d = d

    def forward(self, positions: Tensor, numbers: Tensor) -> Tensor:
        pairs = torch.triu_indices(numbers.shape[0], numbers.shape[0], 1)
        i, j = pairs[0], pairs[1]
        distance = (positions[:, i] - positions[:, j]).norm(p=2, dim=-1)
        rest = self.d * (numbers[i] + numbers[j]).to(positions)
        return (0.5 * self.k * (distance - rest) ** 2).sum(-1)


def springs() -> Springs:
    """For water in eV and Å: O-H and H-H at their usual lengths, as nearly as the formula can."""
    return Springs(20.0, 0.107)


def stiffer_springs() -> Springs:
    """Close enough to the others that samples of one can be weighted by the other."""
    return Springs(30.0, 0.108)


class Lopsided(Springs):
    """An energy that depends on where up is, and has forces of another energy."""

    def forward(self, positions: Tensor, numbers: Tensor) -> Tensor:
        energies = super().forward(positions, numbers)
        return energies + 0.5 * positions[:, 0, 2].detach()


def lopsided() -> Lopsided:
    return Lopsided(20.0, 0.107)


class Unlucky(Calculator):  # type: ignore[misc]
    """Zero at first; after some calls it raises, or returns NaN."""

    implemented_properties = ("energy", "forces")

    def __init__(self, calls: int, value: float | None = None) -> None:
        super().__init__()
        self.calls, self.value = calls, value

    def calculate(self, atoms: Any = None, properties: Any = None, changes: Any = all_changes) -> None:
        super().calculate(atoms, properties, changes)
        self.calls -= 1
        if self.calls < 0 and self.value is None:
            raise ArithmeticError("no luck")
        energy = 0.0 if self.calls >= 0 else self.value
        self.results = {"energy": energy, "forces": np.zeros((len(atoms), 3))}


def always_raises() -> Unlucky:
    return Unlucky(0)


def always_nan() -> Unlucky:
    return Unlucky(0, np.nan)


def fails_after_a_while() -> Unlucky:
    return Unlucky(8)
