"""Choice of the program that computes the energy of a molecule."""

from __future__ import annotations

from typing import Final

from knotflow.energies.energy import MolecularEnergy
from knotflow.energies.frame_energy import FrameEnergy
from knotflow.energies.frames import Atoms
from knotflow.energies.module_energy import ModuleEnergy
from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.energies.settings import ModuleSettings, XTBSettings, parse_settings
from knotflow.energies.torch_force_field import TorchForceField
from knotflow.molecules.system import MolecularSystem
from knotflow.workers import usable_cores

MANY: Final = 500_000
"""From this many evaluations on, compiling the torch force field (most of a minute) pays off."""


def force_field(
    system: MolecularSystem,
    *,
    compiled: bool = False,
    evaluations: int | None = None,
    workers: int | None = None,
) -> MolecularEnergy:
    """The energy of a molecule; use it in a ``with`` block to stop worker processes.

    A force field is computed in torch or by OpenMM. OpenMM starts at once, supports every force and evaluates
    one structure after the other. `TorchForceField` evaluates whole batches on the device of the model, as
    training needs it; compiled, it is many times as fast. If it does not support a force of the molecule,
    OpenMM is used in any case.

    Other energies (``system.energy``) are computed by xTB, by a calculator of ASE or by a torch module.

    Args:
        system: The molecule.
        compiled: Whether torch compiles the force field.
        evaluations: Number of structures that will be evaluated. If given, it decides: OpenMM below `MANY`,
            compiled torch from there on.
        workers: Processes for OpenMM, xTB and ASE, see `FrameEnergy`; default: one per usable core.
    """
    if system.energy is not None:
        return _other_energy(system, workers)
    if evaluations is not None and evaluations < MANY:
        return OpenMMEnergy(system, workers)
    try:
        return TorchForceField(system, compiled=compiled or evaluations is not None)
    except ValueError:  # a force that torch does not support
        return OpenMMEnergy(system, workers)


def _other_energy(system: MolecularSystem, workers: int | None) -> MolecularEnergy:
    settings = parse_settings(system.energy or {})
    if isinstance(settings, ModuleSettings):
        return ModuleEnergy(system)
    if isinstance(settings, XTBSettings):
        name, module = str(settings.method), "xtb"
    else:
        name, module = settings.factory, "ase_frames"
    return FrameEnergy(
        system,
        name,
        f"knotflow.energies.{module}:frame_worker",
        Atoms(system.atomic_numbers, system.positions, settings.plain()),
        workers=usable_cores() if workers is None else workers,
        zero_kj=settings.zero_kj,
    )
