"""Simulate a molecule into a trajectory file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knotflow.files import check_h5
from knotflow.molecules import MolecularSystem, ala2, from_pdb
from knotflow.molecules.pdb_file import KINDS
from knotflow.molecules.structure import plain_suffix
from knotflow.progress import Progress, silent
from knotflow.simulation import Simulation


def simulate(
    molecule: MolecularSystem | str | Path = "ala2",
    out: str | Path = "data/simulation.h5",
    ns: float = 8.0,
    *,
    workers: int | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> Path:
    """Simulate a molecule: positions, forces and energies go into one HDF5 file.

    Called again with the same arguments, an interrupted run is continued and a finished one is left as it
    is; with a larger ``ns`` it is extended.

    Args:
        molecule: A molecule from `knotflow.molecules` (``peptide("AAA")``), a ``.pdb`` file, or ``"ala2"``.
        out: The file, ending in ``.h5``.
        ns: Nanoseconds at the target temperature, all replicas together. With ``method="tempering"`` every
            temperature of the ladders is simulated as long, and its frames go to ``NAME.ladder.h5``.
        workers: Processes; None: one per core, or one if there is a GPU.
        progress: Called with the progress.
        **settings: ``engine``, ``method``, ``replicas``, ``every`` and ``equilibration`` (in ps),
            ``highest_temperature``, ``rungs``, ``seed``; see `SimulationPlan.of_times`.

    Returns:
        The file.

    Raises:
        ValueError: if a setting is wrong, or the file holds another simulation.
        OSError: if a file is missing or damaged.
    """
    check_h5(Path(out), "out")
    system = molecule if isinstance(molecule, MolecularSystem) else named_molecule(str(molecule))
    simulation = Simulation.planned(out, system, ns, workers=workers, **settings)
    simulation.run(progress)
    return simulation.path


def named_molecule(molecule: str) -> MolecularSystem:
    """``"ala2"``, or the molecule in a ``.pdb`` file."""
    if molecule == "ala2":
        return ala2()
    if plain_suffix(molecule) not in KINDS:
        raise ValueError(
            f'the molecule must be a MolecularSystem, a .pdb or .cif file or "ala2", got {molecule!r}; make '
            "others with knotflow.molecules.from_files or knotflow.molecules.peptide."
        )
    return from_pdb(molecule)
