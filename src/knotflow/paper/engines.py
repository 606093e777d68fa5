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
from knotflow.simulation.run import Simulation, SimulationPlan
from knotflow.statistics.estimates import Estimate, mean

SCALES: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "smoke": {
        "openmm": {"replicas": 4, "frames": 20, "equilibration": 1000, "seed": 3},
        "torch": {"engine": "torch", "replicas": 32, "frames": 4, "equilibration": 1000, "seed": 2},
        "tempering": {
            "engine": "torch",
            "method": "tempering",
            "replicas": 4,
            "frames": 4,
            "equilibration": 1000,
            "seed": 1,
        },
    },
    "small": {
        "openmm": {"replicas": 64, "frames": 400, "equilibration": 50_000, "seed": 3},
        "torch": {"engine": "torch", "replicas": 512, "frames": 200, "equilibration": 50_000, "seed": 2},
        "tempering": {
            "engine": "torch",
            "method": "tempering",
            "replicas": 64,
            "frames": 450,
            "equilibration": 50_000,
            "seed": 1,
        },
    },
}
"""Plans of the runs; frames are 1 ps apart."""


@dataclass(frozen=True)
class Run:
    """What one simulation found."""

    name: str
    n_frames: int
    n_replicas: int
    energy: Estimate
    """In kT."""
    temperature: Estimate | None
    """Of the motion, in K; not known of imported data."""
    left: Estimate
    """Fraction with phi > 0."""
    exchange_rates: tuple[float, ...] = ()
    round_trips: int = 0


@dataclass(frozen=True)
class Pair:
    """Two runs and how far they are apart, in error bars."""

    names: tuple[str, str]
    agreement: Agreement


def run(
    folder: Path,
    scale: str,
    *,
    reference: Path | None = None,
    progress: Progress = silent,
) -> tuple[list[Run], list[Pair]]:
    """Simulate what is missing in a folder, and compare each with each.

    Args:
        folder: For the trajectories and ``results.json``.
        scale: A key of `SCALES`.
        reference: One more trajectory, of ``knotflow import``.
        progress: Called with the progress of each run.
    """
    runs, ensembles = [], {}
    for name, options in SCALES[scale].items():
        folder.mkdir(parents=True, exist_ok=True)
        simulation = Simulation(folder / f"{name}.h5", ala2(), SimulationPlan.parse(options))
        simulation.run(titled(name, progress))
        ensembles[name] = observe(simulation.path)
        runs.append(_describe(name, ensembles[name], simulation))
    if reference is not None:
        ensembles["reference"] = observe(reference)
        runs.append(_describe("reference", ensembles["reference"]))
    pairs = [Pair((a, b), agreement(ensembles[a], ensembles[b])) for a, b in combinations(ensembles, 2)]
    write_json(folder / "results.json", {"runs": runs, "pairs": pairs})
    return runs, pairs


def _describe(name: str, ensemble: Ensemble, simulation: Simulation | None = None) -> Run:
    temperature, rates, trips = None, (), 0
    if simulation is not None:
        state = simulation.state
        temperature = mean(state.temperatures / state.frames)
        rates = tuple((state.accepted / state.tried).tolist())
        trips = state.round_trips
    return Run(
        name,
        ensemble.n_frames,
        ensemble.n_replicas,
        ensemble.averages["energy"],
        temperature,
        ensemble.averages["left"],
        rates,
        trips,
    )
