"""Choice of the program that computes the energy of a molecule: torch or OpenMM."""

from __future__ import annotations

from typing import Final

from knotflow.energies.energy import MolecularEnergy
from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.energies.torch_force_field import TorchForceField
from knotflow.molecules.system import MolecularSystem

MANY: Final = 500_000
"""From this many evaluations on, compiling the torch force field (most of a minute) pays off."""


def force_field(
    system: MolecularSystem,
    *,
    compiled: bool = False,
    evaluations: int | None = None,
    workers: int | None = None,
) -> MolecularEnergy:
    """The energy of a molecule, in torch or by OpenMM; use it in a ``with`` block to stop worker processes.

    OpenMM starts at once, supports every force and evaluates one structure after the other. `TorchForceField`
    evaluates whole batches on the device of the model, as training needs it; compiled, it is many times as
    fast. If it does not support a force of the molecule, OpenMM is used in any case.

    Args:
        system: The molecule.
        compiled: Whether torch compiles the force field.
        evaluations: Number of structures that will be evaluated. If given, it decides: OpenMM below `MANY`,
            compiled torch from there on.
        workers: Processes for OpenMM, see `OpenMMEnergy`.
    """
    if evaluations is not None and evaluations < MANY:
        return OpenMMEnergy(system, workers)
    try:
        return TorchForceField(system, compiled=compiled or evaluations is not None)
    except ValueError:  # a force that torch does not support
        return OpenMMEnergy(system, workers)
