"""Molecules whose energy is not a force field: checked, and minimised with that energy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.energies.choose import force_field
from knotflow.energies.energy import MolecularEnergy
from knotflow.energies.settings import XTBSettings, parse_settings
from knotflow.energies.xtb import unpaired_electrons
from knotflow.molecules.structure import Structure
from knotflow.molecules.system import MolecularSystem, only_masses

STEPS: Final = 500
TOLERANCE: Final = 4.0
"""In kT/nm, some 10 kJ/mol/nm, as in OpenMM's minimiser: the largest component of a force at a minimum."""
UNIT: Final = 0.01
"""In nm: the first step moves all atoms together by this much."""
STRETCH: Final = 1.4
"""A bond that changes by more than this factor while the energy is minimised is broken or was never there."""


def without_force_field(
    name: str, structure: Structure, energy: dict[str, Any], temperature: float = 300.0, **origin: Any
) -> MolecularSystem:
    """A molecule whose energy needs no force field, at a minimum of that energy.

    Args:
        name: For display.
        structure: All atoms of one molecule, with its bonds.
        energy: Plain values, see `knotflow.energies.settings.read_energy`.
        temperature: In K.
        **origin: How the structure was made; JSON values.

    Raises:
        ValueError: if the atoms are not one molecule, if its electrons do not fit charge and multiplicity, if
            its energy cannot be computed, or if bonds do not survive the minimisation.
    """
    settings = parse_settings(energy)
    start = only_masses(name, structure, settings.plain(), temperature, **origin)
    if isinstance(settings, XTBSettings):
        unpaired = unpaired_electrons(start.atomic_numbers, settings)
        settings = settings.model_copy(update={"multiplicity": unpaired + 1})
        start = replace(start, energy=settings.plain())
    with force_field(start, workers=1) as computed:
        positions, u = minimise(computed, start.positions)
    _check_bonds(start, positions)
    zero = settings.model_copy(update={"zero_kj": settings.zero_kj + u * start.kT})
    return replace(start, positions=positions, energy=zero.plain())


def minimise(energy: MolecularEnergy, positions: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Positions of the energy minimum near these, in nm, shape ``(atoms, 3)``, and its energy in kT.

    By L-BFGS with a line search.

    Raises:
        ValueError: if the energy is not finite.
    """
    x = torch.tensor(positions / UNIT, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [x],
        max_iter=STEPS,
        tolerance_grad=TOLERANCE * UNIT,
        tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )

    def evaluate() -> float:
        u, force = energy.energy_and_force(x.detach() * UNIT)
        if not (u.isfinite() and force.isfinite().all()):
            raise ValueError(
                "the energy of the structure cannot be minimised: "
                f"{energy.failure or f'it is {u.item():g} kT'}; repair the structure."
            )
        x.grad = -force * UNIT
        return u.item()

    optimiser.step(evaluate)
    return x.detach().numpy() * UNIT, evaluate()


def _check_bonds(start: MolecularSystem, positions: NDArray[np.float64]) -> None:
    """Refuse a structure whose bonds the energy has changed: it describes another molecule, or none."""
    first, second = np.array(start.bonds, dtype=np.int64).reshape(-1, 2).T
    before, after = (np.linalg.norm(x[first] - x[second], axis=1) for x in (start.positions, positions))
    change = np.abs(np.log(after / before))
    if (change > np.log(STRETCH)).any():
        worst = change.argmax()
        a, b = (start.topology.atom(i) for i in (first[worst], second[worst]))
        raise ValueError(
            f"the bond {a}-{b} went from {before[worst]:.3f} to {after[worst]:.3f} nm while the energy was "
            "minimised, so this energy describes another molecule; check charge, units and structure."
        )
