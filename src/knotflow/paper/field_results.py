"""Results of the benchmark beside the field: measures and costs of a finished molecule, from its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from knotflow.analysis.chain_summary import summarise_chains
from knotflow.files import read_json
from knotflow.flows.io import notes
from knotflow.paper.field import CHAINS, COSTS, DATA, METRICS, MODEL, Task, molecule
from knotflow.simulation import Simulation
from knotflow.statistics.estimates import Estimate


@dataclass(frozen=True)
class Result:
    """The measures and costs of a molecule."""

    name: str
    coordinates: int
    """Internal coordinates of the molecule."""
    samples: int
    """N, the number of weighted samples."""
    frames: int
    """Frames of the simulation."""
    measures: dict[str, Estimate]
    """Of all samples; those of torsions are means over residues, histograms in 16 × 16 bins."""
    states: dict[str, dict[str, dict[str, Any]]]
    """Effective sample sizes by residue and state."""
    free_energies: dict[str, dict[str, Estimate]]
    """F(phi > 0) - F(phi < 0) in kT by residue: ``weights``, ``data``, ``chains``."""
    evaluations: dict[str, int]
    """Energy evaluations by step; a simulation makes one per step of each walker."""
    gradient_steps: int
    core_minutes: dict[str, float]
    """By step; of all processes together."""

    @property
    def worst_left(self) -> Estimate:
        """The smallest effective sample size inside phi > 0 of a residue, weights clipped.

        NaN if a residue has too few samples there.
        """
        shares = [Estimate.read(states["phi > 0"]["ess_clipped"]) for states in self.states.values()]
        if not shares or any(math.isnan(share.value) for share in shares):
            return Estimate(math.nan)
        return min(shares, key=lambda share: share.value)


OVERALL: Final = (
    "ess", "ess_clipped", "pareto_k", "forward_kl", "force_error_1e4", "energy_w2", "energy_w2_reweighted",
    "energy_w2_data",
)  # fmt: skip
KINDS: Final = ("", "_reweighted", "_data")
HISTOGRAMS: Final = tuple(f"histogram_{key}{kind}" for key in ("tv", "kl") for kind in KINDS)
TORUS: Final = tuple(f"torus_w2{kind}" for kind in KINDS)
"""Measures that are shown."""


def read_result(task: Task) -> Result:
    """The result of a finished task."""
    metrics, noted = read_json(task.file(METRICS)), notes(task.file(MODEL))
    about, residues, costs = metrics["about"], metrics["residues"], read_json(task.file(COSTS))

    return Result(
        name=task.name,
        coordinates=3 * about["atoms"] - 6,
        samples=about["samples"],
        frames=about["data"]["frames_in_file"],
        measures={
            **{key: Estimate.read(metrics["measures"].get(key, {})) for key in OVERALL},
            **{key: _mean(metrics["histograms"], key) for key in HISTOGRAMS},
            **{key: _mean(residues, key) for key in TORUS},
        },
        states=metrics["states"],
        free_energies=_free_energies(task, residues),
        evaluations=_evaluations(task, metrics, costs),
        gradient_steps=sum(int(noted["training"].get(key) or 0) for key in ("marginals", "steps"))
        + sum(cycle["steps"] for cycle in noted.get("refinement", [])),
        core_minutes={name: cost["cpu"] / 60 for name, cost in costs.items()},
    )


def _mean(residues: Mapping[str, Any], key: str) -> Estimate:
    """Mean of a measure over residues, whose errors are taken to be independent."""
    found = [Estimate.read(of.get(key, {})) for of in residues.values()]
    if not found:
        return Estimate(math.nan)
    average = float(np.mean([one.value for one in found]))
    return Estimate(average, math.hypot(*(one.error for one in found)) / len(found))


def _free_energies(task: Task, residues: Mapping[str, Any]) -> dict[str, dict[str, Estimate]]:
    """By weights, by all frames of the simulation, and by exact chains."""
    found = {
        residue: {"weights": Estimate.read(of.get("side_difference_reweighted", {}))}
        for residue, of in residues.items()
    }
    files = {"data": task.file(DATA), **({"chains": task.file(CHAINS)} if task.exact else {})}
    for way, file in files.items():
        for residue, estimate in summarise_chains(file, task.seed).sides.items():
            found.setdefault(residue, {})[way] = estimate
    return found


def _evaluations(task: Task, metrics: Mapping[str, Any], costs: Mapping[str, Any]) -> dict[str, int]:
    return {
        "simulation": Simulation(task.file(DATA), molecule(task.name), task.plan).steps,
        "training": int(costs["training"]["evaluations"]),
        "measures": int(metrics["measures"]["energy_evaluations"]["value"]),
        **({"exact chains": task.exact.evaluations} if task.exact else {}),
    }
