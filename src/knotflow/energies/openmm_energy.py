"""Energies and forces of molecules by OpenMM, in parallel worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from knotflow.energies.frame_energy import FrameEnergy
from knotflow.energies.openmm_contexts import fastest_platform, worker_count

if TYPE_CHECKING:
    from knotflow.molecules.system import MolecularSystem

SMALL_BATCH: Final = 32
"""Batches up to this size are evaluated in this process: sending them to workers would take longer."""

SMALL_TASK: Final = 8
"""Fewest frames in a worker's task."""


class OpenMMEnergy(FrameEnergy):
    r"""The reduced energy $u = U / kT$ of a molecule with its force field, by OpenMM.

    See `FrameEnergy`. The fastest platform of this machine is used (`platform`); only ``"Reference"`` is in
    double precision throughout.

    Args:
        system: The molecule, its force field and the temperature.
        workers: Number of processes; default: one per usable core, or one if a GPU is the fastest. With one,
            everything is done in this process.

    Raises:
        ValueError: if the energy of the molecule is not a force field.
    """

    def __init__(self, system: MolecularSystem, workers: int | None = None) -> None:
        system.need_force_field()
        self.platform = fastest_platform(system.xml, system.positions)
        super().__init__(
            system,
            "OpenMM",
            "knotflow.energies.openmm_contexts:frame_worker",
            (system.xml, self.platform),
            workers=worker_count(self.platform) if workers is None else workers,
            few=SMALL_BATCH,
            fewest=SMALL_TASK,
        )
