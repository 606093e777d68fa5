"""The last five lines of the quickstart: what came out of it, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from knotflow.dynamics.protocol import DRIFT
from knotflow.files import read_json
from knotflow.report.verdicts import Level, judge
from knotflow.simulation.summary import Average, summarise
from knotflow.workflows.quickstart import Quickstart

AGREE: Final = 2.0
"""Standard errors up to which two numbers count as equal."""


@dataclass(frozen=True)
class Facts:
    """What came out, as far as the last lines tell of it."""

    metrics: Mapping[str, Any]
    """What the evaluation wrote."""
    drift: Mapping[str, Any]
    """What the dynamics wrote."""
    simulated: Average
    """F(phi > 0) - F(phi < 0) in kT of all frames; infinite if only one side was visited."""


def facts(job: Quickstart) -> Facts:
    """Read them from the files."""
    (left,) = summarise(job.data).left_handed.values()
    metrics, drift = (read_json(file) for file in (job.metrics, job.dynamics_folder / DRIFT))
    return Facts(metrics, drift, side_difference(left))


def side_difference(left: Average) -> Average:
    r"""F(phi > 0) - F(phi < 0) in kT from the fraction p of phi > 0: $\log((1 - p)/p)$."""
    p = left.mean
    if not 0 < p < 1:
        return Average(math.inf if p <= 0 else -math.inf, math.nan)
    return Average(math.log((1 - p) / p), left.error / (p * (1 - p)))


def lines(job: Quickstart, found: Facts) -> dict[str, str]:
    """Five sentences: what was learned, how good it is (two), where to look, and what to do next."""
    about, drift = found.metrics["about"], found.drift
    frames, atoms = about["data"]["frames_in_file"], about["atoms"]
    verdicts = {verdict.subject: verdict for verdict in judge(found.metrics)}
    weights, worth = verdicts["Weights"], verdicts["Efficiency"].sentence
    if weights.level is Level.POOR:
        worth = f"{worth}; {weights.sentence}"
    force = _average(found.metrics["measures"], "force_error_1e4")
    error = f"{force} · 10⁴ (kT/nm)²" if math.isfinite(force.mean) else "not known"
    whole, production = drift["replicas"] - drift["broken"], drift["about"]["config"]["production"]
    return {
        "Learned": f"the Boltzmann distribution of alanine dipeptide at {about['temperature']:g} K, from "
        f"{frames:,} frames of a simulation and the forces on its {atoms} atoms.",
        "Samples": f"{worth}; {_free_energy(found)}.",
        "Forces": f"squared error (FME) {error} on frames not seen in training; {whole} of "
        f"{drift['replicas']} molecules stayed whole for {production:g} ps on the learned energy.",
        "Look at": f"{job.page}, in a browser; {job.samples} has the samples and their weights.",
        "Next": f"`knotflow sample {job.folder} -n 100 --out look.pdb` for a viewer of molecules; "
        "docs/tutorials/first.md has all steps one by one, and says how to make them better.",
    }


def _free_energy(found: Facts) -> str:
    """F(phi > 0) - F(phi < 0) by weighted samples, and by the simulation."""
    residue: Mapping[str, Any] = next(iter(found.metrics["residues"].values()), {})
    ours, theirs = _average(residue, "side_difference_reweighted"), found.simulated
    name = "F(phi>0) - F(phi<0)"
    if not math.isfinite(theirs.mean):
        return f"{name} is not known, as the simulation never changed sides"
    if not math.isfinite(ours.mean):
        return f"{name} is {theirs} kT in the simulation, and not known from samples"
    spread = math.hypot(*(0.0 if math.isnan(part.error) else part.error for part in (ours, theirs)))
    near = abs(ours.mean - theirs.mean) <= AGREE * spread
    verdict = "within error bars" if near else "more apart than error bars explain"
    return f"{name} is {ours} kT reweighted, {theirs} kT in the simulation, {verdict}"


def _average(measures: Mapping[str, Any], key: str) -> Average:
    """Value and error of a measure; NaN for what is missing or, as JSON has it, null."""
    found = (measures.get(key, {}).get(part) for part in ("value", "error"))
    value, error = (math.nan if number is None else float(number) for number in found)
    return Average(value, error)
