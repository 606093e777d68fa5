"""Nanoseconds per element of every candidate, in two settings.

*Value*: forward and inverse without gradients, eager and as one compiled graph
(``torch.compile(fullgraph=True, dynamic=False)``).

*Force matching*: the work of one training step on forces. With ``y, ladj = forward(x, raw)``, the force is
``g = d(ladj + y)/dx`` with a graph of its own, and the loss ``mean(g^2) - mean(ladj)`` is differentiated
with respect to ``raw``. Eager, its three stages are timed one by one; compiled, the whole step is one graph
made of two nested ``torch.func.grad``.

knotflow's B-splines are computed by native kernels; one of them is there by its definition in torch as well
("in torch"). Compiled force matching takes the definition, too: inside ``torch.compile`` the kernels are out
of reach of ``torch.func.grad``.

All calls of a table are timed in turns, see `benchmarks.timing`. Every candidate has float32 points and raw
parameters of its own, uniform in its domain and standard normal. Ratios are ratios of medians. What cannot be
run or compiled says so in its cell, and a note has the first line of the error. Every compiled result is
compared with the eager one, and the largest difference is recorded.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from benchmarks.peers import Candidate, a_few, candidates
from benchmarks.report import Table, progress
from benchmarks.timing import (
    RATIO_COLUMNS,
    Cell,
    Function,
    compile_alone,
    fastest_peer,
    figure,
    first_call,
    median_text,
    notes,
    ratio,
    ratios,
    time_in_turns,
)


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    bins: int = 32
    elements: int = 100_000
    force_elements: int = 20_000
    repeats: int = 15
    every_variant: bool = True
    seed: int = 0

    @classmethod
    def quick(cls) -> Settings:
        return cls(elements=10_000, force_elements=2_000, repeats=3, every_variant=False)


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """Both tables, and a record of every cell."""
    everyone = candidates(settings.bins) if settings.every_variant else a_few(settings.bins)
    with progress(console) as bar:
        values = _timed(bar, "value", everyone, value_cells, settings, settings.elements)
        forces = _timed(bar, "force matching", everyone, force_cells, settings, settings.force_elements)
    return [value_table(values), force_table(forces)], [cell.record() for cell in values + forces]


MakeCells = Callable[[Candidate, Tensor, Tensor], Iterable[Cell]]


def _timed(
    bar: Progress, title: str, everyone: list[Candidate], make: MakeCells, settings: Settings, elements: int
) -> list[Cell]:
    """Prepare (and compile) the cells of all candidates, then time them round-robin."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(settings.seed)
    cells: list[Cell] = []
    for candidate in bar.track(everyone, description=f"{title}: compile"):
        x, raw = candidate.sample_points(elements, generator), candidate.sample_raw(elements, generator)
        cells.extend(make(candidate, x, raw))
    time_in_turns(bar, title, cells, settings.repeats)
    return cells


def value_cells(candidate: Candidate, x: Tensor, raw: Tensor) -> Iterable[Cell]:
    """Forward and inverse, eager and compiled, without gradients."""
    for direction, function in (("forward", candidate.forward), ("inverse", candidate.inverse)):
        eager = Cell(candidate.name, candidate.ours, direction, "eager", len(x))
        eager.call = single_stage(torch.no_grad()(function), x, raw)
        yield eager
        yield _compiled_cell(candidate, direction, torch.no_grad()(function), x, raw)


def force_cells(candidate: Candidate, x: Tensor, raw: Tensor) -> Iterable[Cell]:
    """A step of force matching, eager in stages and compiled as a whole."""
    eager = Cell(candidate.name, candidate.ours, "force matching", "eager", len(x))
    eager.call = lambda: force_stages(candidate, x, raw)[0]
    yield eager
    yield _compiled_cell(
        candidate,
        "force matching",
        _force_step(candidate),
        x,
        raw,
        reference=lambda x, raw: force_stages(candidate, x, raw)[1],
    )


def single_stage(function: Function, x: Tensor, raw: Tensor) -> Callable[[], list[float]]:
    """A call of one stage."""

    def call() -> list[float]:
        start = time.perf_counter()
        function(x, raw)
        return [time.perf_counter() - start]

    return call


def force_stages(candidate: Candidate, x: Tensor, raw: Tensor) -> tuple[list[float], Tensor]:
    """Seconds of value, force and second backward; gradient with respect to the raw parameters."""
    x, raw = x.clone().requires_grad_(), raw.clone().requires_grad_()
    times = [time.perf_counter()]
    y, ladj = candidate.forward(x, raw)
    times.append(time.perf_counter())
    (force,) = torch.autograd.grad((ladj + y).sum(), x, create_graph=True)
    times.append(time.perf_counter())
    ((force**2).mean() - ladj.mean()).backward(inputs=[raw])
    times.append(time.perf_counter())
    assert raw.grad is not None
    return [end - start for start, end in pairwise(times)], raw.grad


def _force_step(candidate: Candidate) -> Callable[[Tensor, Tensor], Tensor]:
    """The same step as a pure function: ``(x, raw) -> gradient with respect to raw``."""

    def loss(raw: Tensor, x: Tensor) -> Tensor:
        def energy(x: Tensor) -> tuple[Tensor, Tensor]:
            y, ladj = candidate.forward(x, raw)
            return (ladj + y).sum(), ladj

        force, ladj = torch.func.grad(energy, has_aux=True)(x)
        value: Tensor = (force**2).mean() - ladj.mean()
        return value

    def step(x: Tensor, raw: Tensor) -> Tensor:
        gradient: Tensor = torch.func.grad(loss)(raw, x)
        return gradient

    return step


def _compiled_cell(
    candidate: Candidate,
    what: str,
    function: Function,
    x: Tensor,
    raw: Tensor,
    reference: Function | None = None,
) -> Cell:
    cell = Cell(candidate.name, candidate.ours, what, "compiled", len(x))
    compiled = compile_alone(function)
    if first_call(cell, lambda: compiled(x, raw), lambda: (reference or function)(x, raw)):
        cell.call = single_stage(compiled, x, raw)
    return cell


def value_table(cells: list[Cell]) -> Table:
    rows = []
    for cell in sorted(cells, key=lambda cell: (cell.what, cell.mode == "compiled")):
        figures = [median_text(cell), figure(cell.least()), *ratios(cell, cells)]
        rows.append([cell.what, cell.mode, cell.candidate, *figures])
    columns = ["map", "mode", "candidate", "median ns", "min ns", *RATIO_COLUMNS]
    return Table("ns per element, no gradients", columns, rows, notes(cells), n_labels=3)


def force_table(cells: list[Cell]) -> Table:
    rows = []
    eager, compiled = (fastest_peer(cells, "force matching", mode) for mode in ("eager", "compiled"))
    for staged, whole in zip(cells[::2], cells[1::2], strict=True):
        stages = [figure(statistics.median(staged.stage(i))) if staged.seconds else "–" for i in range(3)]
        step = "fails" if whole.error else median_text(whole)
        to_peers = [ratio(staged, eager), ratio(whole, compiled), ratio(whole, eager)]
        rows.append([staged.candidate, *stages, median_text(staged), step, *to_peers])
    columns = ["candidate", "value", "force", "2nd backward", "eager step", "compiled step"]
    columns += ["ratio, eager", "ratio, compiled", "compiled to eager"]
    explained = (
        "ratios: eager step to that of the fastest peer, compiled step to that of the fastest peer, "
        "and compiled step to the fastest eager step of a peer"
    )
    title = "ns per element, a step of force matching (medians)"
    return Table(title, columns, rows, [*notes(cells), explained])
