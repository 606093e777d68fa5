"""How far kernels and training steps are from what the machine can do.

Two limits are measured in the same run: the *bandwidth* of ``copy_`` on a large float32 tensor (bytes read
and written a second), and the *arithmetic* of ``torch.mm`` on float32 matrices of 1024 x 1024 (operations a
second, two for each product and sum).

For each kernel of `benchmarks.kernels` the table has bytes and operations a point, and what they are a second
as a share of either limit. A kernel whose larger share is near one cannot become much faster. New tensors for
results are part of a kernel's time; ``copy_`` and ``mm`` write to tensors that exist.

For the training steps of the preset ``paper`` the operations are those of its matrix products, counted in a
step. With a linear layer's product, 2 n_in n_out for each frame, as the unit, a step of likelihood takes at
most three (the layer, the gradients of its input and of its weights) and one with forces six (the layer, the
score through it, and two gradients of each).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.flow import FORCE_STEP, NLL_STEP, training
from benchmarks.generator import step_cell, timed
from benchmarks.kernels import SINGLE, WORK, kernel_calls
from benchmarks.models import Loss, frames, paper_generator, paper_loss, scores
from benchmarks.report import Table, progress
from benchmarks.timing import Cell, notes, time_in_turns
from knotflow.molecules import ala2
from knotflow.training import Batch

MATRIX = 1024
COPY, PRODUCT, KERNEL = "copy", "mm", "kernel"


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    bins: int = 32
    elements: int = 100_000
    copied: int = 50_000_000
    """Numbers that are copied: more than any cache holds."""
    batch: int = 128
    repeats: int = 31
    seed: int = 0

    @classmethod
    def quick(cls) -> Settings:
        return cls(elements=5_000, copied=5_000_000, batch=8, repeats=3)


@dataclass(frozen=True)
class Limits:
    """What the machine reached, a second."""

    bandwidth: float
    arithmetic: float


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """The tables of limits, of kernels and of steps, and a record of every cell."""
    machine = machine_cells(settings)
    kernels = [_cell(KERNEL, name, call, settings.elements) for name, call in _calls(settings).items()]
    model = paper_generator(settings.seed)
    batch = frames(ala2(), "paper", settings.batch, settings.seed)
    losses = {what: paper_loss(model, what) for what in (NLL_STEP, FORCE_STEP)}
    counts = {what: counted(model.flow, loss, batch) for what, loss in losses.items()}
    steps = [step_cell("paper", True, what, model, loss, batch) for what, loss in losses.items()]
    cells = [*machine, *kernels, *steps]
    with progress(console) as bar:
        time_in_turns(bar, "limits", cells, settings.repeats)
    limits = Limits(
        bandwidth=2 * SINGLE * settings.copied / seconds(machine[0]),
        arithmetic=2 * MATRIX**3 / seconds(machine[1]),
    )
    tables = [
        limits_table(limits, cells),
        kernel_table(kernels, settings.bins, limits),
        step_table(steps, counts, limits),
    ]
    facts = {"what": "limits", "bytes_a_second": limits.bandwidth, "operations_a_second": limits.arithmetic}
    return tables, [facts, *(cell.record() for cell in cells)]


def machine_cells(settings: Settings) -> list[Cell]:
    """A copy and a product of matrices."""
    source = torch.ones(settings.copied)
    target = torch.empty_like(source)
    a, b = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX)
    c = torch.empty(MATRIX, MATRIX)
    return [
        _cell("torch", COPY, lambda: target.copy_(source), 1),
        _cell("torch", PRODUCT, lambda: torch.mm(a, b, out=c), 1),
    ]


def counted(flow: nn.Module, loss: Loss, batch: Batch) -> int:
    """Operations of the matrix products of one step."""
    step = training(flow, loss, batch.x, scores(batch))
    with Products() as products:
        step()
    return products.operations


class Products(TorchDispatchMode):
    """Counts operations of matrix products, by PyTorch's own formulas.

    `FlopCounterMode` would do, if it could be used with ``torch.autograd.grad``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.operations += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def layer_products(flow: nn.Module, frames: int) -> int:
    """Operations of all linear layers of a flow, once forward."""
    layers = [layer for layer in flow.modules() if isinstance(layer, nn.Linear)]
    return sum(2 * frames * layer.in_features * layer.out_features for layer in layers)


def seconds(cell: Cell) -> float:
    """Median of a whole call."""
    median = cell.median()
    if median is None:
        raise RuntimeError(f"{cell.candidate}, {cell.what}: {cell.error}")
    return 1e-9 * cell.elements * median


def limits_table(limits: Limits, cells: list[Cell]) -> Table:
    rows = [
        ["copy of a large tensor", f"{1e-9 * limits.bandwidth:.1f} GB/s"],
        [f"torch.mm, {MATRIX} x {MATRIX}", f"{1e-9 * limits.arithmetic:.0f} Gflop/s"],
    ]
    return Table("what this machine reaches", ["limit", "a second"], rows, notes(cells)[1:])


def kernel_table(cells: list[Cell], bins: int, limits: Limits) -> Table:
    rows = []
    for cell in cells:
        work, each = WORK[cell.what], seconds(cell) / cell.elements
        moved, done = work.bytes_of(bins), work.operations(bins)
        shares = [share(moved / each, limits.bandwidth), share(done / each, limits.arithmetic)]
        rows.append([cell.what, f"{1e9 * each:.1f}", str(moved), str(done), *shares])
    columns = ["kernel", "ns", "bytes", "operations", "of copy's bandwidth", "of mm's operations"]
    return Table(f"kernels, a point, cubic, {bins} bins", columns, rows, notes(cells))


def step_table(cells: list[Cell], counts: dict[str, int], limits: Limits) -> Table:
    rows = []
    for cell in cells:
        took, done = seconds(cell), counts[cell.what]
        rows.append(
            [cell.what, f"{1e3 * took:.1f}", f"{1e-6 * done:.0f}", share(done / took, limits.arithmetic)]
        )
    columns = ["step", "ms", "Mflop of products", "of mm's operations"]
    return Table("training steps of the preset paper", columns, rows, notes(cells))


def share(rate: float, limit: float) -> str:
    return f"{rate / limit:.3f}"


def _calls(settings: Settings) -> dict[str, Any]:
    return kernel_calls(settings.bins, settings.elements, settings.seed)


def _cell(candidate: str, what: str, function: Any, elements: int) -> Cell:
    cell = Cell(candidate, True, what, "eager", elements)
    cell.call = timed(function)
    return cell
