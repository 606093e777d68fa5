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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from knotflow.dynamics.masses import Masses
from knotflow.files import read_json, write_json
from knotflow.flows import Flow
from knotflow.flows.io import notes
from knotflow.progress import Progress, silent
from knotflow.ranks import agreed, leads
from knotflow.training.checkpoint import read_checkpoint, write_checkpoint
from knotflow.training.config import TrainingConfig
from knotflow.training.objectives import Batch, Metric
from knotflow.training.replay import MOVE_STEPS, MOVED, REJECTED, Replay, Wells
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
CYCLES: Final = 3
"""Largest number of cycles for up to `FEW` coordinates; each doubling of these adds one."""
FEW: Final = 60
EVALUATIONS: Final = POINTS * (1 + MOVED * MOVE_STEPS)
"""Energy evaluations for each point of a batch, at most."""
JUDGED: Final = "ess_clipped"
"""The figure by which cycles are judged; without clipping, a single heavy sample may outweigh all others."""
GAIN: Final = 0.1
"""A cycle after which -log of that effective sample size is not lower by this share is the last."""


def most_cycles(n_coordinates: int) -> int:
    """Largest number of cycles of the refinement of a flow of so many coordinates."""
    return CYCLES + max(0, round(math.log2(n_coordinates / FEW)))


def relative_length(cycles: int) -> int:
    """Steps of so many cycles together, relative to those of the first."""
    return (1 << cycles) - 1


def evaluations(first: int, cycles: int, batch_size: int) -> float:
    """Energy evaluations of a refinement, at most, given the steps of its first cycle."""
    return EVALUATIONS * batch_size * first * relative_length(cycles)


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
        progress: called with the progress of each cycle.
    """
    report = progress or silent
    report("judging frames and samples", 0, 0)
    steps = max(1, training.steps // 2) if first is None else first
    every = max(1, steps // ROUNDS)
    most = most_cycles(generator.flow.dim) if cycles is None else cycles
    energy.expect(evaluations(steps, most, training.batch_size))
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
    for number in range(most):
        length = steps * 2**number
        cycle = folder / f"cycle-{number + 1}"
        note = ", ".join(f"{key} {100 * value:.1f} %" for key, value in before.items()) + " before"
        flow = fit(
            copy.deepcopy(flow),  # it is changed in place
            anchor,
            _config(training, length, every, len(anchor.x)),
            cycle,
            validation=held_out,
            metric=metric,
            own=replay,
            progress=_noted(f"refining, cycle {number + 1} of at most {most}", note, report),
        )
        replay.offset += length
        found = _measured(replay, flow, cycle / "figures.json", training.seed + number + 1)
        seconds = agreed(notes(cycle / MODEL)["seconds"] if leads() else 0.0)
        history.append({"steps": length, "seconds": seconds, **found})
        lost, was = (-math.log(max(figures[JUDGED], 1e-12)) for figures in (found, before))
        if lost <= was:
            best, before = flow, found
        if lost > (1 - GAIN) * was:
            break
    if leads():
        replay.clear()
    return best, history


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
