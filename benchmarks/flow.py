"""Milliseconds of training steps and of sampling, with whole flows.

Two coordinates, four couplings, perceptrons with two hidden layers, as in the toy example; data are points
of the rings with their forces, rescaled for the flows of other libraries. A *step* is the loss, its gradient
with respect to the weights, and Adam, in two settings: *NLL*, and *NLL + forces*, where the squared error of
the score is added, by ``torch.autograd.grad`` with a graph of its own.

knotflow runs eagerly. Peers are compiled as well: the loss is one graph (``torch.compile(fullgraph=True,
dynamic=False)``), which holds the score, too, by ``torch.func.grad``; backward runs the graph that PyTorch
derives from it. Adam is not compiled. *Sampling* draws points without gradients, eager.

A third table has steps of *wide* data, normal with 500 coordinates, with the default flows of knotflow and
zuko, eager.

All calls, of all tables, are timed in turns, see `benchmarks.timing`. Every cell has a flow of its own,
built from the same seed, which the steps train. Ratios are ratios of medians. What cannot be run or compiled
has a dash in its cell, and a note has the first line of the error. Every compiled gradient is compared with
the eager one before the first step, and the largest difference is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.flow_peers import FlowCandidate, flow_candidates, wide_candidates
from benchmarks.report import Table, progress
from benchmarks.timing import (
    RATIO_COLUMNS,
    Cell,
    compile_alone,
    figure,
    first_call,
    notes,
    ratios,
    time_in_turns,
)
from knotflow.energies import Rings, metropolis
from knotflow.training import NLL, Batch, ForceMatching, Mix

NLL_STEP, FORCE_STEP, SAMPLE, WIDE_STEP = "NLL", "NLL + forces", "sample", "wide"
FORCE_WEIGHT = 1e-4
LEARNING_RATE = 1e-3
Loss = Callable[[Tensor, Tensor], Tensor]
"""``(x, force) -> loss`` of one flow."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    bins: int = 32
    hidden: tuple[int, int] = (100, 100)
    batch: int = 1_000
    samples: int = 10_000
    burn_in: int = 500
    """Metropolis steps before the training data."""
    repeats: int = 31
    wide: int = 500
    """Coordinates of the table of wide data."""
    wide_batch: int = 256
    compiled: bool = True
    seed: int = 0

    @classmethod
    def quick(cls) -> Settings:
        small = {"batch": 100, "samples": 500, "burn_in": 20, "wide": 70, "wide_batch": 20}
        return cls(bins=8, hidden=(16, 16), **small, repeats=3, compiled=False)


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """The tables of training steps and of sampling, and a record of every cell."""
    torch._dynamo.reset()
    everyone = flow_candidates(settings.bins, settings.hidden)
    x, force = rings(settings)
    cells: list[Cell] = []
    with progress(console) as bar:
        title = "compile" if settings.compiled else "build"
        for candidate in bar.track(everyone, description=f"flow: {title}"):
            cells += make_cells(candidate, x, force, settings)
        wide = [wide_cell(candidate, settings) for candidate in wide_candidates(settings.wide)]
        cells += wide
        time_in_turns(bar, "flow", cells, settings.repeats)
    sizes = {c.name: (c.splines, n_parameters(c.build())) for c in everyone}
    sizes |= {c.name: (c.splines, n_parameters(c.build())) for c in wide_candidates(settings.wide)}
    steps = [cell for cell in cells if cell.what in (NLL_STEP, FORCE_STEP)]
    samples = [cell for cell in cells if cell.what == SAMPLE]
    tables = [
        flow_table("ms per training step", steps, sizes),
        flow_table("ms to sample, no gradients", samples, sizes),
        flow_table(f"ms per training step, default flows of {settings.wide} coordinates", wide, sizes),
    ]
    records = [
        {**cell.record(), "splines": sizes[cell.candidate][0], "parameters": sizes[cell.candidate][1]}
        for cell in cells
    ]
    return tables, records


def rings(settings: Settings) -> tuple[Tensor, Tensor]:
    """Points of the toy density on the unit square, and their forces."""
    energy = Rings()
    generator = torch.Generator().manual_seed(settings.seed)
    start = torch.rand(settings.batch, len(energy.domains), generator=generator)
    x, _ = metropolis(energy, start, steps=settings.burn_in, keep=1, step_size=0.1, generator=generator)
    return x, energy.force(x)


def n_parameters(flow: nn.Module) -> int:
    return sum(parameter.numel() for parameter in flow.parameters())


def make_cells(candidate: FlowCandidate, x: Tensor, force: Tensor, settings: Settings) -> Iterator[Cell]:
    """Steps with both losses, eager and, of peers, compiled, and sampling."""
    x = (candidate.low + candidate.length * x).clamp(candidate.low, candidate.high)
    force = force / candidate.length
    for what in (NLL_STEP, FORCE_STEP):
        yield _eager_cell(candidate, what, x, force, settings.seed)
        if settings.compiled and not candidate.ours:
            yield _compiled_cell(candidate, what, x, force, settings.seed)
    cell = Cell(candidate.name, candidate.ours, SAMPLE, "eager", settings.samples)
    flow = _build(candidate, settings.seed)
    cell.call = lambda: _sample_stage(candidate, flow, settings.samples)
    yield cell


