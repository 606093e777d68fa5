"""Simulate a molecule into a trajectory file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knotflow.files import check_ending
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.simulation import Simulation
from knotflow.workflows.molecule import OPTIONS, chosen


def simulate(
    molecule: MolecularSystem | str | Path | None = None,
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
        molecule: A molecule from `knotflow.molecules`, or what ``knotflow simulate --molecule`` takes: a
            file, a SMILES, or ``"ala2"``, the default.
        out: The file, ending in ``.h5``.
        ns: Nanoseconds at the target temperature, all replicas together. With ``method="tempering"`` every
            temperature of the ladders is simulated as long, and its frames go to ``NAME.ladder.h5``.
        workers: Processes; None: one per core, or one if there is a GPU.
        progress: Called with the progress.
        **settings: ``engine``, ``method``, ``replicas``, ``every`` and ``equilibration`` (in ps),
            ``highest_temperature``, ``rungs``, ``seed``; see `SimulationPlan.of_times`. And what describes
            the molecule: ``energy="xtb"``, ``temperature=310``; see `load_molecule`.

    Returns:
        The file.

    Raises:
        ValueError: if a setting is wrong, or the file holds another simulation.
        OSError: if a file is missing or damaged.
    """
    check_ending(Path(out), "out")
    system = chosen(molecule, {name: settings.pop(name) for name in OPTIONS & settings.keys()})
    simulation = Simulation.planned(out, system, ns, workers=workers, **settings)
    simulation.run(progress)
    return simulation.path
