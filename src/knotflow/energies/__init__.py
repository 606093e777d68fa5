"""Energies to sample from: densities of a few coordinates, and force fields of molecules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knotflow.lazy import lazy_names

if TYPE_CHECKING:
    from knotflow.energies.assembly import without_force_field
    from knotflow.energies.choose import force_field
    from knotflow.energies.energy import Energy, MolecularEnergy
    from knotflow.energies.frame_energy import FrameEnergy
    from knotflow.energies.metropolis import metropolis
    from knotflow.energies.module_energy import ModuleEnergy
    from knotflow.energies.openmm_energy import OpenMMEnergy
    from knotflow.energies.settings import read_energy
    from knotflow.energies.torch_force_field import TorchForceField
    from knotflow.energies.toy import Mixed, Rings

__all__ = [
    "Energy",
    "FrameEnergy",
    "Mixed",
    "ModuleEnergy",
    "MolecularEnergy",
    "OpenMMEnergy",
    "Rings",
    "TorchForceField",
    "force_field",
    "metropolis",
    "read_energy",
    "without_force_field",
]

__getattr__, __dir__ = lazy_names(__name__)