def wide_cell(candidate: FlowCandidate, settings: Settings) -> Cell:
    """A step by likelihood on normal data of many coordinates."""
    generator = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(settings.wide_batch, settings.wide, generator=generator)
    return _eager_cell(candidate, NLL_STEP, x, x, settings.seed, WIDE_STEP)


def _build(candidate: FlowCandidate, seed: int) -> Any:
    torch.manual_seed(seed)
    return candidate.build()


def _eager_cell(
    candidate: FlowCandidate, what: str, x: Tensor, force: Tensor, seed: int, label: str | None = None
) -> Cell:
    cell = Cell(candidate.name, candidate.ours, label or what, "eager", len(x))
    flow = _build(candidate, seed)
    cell.call = training(flow, eager_loss(candidate, flow, what), x, force)
    return cell


def _compiled_cell(candidate: FlowCandidate, what: str, x: Tensor, force: Tensor, seed: int) -> Cell:
    cell = Cell(candidate.name, candidate.ours, what, "compiled", len(x))
    flow = _build(candidate, seed)
    compiled, eager = compiled_loss(candidate, flow, what), eager_loss(candidate, flow, what)
    if first_call(cell, lambda: gradient(flow, compiled, x, force), lambda: gradient(flow, eager, x, force)):
        cell.call = training(flow, compiled, x, force)
    return cell


def eager_loss(candidate: FlowCandidate, flow: Any, what: str) -> Loss:
    """The loss as users of the library would write it."""
    if candidate.ours:
        return _our_loss(flow, what)
    if what == NLL_STEP:
        return lambda x, force: -candidate.log_prob(flow, x).mean()

    def loss(x: Tensor, force: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        log_prob = candidate.log_prob(flow, x)
        (score,) = torch.autograd.grad(log_prob.sum(), x, create_graph=True)
        return _with_forces(log_prob, score, force)

    return loss


def compiled_loss(candidate: FlowCandidate, flow: Any, what: str) -> Loss:
    """The loss as one graph, if the library allows."""
    if what == NLL_STEP:
        return compile_alone(eager_loss(candidate, flow, what))

    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = candidate.log_prob(flow, x)
        return log_prob.sum(), log_prob

    def loss(x: Tensor, force: Tensor) -> Tensor:
        score, log_prob = torch.func.grad(total, has_aux=True)(x)
        return _with_forces(log_prob, score, force)

    return compile_alone(loss)


def _our_loss(flow: Any, what: str) -> Loss:
    weight = FORCE_WEIGHT if what == FORCE_STEP else 0.0
    mix = Mix(nll=(1.0, NLL()), force_matching=(weight, ForceMatching()))
    return lambda x, force: mix(flow, Batch(x, force))[0]


def _with_forces(log_prob: Tensor, score: Tensor, force: Tensor) -> Tensor:
    return FORCE_WEIGHT * (score - force).square().mean() - log_prob.mean()


def gradient(flow: nn.Module, loss: Loss, x: Tensor, force: Tensor) -> Tensor:
    """Gradient with respect to all weights, as one vector."""
    flow.zero_grad()
    loss(x, force).backward()
    return torch.cat([p.grad.flatten() for p in flow.parameters() if p.grad is not None])


def training(flow: nn.Module, loss: Loss, x: Tensor, force: Tensor) -> Callable[[], list[float]]:
    """A call that does one step and gives the seconds of loss, backward and Adam."""
    optimizer = torch.optim.Adam(flow.parameters(), lr=LEARNING_RATE, fused=True)

    def call() -> list[float]:
        times = [time.perf_counter()]
        value = loss(x, force)
        times.append(time.perf_counter())
        optimizer.zero_grad()
        value.backward()
        times.append(time.perf_counter())
        optimizer.step()
        times.append(time.perf_counter())
        return [end - start for start, end in pairwise(times)]

    return call


@torch.no_grad()
def _sample_stage(candidate: FlowCandidate, flow: Any, n: int) -> list[float]:
    start = time.perf_counter()
    candidate.sample(flow, n)
    return [time.perf_counter() - start]


def flow_table(title: str, cells: list[Cell], sizes: dict[str, tuple[int, int]]) -> Table:
    rows = []
    for cell in sorted(cells, key=lambda cell: (cell.what, cell.mode == "compiled")):
        figures = [milliseconds(cell, value) for value in (cell.median(), cell.least())]
        size = [str(n) for n in sizes[cell.candidate]]
        rows.append([cell.what, cell.mode, cell.candidate, *size, *figures, *ratios(cell, cells)])
    columns = ["what", "mode", "candidate", "splines", "parameters", "median ms", "min ms", *RATIO_COLUMNS]
    return Table(title, columns, rows, notes(cells), n_labels=3)


def milliseconds(cell: Cell, per_element: float | None) -> str:
    """Time of a whole call; a cell has nanoseconds per element."""
    return figure(None if per_element is None else 1e-6 * cell.elements * per_element)
