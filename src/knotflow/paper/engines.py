"""Alanine dipeptide by OpenMM, by torch and by parallel tempering: the same distribution."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from knotflow.analysis.agreement import Agreement, Ensemble, agreement, observe
from knotflow.files import write_json
from knotflow.molecules.system import ala2
from knotflow.progress import Progress, silent, titled
from knotflow.simulation import Simulation, SimulationPlan
from knotflow.statistics.estimates import Estimate, mean

ENGINES: Final[dict[str, dict[str, Any]]] = {
    "openmm": {"seed": 3},
    "torch": {"engine": "torch", "seed": 2},
    "tempering": {"engine": "torch", "method": "tempering", "seed": 1},
}
"""The runs, by name."""
SCALES: Final[dict[str, tuple[int, dict[str, tuple[int, int]]]]] = {
    "smoke": (1_000, {"openmm": (4, 20), "torch": (32, 4), "tempering": (4, 4)}),
    "small": (50_000, {"openmm": (64, 400), "torch": (512, 200), "tempering": (64, 450)}),
}
"""Steps of equilibration, and for each run its replicas and frames, which are 1 ps apart."""


@dataclass(frozen=True)
class Run:
    """Averages of one simulation."""

    name: str
    n_frames: int
    n_replicas: int
    energy: Estimate
    """In kT."""
    temperature: Estimate | None
    """Kinetic temperature in K; None for imported data."""
    left: Estimate
    """Fraction with phi > 0."""
    exchange_rates: tuple[float, ...] = ()
    round_trips: int = 0


@dataclass(frozen=True)
class Pair:
    """Two runs and their deviations in error bars."""

    names: tuple[str, str]
    agreement: Agreement


def run(
    folder: Path, scale: str, *, reference: Path | None = None, progress: Progress = silent
) -> tuple[list[Run], list[Pair]]:
    """Run the simulations that are missing in a folder, and compare all pairs.

    Args:
        folder: For the trajectories and ``results.json``.
        scale: A key of `SCALES`.
        reference: Another trajectory to compare with, from ``knotflow import``.
        progress: Called with the progress of each run.
    """
    runs, ensembles = [], {}
    folder.mkdir(parents=True, exist_ok=True)
    equilibration, sizes = SCALES[scale]
    for name, (replicas, frames) in sizes.items():
        size = {"replicas": replicas, "frames": frames, "equilibration": equilibration}
        simulation = Simulation(folder / f"{name}.h5", ala2(), SimulationPlan.parse(ENGINES[name] | size))
        simulation.run(titled(name, progress))
        ensembles[name], state = observe(simulation.path), simulation.state
        temperature, rates = (
            mean(state.temperatures / state.frames),
            tuple((state.accepted / state.tried).tolist()),
        )
        runs.append(_described(name, ensembles[name], temperature, rates, state.round_trips))
    if reference is not None:
        ensembles["reference"] = observe(reference)
        runs.append(_described("reference", ensembles["reference"]))
    pairs = [Pair((a, b), agreement(ensembles[a], ensembles[b])) for a, b in combinations(ensembles, 2)]
    write_json(folder / "results.json", {"runs": runs, "pairs": pairs})
    return runs, pairs


def _described(name: str, found: Ensemble, temperature: Estimate | None = None, *exchanges: Any) -> Run:
    averages = found.averages
    return Run(
        name, found.n_frames, found.n_replicas, averages["energy"], temperature, averages["left"], *exchanges
    )
