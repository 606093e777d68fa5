r"""Refinement with the energy: a generator that has learned its frames goes on with points of its own.

Frames are few, and their likelihood is a noisy guide: near the optimum, the gradient of $-\log p$ over a
batch is mostly noise. Energies and forces are exact. So the refinement draws hundreds of thousands of points
(`knotflow.training.replay`), matches forces and densities there, and keeps the frames as an anchor. It goes
on in cycles, each twice as long as the last, in each of which the learning rate falls to zero. It stops by
itself when a cycle no longer improves the weights of fresh samples.
"""

from __future__ import annotations

import copy
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from knotflow.dynamics.masses import Masses
from knotflow.energies.speed import evaluations_per_second
from knotflow.files import read_json, write_json
from knotflow.flows import Flow
from knotflow.flows.io import notes
from knotflow.progress import Progress, silent
from knotflow.ranks import agreed, leads
from knotflow.training.checkpoint import read_checkpoint, write_checkpoint
from knotflow.training.config import TrainingConfig
from knotflow.training.cycles import Cycles, Deadline, most_cycles
from knotflow.training.objectives import Batch, Metric
from knotflow.training.replay import ADDED, MOVE_STEPS, MOVED, REJECTED, Replay, Wells
from knotflow.training.run import MODEL, fit

if TYPE_CHECKING:
    from knotflow.energies import MolecularEnergy
    from knotflow.flows.boltzmann import BoltzmannGenerator

OWN_SHARE: Final = 0.75
"""Share of points of the model itself in a batch; the rest are frames."""
ENERGY_WEIGHT: Final = 0.5
"""Weight of the squared error of log-densities, relative to the likelihood."""
RATE: Final = 0.5
"""Largest learning rate of a cycle, relative to that of the training before."""
ROUNDS: Final = 4
"""Rounds of new points in the first cycle; later cycles have rounds of the same length."""
POINTS: Final = 0.4
"""Points drawn in a round, for each point of its batches."""
EVALUATIONS: Final = POINTS * (1 + ADDED + MOVED * MOVE_STEPS)
"""Energy evaluations for each point of a batch, at most."""
JUDGED: Final = "ess_trimmed"
"""The figure by which cycles are judged; in the others, a few heavy samples may outweigh all others."""
GAIN: Final = 0.1
"""A cycle after which -log of that effective sample size is not lower by this share is the last."""


def evaluations(steps: float, batch_size: int) -> float:
    """Energy evaluations of so many steps, at most."""
    return EVALUATIONS * batch_size * steps


