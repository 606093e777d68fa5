"""Energies by any calculator of the Atomic Simulation Environment (ASE)."""

from __future__ import annotations

from collections.abc import Callable

from knotflow.energies.frames import Atoms, Evaluated, Frames, from_factory, one_by_one
from knotflow.energies.settings import ASESettings
from knotflow.extras import optional
from knotflow.molecules.units import EV

ANGSTROM = 0.1
"""In nm."""


def frame_worker(atoms: Atoms) -> Callable[[Frames], Evaluated]:
    """Target of a `WorkerPool`: energies by a calculator, which each process makes for itself.

    Charge and multiplicity, if given, are in ``atoms.info`` under ``"charge"`` and ``"spin"``, where several
    calculators look for them.

    Raises:
        ValueError: if there is no such calculator.
    """
    with optional("calculators"):
        import ase
    settings = ASESettings.parse(atoms.settings)
    calculator = from_factory(settings.factory)
    if not hasattr(calculator, "get_potential_energy"):
        raise ValueError(
            f"{settings.factory} must return a calculator of ASE, got {type(calculator).__name__}."
        )
    molecule = ase.Atoms(atoms.numbers, positions=atoms.positions / ANGSTROM, calculator=calculator)
    electrons = {"charge": settings.charge, "spin": settings.multiplicity}
    molecule.info |= {name: value for name, value in electrons.items() if value is not None}

    def evaluate(frame: Frames) -> tuple[float, Frames]:
        molecule.positions = frame / ANGSTROM
        energy = float(molecule.get_potential_energy())
        return energy * EV, molecule.get_forces() * (EV / ANGSTROM)

    return one_by_one(evaluate)
