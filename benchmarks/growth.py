r"""How times $t$ grow with sizes $s$: exponents $a$ of $t \propto s^a$, by least squares of the logarithms.

Cubic B-splines on an interval, forward, inverse and a step of force matching (`benchmarks.speed`), grow with
the *batch* and with the *bins*, and with the *order*: 3, 4 and 5 have kernels; all orders, to 7, are timed by
the definition in torch as well, in rows of their own. A step of likelihood and forces of the preset ``best``
grows with the *atoms* of capped alanine peptides.

An exponent of 1 is proportional growth; below it, calls have costs of their own. Over few sizes that are
close to each other, as with orders and atoms, an exponent is a rough description. All calls that grow with
the same thing are timed in turns, see `benchmarks.timing`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

import knotflow as kf
from benchmarks.flow import FORCE_STEP
from benchmarks.generator import step_cell
from benchmarks.models import best_generator, best_loss, frames, scores
from benchmarks.peers import Candidate, definition, ours
from benchmarks.report import Table, progress
from benchmarks.speed import force_stages, single_stage
from benchmarks.timing import Cell, notes, time_in_turns
from knotflow.molecules.peptides import peptide

WORKS = ("forward", "inverse", "force matching")
KERNEL_ORDERS = (3, 4, 5)
ALL_ORDERS = (3, 4, 5, 6, 7)


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    batches: tuple[int, ...] = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
    bins: tuple[int, ...] = (8, 16, 32, 64, 128)
    elements: int = 20_000
    """For bins and orders."""
    definition_elements: int = 5_000
    residues: tuple[int, ...] = (1, 2, 3, 4)
    frames: int = 256
    repeats: int = 15
    seed: int = 0

    @classmethod
    def quick(cls) -> Settings:
        return cls(
            batches=(1_000, 3_000, 9_000),
            bins=(8, 32),
            elements=500,
            definition_elements=200,
            residues=(1, 2),
            frames=8,
            repeats=2,
        )


@dataclass(frozen=True)
class Series:
    """One kind of work at several sizes."""

    what: str
    grows_with: str
    sizes: list[int]
    cells: list[Cell]

    def exponent(self) -> float | None:
        times = [cell.median() for cell in self.cells]
        if any(t is None for t in times):
            return None
        whole = [t * cell.elements for t, cell in zip(times, self.cells, strict=True) if t is not None]
        return fitted_exponent(self.sizes, whole)


def fitted_exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Slope of the straight line through the logarithms, by least squares."""
    line = statistics.linear_regression([math.log(s) for s in sizes], [math.log(t) for t in times])
    return line.slope


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """The table of exponents, and a record of every cell."""
    series: list[Series] = []
    with progress(console) as bar:
        for group in groups(settings):
            time_together(bar, group, settings.repeats)
            series += group
    records = [
        {"grows_with": s.grows_with, "size": size, "exponent": s.exponent(), **cell.record()}
        for s in series
        for size, cell in zip(s.sizes, s.cells, strict=True)
    ]
    return [growth_table(series)], records


def groups(settings: Settings) -> Iterator[list[Series]]:
    """Series that are timed together; each group is made when the one before is done with its memory."""
    sizes, bins = list(settings.batches), list(settings.bins)
    cubic = kernel(32, 4)
    yield map_series("batch", sizes, [cubic] * len(sizes), sizes, settings.seed)
    yield map_series(
        "bins", bins, [kernel(n, 4) for n in bins], [settings.elements] * len(bins), settings.seed
    )
    for name, orders, make, elements in (
        ("order", KERNEL_ORDERS, kernel, settings.elements),
        ("order, in torch", ALL_ORDERS, in_torch, settings.definition_elements),
    ):
        made = [make(32, order) for order in orders]
        yield map_series(name, list(orders), made, [elements] * len(orders), settings.seed)
    yield [atom_series(settings)]


def kernel(bins: int, order: int) -> Candidate:
    return ours(kf.BSpline(bins, order), f"BSpline k={order} n={bins}")


def in_torch(bins: int, order: int) -> Candidate:
    return definition(kernel(bins, order))


def map_series(
    grows_with: str, sizes: list[int], candidates: list[Candidate], elements: list[int], seed: int
) -> list[Series]:
    """Forward, inverse and force matching of a candidate for each size."""
    cells: dict[str, list[Cell]] = {what: [] for what in WORKS}
    for candidate, n in zip(candidates, elements, strict=True):
        generator = torch.Generator().manual_seed(seed)
        x, raw = candidate.sample_points(n, generator), candidate.sample_raw(n, generator)
        calls: list[Callable[[], list[float]]] = [
            single_stage(torch.no_grad()(candidate.forward), x, raw),
            single_stage(torch.no_grad()(candidate.inverse), x, raw),
            lambda candidate=candidate, x=x, raw=raw: force_stages(candidate, x, raw)[0],
        ]
        for what, call in zip(WORKS, calls, strict=True):
            cells[what].append(Cell(candidate.name, True, what, "eager", n, call))
    return [Series(what, grows_with, sizes, cells[what]) for what in WORKS]


def atom_series(settings: Settings) -> Series:
    """A step with forces of the preset ``best`` for peptides of more and more residues."""
    sizes, cells = [], []
    for residues in settings.residues:
        system = peptide("A" * residues)
        batch = frames(system, "bonds", settings.frames, settings.seed)
        model = best_generator(system, batch.x, settings.seed)
        batch = batch._replace(x=model.unwound(batch.x))
        loss = best_loss(model, scores(batch))
        cells.append(step_cell("best", True, FORCE_STEP, model, loss, batch))
        sizes.append(system.n_atoms)
    return Series("step with forces, best", "atoms", sizes, cells)


def time_together(bar: Progress, group: list[Series], repeats: int) -> None:
    """Time a group in turns, and let go of its tensors."""
    cells = [cell for series in group for cell in series.cells]
    time_in_turns(bar, f"growth with {group[0].grows_with}", cells, repeats)
    for cell in cells:
        cell.call = None


def growth_table(series: list[Series]) -> Table:
    rows = []
    for s in series:
        exponent = s.exponent()
        text = "–" if exponent is None else f"{exponent:.2f}"
        times = ", ".join(milliseconds_of(cell) for cell in s.cells)
        rows.append([s.grows_with, s.what, text, ", ".join(map(str, s.sizes)), times])
    cells = [cell for s in series for cell in s.cells]
    columns = ["grows with", "what", "exponent", "sizes", "median ms"]
    return Table("growth of time", columns, rows, notes(cells)[1:], n_labels=2)


def milliseconds_of(cell: Cell) -> str:
    median = cell.median()
    return "–" if median is None else f"{1e-6 * cell.elements * median:.3g}"