def refine(
    generator: BoltzmannGenerator,
    train: Batch,
    training: TrainingConfig,
    folder: Path,
    *,
    energy: MolecularEnergy,
    masses: Masses,
    metric: Metric | None = None,
    validation: Batch | None = None,
    first: int | None = None,
    cycles: int | None = None,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
) -> tuple[Flow, list[dict[str, Any]]]:
    """Refine the flow of a trained generator; returns the best flow, and the figures of every cycle.

    Called again, an interrupted refinement resumes.

    Args:
        generator: the generator; its flow is the start.
        train: the frames it was trained on, with scores.
        training: how it was trained.
        folder: gets a folder for each cycle, with the files of `fit`.
        energy: energy of the molecule.
        masses: masses of the atoms, at the temperature of the energy.
        metric: measure of force errors.
        validation: frames held out.
        first: steps of the first cycle; None: half as many as the training had.
        cycles: largest number of cycles; None: `most_cycles`.
        deadline: when to end. Cycles are then as long as the time allows, ``first`` steps or more.
        progress: called with the progress of each cycle.
    """
    report = progress or silent
    report("judging frames and samples", 0, 0)
    plan = Cycles(
        folder,
        max(1, training.steps // 2) if first is None else first,
        most_cycles(generator.flow.dim) if cycles is None else cycles,
        deadline,
    )
    _expect(energy, generator, training.batch_size, plan)
    steps = agreed(plan.steps(1) if leads() else 0)
    every = max(1, steps // ROUNDS)
    wells = Wells.of(generator.flow, train.x)
    n = max(
        round(POINTS * training.batch_size * every),
        1000,
        math.ceil(OWN_SHARE * training.batch_size / REJECTED) + 1,
    )
    replay = Replay(generator, energy, masses, wells, folder / "replay", n=n)
    anchor = _with_target(replay, train, "frames")
    held_out = None if validation is None else _with_target(replay, validation, "held-out")
    flow, history = generator.flow, list[dict[str, Any]]()
    best = flow
    before = _measured(replay, flow, folder / "start.json", training.seed)
    for number in range(1, plan.most + 1):
        steps = agreed(plan.steps(number) if leads() else 0)
        if not steps:
            break
        cycle, began = plan.path(number), time.perf_counter()
        note = ", ".join(f"{key} {100 * value:.1f} %" for key, value in before.items()) + " before"
        flow = fit(
            copy.deepcopy(flow),  # it is changed in place
            anchor,
            _config(training, steps, every, len(anchor.x)),
            cycle,
            validation=held_out,
            metric=metric,
            own=replay,
            progress=_noted(f"refining, cycle {number} of at most {plan.most}", note, report),
        )
        replay.offset += steps
        found = _measured(replay, flow, cycle / "figures.json", training.seed + number)
        seconds = agreed(notes(cycle / MODEL)["seconds"] if leads() else 0.0)
        plan.seconds = max(seconds, time.perf_counter() - began) / steps  # the longer: it may have resumed
        history.append({"steps": steps, "seconds": seconds, **found})
        lost, was = (-math.log(max(figures[JUDGED], 1e-12)) for figures in (found, before))
        if lost <= was:
            best, before = flow, found
        if lost > (1 - GAIN) * was:
            break
    if leads():
        replay.clear()
    return best, history


def _expect(energy: MolecularEnergy, generator: BoltzmannGenerator, batch_size: int, plan: Cycles) -> None:
    """Tell the energy how many evaluations will follow; with a deadline, find out how long a step takes."""
    if plan.deadline is not None:
        positions = np.asarray(generator.molecule["positions"])
        for _ in range(2):  # compiled for so many, it may be faster
            rate = evaluations_per_second(energy, positions)
            plan.seconds = plan.deadline.step + evaluations(1, batch_size) / rate
            energy.expect(evaluations(plan.total, batch_size))
    else:
        energy.expect(evaluations(plan.total, batch_size))


def _config(training: TrainingConfig, steps: int, every: int, frames: int) -> TrainingConfig:
    """The settings of a cycle; of many temperatures, the target may have fewer frames than a batch."""
    return training.model_copy(
        update={
            "steps": steps,
            "batch_size": min(training.batch_size, frames),
            "learning_rate": RATE * training.learning_rate,
            "schedule": "cosine",
            "marginals": 0,
            "warm_up": min(50, steps),
            "loss": training.loss.model_copy(update={"energy_matching": ENERGY_WEIGHT, "reverse_kl": 0.0}),
            "own_share": OWN_SHARE,
            "checkpoint_every": every,
        }
    )


def _with_target(replay: Replay, data: Batch, name: str) -> Batch:
    """Frames with densities, and weights of one; those that the energy does not allow are left out.

    They are computed once: another number of threads may round energies differently, and `fit` would take
    that for other data.
    """
    path = replay.folder / f"{name}.rows"
    if not agreed(path.exists()):
        score, log_target = replay.judged(data.x)
        fine = log_target.isfinite()
        ones = torch.ones_like(data.x[:, 0])
        rows = Batch(data.x[fine], score[fine], None, log_target[fine].to(data.x), ones[fine])
        if leads():
            write_checkpoint(path, {"rows": tuple(rows)})
    return Batch(*agreed(read_checkpoint(path)["rows"] if leads() else ()))


def _measured(replay: Replay, flow: Flow, path: Path, seed: int) -> dict[str, float]:
    """Figures of fresh samples, measured once."""
    found: dict[str, float] | None = agreed(read_json(path, "ess") if leads() and path.exists() else None)
    if found is not None:
        return found
    q, log_prob, _, log_target = replay.drawn(flow, 2**40 + seed)
    figures = replay.figures(q, (log_target - log_prob.double()).cpu().numpy())
    if leads():
        write_json(path, figures)
    return figures


def _noted(title: str, before: str, progress: Progress) -> Progress:
    """Progress under another title, with the figures before the cycle."""

    def report(doing: str, done: float, total: float, note: str = "") -> None:
        progress(title, done, total, f"{before}; {note}" if note else before)

    return report
