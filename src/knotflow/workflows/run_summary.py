"""The last five lines of a run: its results in words."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from knotflow.analysis.chain_summary import summarise_chains
from knotflow.analysis.measures import Measure, note_of_visits
from knotflow.analysis.states import states_of_file
from knotflow.files import read_json
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.report.verdicts import EFFICIENCY, WEIGHTS, Level, Verdict, judge
from knotflow.sentences import listed
from knotflow.statistics.estimates import Estimate
from knotflow.workflows.molecule import chosen
from knotflow.workflows.whole_run import Run, complete

WORST_FIRST: Final = (Level.POOR, Level.FAIR, Level.UNKNOWN, Level.GOOD)
"""Which of several verdicts is told, if there is room for one."""
NO_TRUST: Final = (
    "do not trust it yet: the weights are poor, and there was no time for exact chains; give it more "
    "--hours, in another folder"
)

FROM: Final = {"exact": "by exact chains", "reweighted": "by weighted samples"}
"""Sources of populations, in words."""


@dataclass(frozen=True)
class Facts:
    """The results that the last lines report; free energies F(phi > 0) - F(phi < 0) in kT, by residue."""

    metrics: Mapping[str, Any]
    """The file of the evaluation."""
    simulated: Mapping[str, Estimate]
    """From all frames; infinite if only one side was visited, without an error if one was too rarely."""
    chains: Mapping[str, Estimate] = field(default_factory=dict)
    """From exact chains, if there are any."""
    populations: Mapping[str, Estimate] = field(default_factory=dict)
    """Of the states of the evaluation in all frames, by the definition of a state."""


def run(
    molecule: MolecularSystem | str | Path | None = None,
    hours: float = 2.0,
    out: str | Path = "runs/run",
    *,
    seed: int = 0,
    again: str | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Facts:
    """From a molecule to an answer, in the time given: the command ``knotflow run``.

    Called again with the same arguments, an interrupted run is continued and a finished one is read.

    Args:
        molecule: A molecule from `knotflow.molecules`, or what the command takes: a file, a SMILES, or
            ``"ala2"``, the default.
        hours: Time for everything together.
        out: Folder for the results; all other functions take it as a model.
        seed: Seed of all random numbers.
        again: A stage to be done again, with all that follow: ``"simulate"``, ``"train"``, ``"sample"``,
            ``"evaluate"``, ``"exact"`` or ``"report"``.
        progress: Called with the progress.
        **options: What describes the molecule: ``energy="xtb"``, ``temperature=310``; see
            `knotflow.workflows.molecule.load_molecule`.

    Raises:
        ValueError: if there is no such molecule or stage, the folder holds results of other settings, or the
            time is too short.
        OSError: if a file is missing or damaged, or another process works in the folder.
    """
    job = Run(Path(out), chosen(molecule, options), hours, seed)
    complete(job, progress, again)
    return facts(job)


def facts(job: Run) -> Facts:
    """Read the results from the files of a finished run."""
    chains = summarise_chains(job.chains).sides if job.chains.exists() else {}
    metrics = read_json(job.metrics)
    states = [state["definition"] for group in metrics.get("states") or () for state in group["states"]]
    return Facts(metrics, summarise_chains(job.data).sides, chains, _populations(job.data, states))


def _populations(data: Path, states: Sequence[str]) -> dict[str, Estimate]:
    """The populations of states in all frames, by their definitions."""
    names = [f"state {i}" for i in range(len(states))]
    texts = [f"{name}: {state}" for name, state in zip(names, states, strict=True)]
    found = states_of_file(data, texts) if texts else []
    return {
        state: group.population(name, "data")
        for group in found
        for name, state in zip(names, states, strict=True)
    }


def lines(job: Run, found: Facts) -> dict[str, str]:
    """Five sentences: what was learned, how good samples are, the answer, where to look, what to do next."""
    about = found.metrics["about"]
    frames, atoms = about["data"]["frames_in_file"], about["atoms"]
    verdicts = {verdict.subject: verdict for verdict in judge(_with_all_frames(found))}
    weights, worth = verdicts["Weights"], verdicts["Efficiency"].sentence
    if weights.level is Level.POOR:
        worth = f"{worth}; {weights.sentence}"
    force = Estimate.read(found.metrics["measures"].get("force_error_1e4", {}))
    error = f", with a squared error of {force} · 10⁴ (kT/nm)²" if math.isfinite(force.value) else ""
    files = f"{job.samples} holds the samples and their weights"
    files += f", {job.chains} those of exact chains" if job.chains.exists() else ""
    return {
        "Learned": f"the Boltzmann distribution of {job.system.name} at {about['temperature']:g} K, from "
        f"{frames:,} frames of a simulation and the forces on its {atoms} atoms{error}.",
        "Samples": f"{worth}.",
        "Answer": f"{_answer(verdicts, found, chained=job.chains.exists())}.",
        "Look at": f"{job.page}, in a browser; {files}.",
        "Next": f"`knotflow sample {job.folder} -n 100 --out look.pdb` for a molecular viewer; "
        "docs/tutorials/first.md explains each step.",
    }


def _answer(verdicts: Mapping[str, Verdict], found: Facts, *, chained: bool) -> str:
    """Free energies and populations, and whether they can be trusted."""
    sides = [verdict for name, verdict in verdicts.items() if name.startswith("Free energy")]
    worst = sorted(sides, key=lambda verdict: WORST_FIRST.index(verdict.level))[:1]
    said = [_told(verdict) for verdict in worst]
    if not sides:
        said += populations(found.metrics, "exact" if chained else "reweighted")
    said += [_told(verdicts["States"])] if "States" in verdicts else []
    if len(sides) <= 1:
        said += [f"exact chains give {value} kT for {name}" for name, value in found.chains.items()]
    else:
        said.append(f"the page shows {len(sides) - 1} more free energies")
    if _doubtful(verdicts, found) and not chained:
        said.insert(0, NO_TRUST)
    return "; ".join(said) or "the molecule has no states to compare"


def _doubtful(verdicts: Mapping[str, Verdict], found: Facts) -> bool:
    """Whether weights are poor or, since bad weights have wide error bars, seem to be."""
    judged = (("Weights", WEIGHTS, "pareto_k"), ("Efficiency", EFFICIENCY, "ess"))
    levels = [verdicts[subject].level for subject, _, _ in judged]
    for _, rule, key in judged:
        value = Estimate.read(found.metrics["measures"].get(key, {})).value
        levels += [rule.level(value)] if math.isfinite(value) else []
    return Level.POOR in levels


def _told(verdict: Verdict) -> str:
    """The sentence of a verdict; one that is not known does not say what it is about."""
    return f"{verdict.subject}: {verdict.sentence}" if verdict.level is Level.UNKNOWN else verdict.sentence


def populations(metrics: Mapping[str, Any], source: str) -> list[str]:
    """The populations of the group of states that divides the molecule most evenly, in words.

    Args:
        metrics: The file of the evaluation.
        source: Where they come from: ``"exact"`` or ``"reweighted"``.
    """
    groups = []
    for group in metrics.get("states", []):
        shares = {s["name"]: Estimate.read(s["population"].get(source, {})) for s in group["states"]}
        known = {name: share for name, share in shares.items() if share.value > 0}
        entropy = -sum(share.value * math.log(share.value) for share in known.values())
        groups.append((entropy, group["group"], known))
    if not groups:
        return []
    _, name, shares = max(groups, key=lambda found: found[0])
    all_shares = ", ".join(f"{state} {share}" for state, share in shares.items())
    others = [other for _, other, _ in groups if other != name]
    more = f"; the page shows those around {listed(others)}" if others else ""
    return [f"populations around {name}: {all_shares} ({FROM[source]}){more}"] if shares else []


def _with_all_frames(found: Facts) -> dict[str, Any]:
    """The evaluation, with free energies and populations of all frames instead of the held-out ones."""
    residues = {}
    for name, of in found.metrics["residues"].items():
        simulated = found.simulated.get(name)
        if simulated is not None:
            all_frames = Measure.of("F(phi>0) - F(phi<0)", simulated, note_of_visits(simulated)).plain()
            of = {**of, "side_difference_data": all_frames}
        residues[name] = of
    groups = copy.deepcopy(found.metrics.get("states") or [])
    for state in (state for group in groups for state in group["states"]):
        if (share := found.populations.get(state["definition"])) is not None:
            state["population"]["data"] = {"value": share.value, "error": share.error}
    return {**found.metrics, "residues": residues, "states": groups}
