"""Milliseconds of training steps and of sampling, with Boltzmann generators for alanine dipeptide.

A *step* is the loss, its gradient with respect to the weights, and Adam, on a batch of random frames around
the minimum of the energy with their forces: *NLL*, or *NLL + forces*, where force matching is added.

* The preset ``paper`` (B-splines of 32 bins) beside a peer with the same couplings and networks and the
  rational-quadratic splines of nflows on intervals and of normflows on circles, 16 bins, as the paper's RQ
  model has. Sampling draws molecules with their log-densities, positions included, without gradients.
* The preset ``best`` beside the same networks with trivial maps (`benchmarks.models.Trivial`): how much of a
  step the maps take.
* Sampling as ``knotflow sample`` does it, which checks handedness: with the model that comes with knotflow,
  and with the untrained preset ``paper``, whose mirror images are kept.
* The first step of a new process, see `benchmarks.first_step`.

All run eagerly, and all calls are timed in turns, see `benchmarks.timing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from benchmarks import first_step
from benchmarks.flow import FORCE_STEP, NLL_STEP, SAMPLE, flow_table, milliseconds, n_parameters, training
from benchmarks.models import (
    Loss,
    best_generator,
    best_loss,
    frames,
    paper_generator,
    paper_loss,
    peer_generator,
    scores,
    splines,
    with_trivial_maps,
)
from benchmarks.report import Table, progress
from benchmarks.timing import Cell, notes, ratio, time_in_turns
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.sampling import Sampler
from knotflow.molecules import ala2
from knotflow.training import Batch

OURS, PEER = "knotflow paper B-spline", "same networks, RQ of nflows/normflows"
BEST, TRIVIAL = "knotflow best", "same networks, trivial maps"
SAMPLER = "knotflow sample"


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    batch: int = 128
    best_batch: int = 256
    samples: int = 1_000
    repeats: int = 31
    seed: int = 0

    @classmethod
    def quick(cls) -> Settings:
        return cls(batch=8, best_batch=8, samples=20, repeats=2)


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """All tables, and a record of every cell."""
    models = {OURS: paper_generator(settings.seed), PEER: peer_generator(settings.seed)}
    batch = frames(ala2(), "paper", settings.batch, settings.seed)
    paper = [
        cell for name, model in models.items() for cell in paper_cells(name, model, batch, settings.samples)
    ]
    best, sampled = best_cells(settings), sampler_cells(settings)
    with progress(console) as bar:
        time_in_turns(bar, "generator", [*paper, *best, *sampled], settings.repeats)
    sizes = {name: (splines(model), n_parameters(model)) for name, model in models.items()}
    steps = [cell for cell in paper if cell.what != SAMPLE]
    samples = [cell for cell in paper if cell.what == SAMPLE]
    start = first_step.measure(torch.get_num_threads(), settings.batch)
    tables = [
        flow_table(f"ms per training step, batch {settings.batch}", steps, sizes),
        flow_table(f"ms to sample {settings.samples} molecules", samples, sizes),
        best_table(best),
        sampler_table(sampled),
        first_step_table(start),
    ]
    records = [cell.record() for cell in [*paper, *best, *sampled]]
    return tables, [*records, {"what": "first step", **start}]


def paper_cells(name: str, model: BoltzmannGenerator, batch: Batch, samples: int) -> list[Cell]:
    """Steps with both losses and sampling."""
    cells = [
        step_cell(name, name == OURS, what, model, paper_loss(model, what), batch)
        for what in (NLL_STEP, FORCE_STEP)
    ]
    cell = Cell(name, name == OURS, SAMPLE, "eager", samples)
    cell.call = timed(lambda: model.sample_and_log_prob(samples))
    return [*cells, cell]


def best_cells(settings: Settings) -> list[Cell]:
    """Steps with forces: the preset ``best``, and its networks alone."""
    batch = frames(ala2(), "bonds", settings.best_batch, settings.seed)
    ours = best_generator(ala2(), batch.x, settings.seed)
    batch = batch._replace(x=ours.unwound(batch.x))
    return [
        step_cell(name, name == BEST, FORCE_STEP, model, best_loss(model, scores(batch)), batch)
        for name, model in ((BEST, ours), (TRIVIAL, with_trivial_maps(ours)))
    ]


def sampler_cells(settings: Settings) -> list[Cell]:
    """Molecules as the command draws them."""
    trained, untrained = BoltzmannGenerator.pretrained("ala2"), paper_generator(settings.seed)
    cells = []
    for name, model in (("the model ala2", trained), ("preset paper, untrained", untrained)):
        cell = Cell(name, True, SAMPLER, "eager", settings.samples)
        cell.call = timed(lambda model=model: sample(model, settings, keep_mirrored=model is untrained))
        cells.append(cell)
    return cells


def sample(model: BoltzmannGenerator, settings: Settings, *, keep_mirrored: bool) -> None:
    """With a sampler of its own: what one has left over would help the next call."""
    Sampler(model, settings.seed, keep_mirrored=keep_mirrored).take(settings.samples)


def step_cell(name: str, ours: bool, what: str, model: BoltzmannGenerator, loss: Loss, batch: Batch) -> Cell:
    cell = Cell(name, ours, what, "eager", len(batch.x))
    cell.call = training(model.flow, loss, batch.x, scores(batch))
    return cell


def timed(function: Callable[[], Any]) -> Callable[[], list[float]]:
    """A call of one stage."""

    def call() -> list[float]:
        began = time.perf_counter()
        function()
        return [time.perf_counter() - began]

    return call


def best_table(cells: list[Cell]) -> Table:
    bare = cells[-1].median()
    rows = [
        [cell.candidate, *(milliseconds(cell, t) for t in (cell.median(), cell.least())), ratio(cell, bare)]
        for cell in cells
    ]
    columns = ["maps", "median ms", "min ms", "/ trivial maps"]
    title = f"ms per training step with forces, preset best, batch {cells[0].elements}"
    return Table(title, columns, rows, notes(cells))


def sampler_table(cells: list[Cell]) -> Table:
    rows = [
        [cell.candidate, *(milliseconds(cell, t) for t in (cell.median(), cell.least()))] for cell in cells
    ]
    title = f"ms to draw {cells[0].elements} molecules as knotflow sample does"
    return Table(title, ["generator", "median ms", "min ms"], rows, notes(cells))


def first_step_table(start: dict[str, Any]) -> Table:
    seconds = [f"{start[name]:.2f}" for name in ("import_s", "build_s", "first_step_s")]
    columns = ["preset", "import", "model and batch", "first step", "compiled"]
    rows = [["paper, NLL + forces", *seconds, "yes" if start["compiled"] else "nothing"]]
    return Table("seconds of a new process, empty caches", columns, rows)
