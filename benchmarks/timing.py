"""Timing calls in turns, and the parts of their tables.

All calls of a table are timed round-robin, one call of each a round, after `WARM_UPS` rounds of warm-up: a
slow spell of the machine hits all of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from benchmarks.report import first_line

WARM_UPS = 2
WRONG = 1e-2
"""A compiled result that differs from the eager one by more than this part of the largest value is wrong."""
RATIO_COLUMNS = ["/ fastest eager peer", "/ fastest compiled peer"]
Function = Callable[[Tensor, Tensor], Any]
"""Takes points, and raw parameters or forces."""


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


def time_in_turns(bar: Progress, title: str, cells: list[Cell], repeats: int) -> None:
    """Time every cell ``repeats`` times."""
    for i in bar.track(range(WARM_UPS + repeats), description=f"{title}: time"):
        for cell in cells:
            time_once(cell, keep=i >= WARM_UPS)


def time_once(cell: Cell, keep: bool) -> None:
    if cell.call is None:
        return
    try:
        seconds = cell.call()
    except Exception as error:  # a peer that fails must not end the run
        cell.fail(error)
        return
    if keep:
        cell.seconds.append(seconds)


def first_call(cell: Cell, compiled: Callable[[], Any], eager: Callable[[], Any]) -> bool:
    """Compile by a first call, and compare its result with the eager one; False if something raises."""
    start = time.perf_counter()
    try:
        result = compiled()
        cell.compile_seconds = time.perf_counter() - start
        cell.difference_to_eager = difference(result, eager())
    except Exception as error:  # a peer that fails must not end the run
        cell.fail(error)
        return False
    return True


def compile_alone(function: Function) -> Function:
    """Compile a function as one static graph, with a code object of its own.

    Dynamo keeps its graphs by code object: all candidates that share one would share a list of guards to try
    at every call, and its limit on recompilations.
    """

    def call(x: Tensor, other: Tensor) -> Any:
        return function(x, other)

    call.__code__ = call.__code__.replace(co_name=f"call_{id(call)}")
    return torch.compile(call, fullgraph=True, dynamic=False)


def difference(result: Any, expected: Any) -> float:
    """Largest difference of two tensors or tuples of tensors, relative to the largest expected value."""
    if isinstance(expected, Tensor):
        return float((result - expected).abs().max() / expected.abs().max())
    return max(difference(a, b) for a, b in zip(result, expected, strict=True))


def fastest_peer(cells: list[Cell], what: str, mode: str) -> float | None:
    medians = [cell.median() for cell in cells if not cell.ours and (cell.what, cell.mode) == (what, mode)]
    return min((median for median in medians if median is not None), default=None)


def ratio(cell: Cell, reference: float | None) -> str:
    median = cell.median()
    return "–" if median is None or reference is None else f"{median / reference:.2f}"


def ratios(cell: Cell, cells: list[Cell]) -> list[str]:
    """The columns `RATIO_COLUMNS`: the same thing done by the fastest peer in either mode is 1."""
    return [ratio(cell, fastest_peer(cells, cell.what, mode)) for mode in ("eager", "compiled")]


def median_text(cell: Cell) -> str:
    """The median, or why there is none."""
    return figure(cell.median()) if cell.seconds else cell.status


def figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def notes(cells: list[Cell]) -> list[str]:
    """Sizes, and the errors behind the cells that hold no figure."""
    compiled = [cell for cell in cells if cell.difference_to_eager is not None]
    worst = max(compiled, key=lambda cell: cell.difference_to_eager or 0.0, default=None)
    rounds = max(len(cell.seconds) for cell in cells)
    found = [f"{cells[0].elements} elements, {torch.get_num_threads()} threads, {rounds} rounds"]
    unsteady = [cell for cell in cells if (cell.median() or 0.0) > 2 * (cell.least() or 0.0)]
    if unsteady:
        found.append(f"busy machine: {len(unsteady)} of {len(cells)} medians are above twice their minimum")
    if worst is not None:
        found.append(
            f"largest relative difference of compiled and eager results: {worst.difference_to_eager:.1e} "
            f"({worst.candidate}, {worst.what})"
        )
    found += [
        f"{cell.candidate}, {cell.what}: the compiled result is WRONG, off by {cell.difference_to_eager:.1e}"
        for cell in compiled
        if not (cell.difference_to_eager or 0.0) <= WRONG
    ]
    found += [f"{cell.candidate}, {cell.what}, {cell.mode}: {cell.error}" for cell in cells if cell.error]
    return found
