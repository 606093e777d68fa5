"""Nanoseconds per element of every candidate, in two settings.

*Value*: forward and inverse without gradients, eager and as one compiled graph
(``torch.compile(fullgraph=True, dynamic=False)``).

*Force matching*: the work of one training step on forces. With ``y, ladj = forward(x, raw)``, the force is
``g = d(ladj + y)/dx`` with a graph of its own, and the loss ``mean(g^2) - mean(ladj)`` is differentiated
with respect to ``raw``. Eager, its three stages are timed one by one; compiled, the whole step is one graph
made of two nested ``torch.func.grad``.

All calls of a table are timed round-robin, one call of each a round, after two rounds of warm-up: a slow
spell of the machine hits all of them alike. Every candidate has float32 points and raw parameters of its own,
uniform in its domain and standard normal. Ratios are ratios of medians. What cannot be run or compiled says
so in its cell, and a note has the first line of the error. Every compiled result is compared with the eager
one, and the largest difference is recorded.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from benchmarks.peers import Candidate, a_few, candidates
from benchmarks.report import Table, first_line, progress

WARM_UPS = 2
Function = Callable[[Tensor, Tensor], Any]
"""Takes points and raw parameters."""


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


@dataclass
class Cell:
    """One thing to time: ``call`` does it once and returns the seconds of each of its stages."""

    candidate: str
    ours: bool
    what: str
    mode: str
    elements: int
    call: Callable[[], list[float]] | None = None
    seconds: list[list[float]] = field(default_factory=list)
    status: str = "ok"
    error: str = ""
    compile_seconds: float | None = None
    difference_to_eager: float | None = None

    def fail(self, error: BaseException) -> None:
        self.call = None
        self.error = first_line(error)
        self.status = "graph break" if isinstance(error, TorchDynamoException) else "fails"

    def stage(self, i: int) -> list[float]:
        """Nanoseconds per element of stage ``i`` in every round."""
        return [1e9 * stages[i] / self.elements for stages in self.seconds]

    def total(self) -> list[float]:
        """Nanoseconds per element of all stages together in every round."""
        return [1e9 * sum(stages) / self.elements for stages in self.seconds]

    def median(self) -> float | None:
        return statistics.median(self.total()) if self.seconds else None

    def least(self) -> float | None:
        return min(self.total()) if self.seconds else None

    def record(self) -> dict[str, Any]:
        facts = {key: value for key, value in asdict(self).items() if key not in ("call", "seconds")}
        stages = range(len(self.seconds[0]) if self.seconds else 0)
        return {
            **facts,
            "median_ns": self.median(),
            "minimum_ns": self.least(),
            "stage_median_ns": [statistics.median(self.stage(i)) for i in stages],
            "rounds_ns": self.total(),
        }


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
    for i in bar.track(range(WARM_UPS + settings.repeats), description=f"{title}: time"):
        for cell in cells:
            _time_once(cell, keep=i >= WARM_UPS)
    return cells


def _time_once(cell: Cell, keep: bool) -> None:
    if cell.call is None:
        return
    try:
        seconds = cell.call()
    except Exception as error:  # a peer that fails must not end the run
        cell.fail(error)
        return
    if keep:
        cell.seconds.append(seconds)


def value_cells(candidate: Candidate, x: Tensor, raw: Tensor) -> Iterable[Cell]:
    """Forward and inverse, eager and compiled, without gradients."""
    for direction, function in (("forward", candidate.forward), ("inverse", candidate.inverse)):
        eager = Cell(candidate.name, candidate.ours, direction, "eager", len(x))
        eager.call = _single_stage(torch.no_grad()(function), x, raw)
        yield eager
        yield _compiled_cell(candidate, direction, torch.no_grad()(function), x, raw)


def force_cells(candidate: Candidate, x: Tensor, raw: Tensor) -> Iterable[Cell]:
    """A step of force matching, eager in stages and compiled as a whole."""
    eager = Cell(candidate.name, candidate.ours, "force matching", "eager", len(x))
    eager.call = lambda: _force_stages(candidate, x, raw)[0]
    yield eager
    yield _compiled_cell(
        candidate,
        "force matching",
        _force_step(candidate),
        x,
        raw,
        reference=lambda x, raw: _force_stages(candidate, x, raw)[1],
    )


def _single_stage(function: Function, x: Tensor, raw: Tensor) -> Callable[[], list[float]]:
    def call() -> list[float]:
        start = time.perf_counter()
        function(x, raw)
        return [time.perf_counter() - start]

    return call


def _force_stages(candidate: Candidate, x: Tensor, raw: Tensor) -> tuple[list[float], Tensor]:
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
    start = time.perf_counter()
    try:
        result = compiled(x, raw)
        cell.compile_seconds = time.perf_counter() - start
        cell.difference_to_eager = _difference(result, (reference or function)(x, raw))
    except Exception as error:  # a peer that fails must not end the run
        cell.fail(error)
        return cell
    cell.call = _single_stage(compiled, x, raw)
    return cell


def compile_alone(function: Function) -> Function:
    """Compile a function as one static graph, with a code object of its own.

    Dynamo keeps its graphs by code object: all candidates that share one would share a list of guards to try
    at every call, and its limit on recompilations.
    """

    def call(x: Tensor, raw: Tensor) -> Any:
        return function(x, raw)

    call.__code__ = call.__code__.replace(co_name=f"call_{id(call)}")
    return torch.compile(call, fullgraph=True, dynamic=False)


def _difference(result: Any, expected: Any) -> float:
    """Largest difference of two tensors or tuples of tensors, relative to the largest expected value."""
    if isinstance(expected, Tensor):
        return float((result - expected).abs().max() / expected.abs().max())
    return max(_difference(a, b) for a, b in zip(result, expected, strict=True))


def value_table(cells: list[Cell]) -> Table:
    rows = []
    for cell in sorted(cells, key=lambda cell: (cell.what, cell.mode == "compiled")):
        eager, compiled = (_fastest_peer(cells, cell.what, mode) for mode in ("eager", "compiled"))
        ratios = [_ratio(cell, eager), _ratio(cell, compiled)]
        rows.append([cell.what, cell.mode, cell.candidate, _median(cell), _figure(cell.least()), *ratios])
    columns = ["map", "mode", "candidate", "median ns", "min ns"]
    columns += ["/ fastest eager peer", "/ fastest compiled peer"]
    return Table("ns per element, no gradients", columns, rows, _notes(cells), n_labels=3)


def force_table(cells: list[Cell]) -> Table:
    rows = []
    eager, compiled = (_fastest_peer(cells, "force matching", mode) for mode in ("eager", "compiled"))
    for staged, whole in zip(cells[::2], cells[1::2], strict=True):
        stages = [_figure(statistics.median(staged.stage(i))) if staged.seconds else "–" for i in range(3)]
        step = "fails" if whole.error else _median(whole)
        ratios = [_ratio(staged, eager), _ratio(whole, compiled), _ratio(whole, eager)]
        rows.append([staged.candidate, *stages, _median(staged), step, *ratios])
    columns = ["candidate", "value", "force", "2nd backward", "eager step", "compiled step"]
    columns += ["ratio, eager", "ratio, compiled", "compiled to eager"]
    notes = [
        *_notes(cells),
        "ratios: eager step to that of the fastest peer, compiled step to that of the fastest peer, "
        "and compiled step to the fastest eager step of a peer",
    ]
    return Table("ns per element, a step of force matching (medians)", columns, rows, notes)


def _fastest_peer(cells: list[Cell], what: str, mode: str) -> float | None:
    medians = [cell.median() for cell in cells if not cell.ours and (cell.what, cell.mode) == (what, mode)]
    return min((median for median in medians if median is not None), default=None)


def _ratio(cell: Cell, reference: float | None) -> str:
    median = cell.median()
    return "–" if median is None or reference is None else f"{median / reference:.2f}"


def _median(cell: Cell) -> str:
    return _figure(cell.median()) if cell.seconds else cell.status


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _notes(cells: list[Cell]) -> list[str]:
    """Sizes, and the errors behind the cells that hold no figure."""
    compiled = [cell for cell in cells if cell.difference_to_eager is not None]
    worst = max(compiled, key=lambda cell: cell.difference_to_eager or 0.0, default=None)
    rounds = max(len(cell.seconds) for cell in cells)
    notes = [f"{cells[0].elements} elements, {torch.get_num_threads()} threads, {rounds} rounds"]
    unsteady = [cell for cell in cells if (cell.median() or 0.0) > 2 * (cell.least() or 0.0)]
    if unsteady:
        notes.append(f"busy machine: {len(unsteady)} of {len(cells)} medians are above twice their minimum")
    if worst is not None:
        notes.append(
            f"largest relative difference of compiled and eager results: {worst.difference_to_eager:.1e} "
            f"({worst.candidate}, {worst.what})"
        )
    notes += [f"{cell.candidate}, {cell.what}, {cell.mode}: {cell.error}" for cell in cells if cell.error]
    return notes
