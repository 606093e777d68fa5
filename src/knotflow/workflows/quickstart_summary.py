"""The last five lines of the quickstart: its results in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from knotflow.dynamics.protocol import DRIFT
from knotflow.files import read_json
from knotflow.report.verdicts import Level, judge
from knotflow.simulation.summary import summarise
from knotflow.statistics.estimates import Estimate
from knotflow.workflows.quickstart import Quickstart

AGREE: Final = 2.0
"""Standard errors up to which two numbers count as equal."""


@dataclass(frozen=True)
class Facts:
    """The results that the last lines report."""

    metrics: Mapping[str, Any]
    """The file of the evaluation."""
    drift: Mapping[str, Any]
    """The file of the dynamics."""
    simulated: Estimate
    """F(phi > 0) - F(phi < 0) in kT from all frames; infinite if only one side was visited."""


def facts(job: Quickstart) -> Facts:
    """Read the results from the files of a finished quickstart."""
    (left,) = summarise(job.data).left_handed.values()
    metrics, drift = (read_json(file) for file in (job.metrics, job.dynamics_folder / DRIFT))
    return Facts(metrics, drift, side_difference(left))


def side_difference(left: Estimate) -> Estimate:
    r"""F(phi > 0) - F(phi < 0) in kT from the fraction p of phi > 0: $\log((1 - p)/p)$."""
    p = left.value
    if not 0 < p < 1:
        return Estimate(math.inf if p <= 0 else -math.inf, math.nan)
    return Estimate(math.log((1 - p) / p), left.error / (p * (1 - p)))


def lines(job: Quickstart, found: Facts) -> dict[str, str]:
    """Five sentences: what was learned, how good it is (two), where to look, and what to do next."""
    about, drift = found.metrics["about"], found.drift
    frames, atoms = about["data"]["frames_in_file"], about["atoms"]
    verdicts = {verdict.subject: verdict for verdict in judge(found.metrics)}
    weights, worth = verdicts["Weights"], verdicts["Efficiency"].sentence
    if weights.level is Level.POOR:
        worth = f"{worth}; {weights.sentence}"
    force = Estimate.read(found.metrics["measures"].get("force_error_1e4", {}))
    error = f"{force} · 10⁴ (kT/nm)²" if math.isfinite(force.value) else "unknown"
    whole, production = drift["replicas"] - drift["broken"], drift["about"]["config"]["production"]
    return {
        "Learned": f"the Boltzmann distribution of alanine dipeptide at {about['temperature']:g} K, from "
        f"{frames:,} frames of a simulation and the forces on its {atoms} atoms.",
        "Samples": f"{worth}; {_free_energy(found)}.",
        "Forces": f"squared error (FME) {error} on frames not seen in training; {whole} of "
        f"{drift['replicas']} molecules stayed whole for {production:g} ps on the learned energy.",
        "Look at": f"{job.page}, in a browser; {job.samples} holds the samples and their weights.",
        "Next": f"`knotflow sample {job.folder} -n 100 --out look.pdb` for a molecular viewer; "
        "docs/tutorials/first.md explains each step, and how to get better results.",
    }


def _free_energy(found: Facts) -> str:
    """F(phi > 0) - F(phi < 0) from weighted samples and from the simulation."""
    residue: Mapping[str, Any] = next(iter(found.metrics["residues"].values()), {})
    ours, theirs = Estimate.read(residue.get("side_difference_reweighted", {})), found.simulated
    name = "F(phi>0) - F(phi<0)"
    if not math.isfinite(theirs.value):
        return f"{name} is unknown, as the simulation never changed sides"
    if not math.isfinite(ours.value):
        return f"{name} is {theirs} kT in the simulation, and unknown from samples"
    spread = math.hypot(*(0.0 if math.isnan(part.error) else part.error for part in (ours, theirs)))
    near = abs(ours.value - theirs.value) <= AGREE * spread
    verdict = "within error bars" if near else "further apart than error bars explain"
    return f"{name} is {ours} kT reweighted, {theirs} kT in the simulation, {verdict}"
