"""The last five lines of the quickstart: its results in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knotflow.analysis.chain_summary import summarise_chains
from knotflow.analysis.measures import Measure, note_of_visits
from knotflow.dynamics.protocol import DRIFT
from knotflow.files import read_json
from knotflow.report.verdicts import Level, judge
from knotflow.statistics.estimates import Estimate
from knotflow.workflows.quickstart import Quickstart


@dataclass(frozen=True)
class Facts:
    """The results that the last lines report."""

    metrics: Mapping[str, Any]
    """The file of the evaluation."""
    drift: Mapping[str, Any]
    """The file of the dynamics."""
    simulated: Estimate
    """F(phi > 0) - F(phi < 0) in kT from all frames; infinite if only one side was visited, and without an
    error if one was visited too rarely."""


def facts(job: Quickstart) -> Facts:
    """Read the results from the files of a finished quickstart."""
    (simulated,) = summarise_chains(job.data).sides.values()
    metrics, drift = (read_json(file) for file in (job.metrics, job.dynamics_folder / DRIFT))
    return Facts(metrics, drift, simulated)


def lines(job: Quickstart, found: Facts) -> dict[str, str]:
    """Five sentences: what was learned, how good it is (two), where to look, and what to do next."""
    about, drift = found.metrics["about"], found.drift
    frames, atoms = about["data"]["frames_in_file"], about["atoms"]
    verdicts = {verdict.subject: verdict for verdict in judge(_with_all_frames(found))}
    weights, worth = verdicts["Weights"], verdicts["Efficiency"].sentence
    sides = next(verdict for subject, verdict in verdicts.items() if subject.startswith("Free energy"))
    if weights.level is Level.POOR:
        worth = f"{worth}; {weights.sentence}"
    force = Estimate.read(found.metrics["measures"].get("force_error_1e4", {}))
    error = f"{force} · 10⁴ (kT/nm)²" if math.isfinite(force.value) else "unknown"
    whole, production = drift["replicas"] - drift["broken"], drift["about"]["config"]["production"]
    return {
        "Learned": f"the Boltzmann distribution of alanine dipeptide at {about['temperature']:g} K, from "
        f"{frames:,} frames of a simulation and the forces on its {atoms} atoms.",
        "Samples": f"{worth}; {sides.sentence}.",
        "Forces": f"squared error (FME) {error} on frames not seen in training; {whole} of "
        f"{drift['replicas']} molecules stayed whole for {production:g} ps on the learned energy.",
        "Look at": f"{job.page}, in a browser; {job.samples} holds the samples and their weights.",
        "Next": f"`knotflow sample {job.folder} -n 100 --out look.pdb` for a molecular viewer; "
        "docs/tutorials/first.md explains each step, and how to get better results.",
    }


def _with_all_frames(found: Facts) -> dict[str, Any]:
    """The evaluation, with the free energy of all frames instead of that of the held-out ones."""
    simulated = Measure.of("F(phi>0) - F(phi<0)", found.simulated, note_of_visits(found.simulated)).plain()
    residues = found.metrics["residues"].items()
    return {
        **found.metrics,
        "residues": {name: {**of, "side_difference_data": simulated} for name, of in residues},
    }
