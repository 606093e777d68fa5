"""Energies, forces and Langevin dynamics of molecules, by OpenMM and in torch.

*Evaluations*: energies and forces of a batch of frames of a short Langevin run, their positions rounded to
float32, so that all candidates get the same. OpenMM takes one frame after the other in a bare loop, without
its units, in this process; `OpenMMEnergy` does so in a process for each core; `TorchForceField` takes the
whole batch, with the threads of PyTorch. The largest differences of energies and forces are those to OpenMM's
Reference platform, which is in double precision.

*Dynamics*: steps of alanine dipeptide, those of all walkers counted. OpenMM runs its own
``LangevinMiddleIntegrator`` on one walker in this process. *Workers* are the processes of ``knotflow
simulate``, with the same tasks as there: one walker after the other with OpenMM, many at once in torch.

The first call of each candidate is timed apart: it starts worker processes, and compiles, from a cache that
is empty at the beginning of the run. All other calls of a table are timed in turns, see `benchmarks.timing`.
Ratios are ratios of medians, to the fastest that OpenMM does, in this process or in workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch._inductor.utils import fresh_cache

from benchmarks.report import Table, progress
from benchmarks.timing import Cell, figure, notes, time_in_turns
from knotflow.energies.openmm_contexts import fastest_platform, frame_energies, make_context
from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.energies.torch_force_field import TorchForceField
from knotflow.molecules.peptides import peptide
from knotflow.molecules.system import MolecularSystem, ala2
from knotflow.simulation.engines import FRICTION, STEP, OpenMMEngine
from knotflow.simulation.tasks import Outcome, Task, Walkers, run_task
from knotflow.simulation.torch_engine import TorchEngine
from knotflow.workers import WorkerPool, usable_cores

if TYPE_CHECKING:
    import openmm

EQUILIBRATION, FRAME_STEPS = 5_000, 20
"""Steps before the first frame of a batch, and from frame to frame."""
MICROSECOND = 1e6
"""In ps."""
TARGET_HOURS, TARGET_CORES = 2.0, 2
"""For a microsecond of alanine dipeptide, all walkers together."""
RATE_COLUMNS = ["per second", "best round", "× fastest OpenMM"]
WORKER = "knotflow.simulation.tasks:task_worker"
EAGER_WORKER = "benchmarks.molecules:eager_worker"
Values = tuple[Tensor, Tensor]
"""Energies in kT and forces in kT/nm."""


SHORTEST = 0.15
"""Seconds of a timing, at least: a call is repeated meanwhile, so that threads of the candidate before, which
go on waiting for work for some ms, do not count."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    frames: int = 1_000
    """Of alanine dipeptide."""
    sequence: str = "GYDPETGTWG"
    """Of the larger molecule."""
    sequence_frames: int = 64
    repeats: int = 15
    walkers: int = 128
    """In a task of the torch engine."""
    torch_steps: int = 1_000
    openmm_steps: int = 5_000
    """Of each walker in a call."""
    dynamics_repeats: int = 7
    compiled: bool = True
    seed: int = 1

    @classmethod
    def quick(cls) -> Settings:
        return cls(
            frames=100,
            sequence="GYG",
            sequence_frames=34,
            repeats=3,
            walkers=16,
            torch_steps=10,
            openmm_steps=100,
            dynamics_repeats=3,
            compiled=False,
        )


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """Two tables of evaluations and one of dynamics, and a record of every cell."""
    torch._dynamo.reset()
    batches = [(ala2(), settings.frames), (peptide(settings.sequence), settings.sequence_frames)]
    tables: list[Table] = []
    records: list[dict[str, Any]] = []
    with fresh_cache(), progress(console) as bar:
        for system, n in batches:
            evaluations = time_evaluations(bar, system, n, settings)
            tables.append(evaluation_table(system, evaluations))
            records += [evaluation.record(system) for evaluation in evaluations]
        runs = time_dynamics(bar, ala2(), settings)
        tables.append(dynamics_table(runs))
        records += [run.record() for run in runs]
    return tables, records


def start(cell: Cell, first: Callable[[], Any], call: Callable[[], Any]) -> Any:
    """Do and time the first call of a cell, and tell it what to do from then on; None if it raises."""

    def seconds() -> list[float]:
        began, calls, elapsed = time.perf_counter(), 0, 0.0
        while elapsed < SHORTEST:
            call()
            calls, elapsed = calls + 1, time.perf_counter() - began
        return [elapsed / calls]

    began = time.perf_counter()
    try:
        result = first()
    except Exception as error:  # a candidate that fails must not end the run
        cell.fail(error)
        return None
    cell.compile_seconds = time.perf_counter() - began
    cell.call = seconds
    return result


def per_second(cell: Cell) -> float | None:
    """Evaluations or steps."""
    median = cell.median()
    return None if median is None else 1e9 / median


def rates(cell: Cell, cells: list[Cell]) -> list[str]:
    """The columns of `RATE_COLUMNS`: median, best round, and how many times as fast as OpenMM's fastest."""
    rate, best = per_second(cell), cell.least()
    if rate is None or best is None:
        return ["–", "–", "–"]
    fastest = max((per_second(other) or 0.0 for other in cells if not other.ours), default=0.0)
    return [f"{rate:,.0f}", f"{1e9 / best:,.0f}", f"{rate / fastest:.2f}" if fastest else "–"]


def openmm_contexts(system: MolecularSystem, seed: int) -> Iterator[tuple[str, openmm.Context]]:
    """Names and contexts in this process, each ready for dynamics, the last with all threads it likes."""
    import openmm

    def integrator() -> openmm.Integrator:
        langevin = openmm.LangevinMiddleIntegrator(system.temperature, FRICTION, STEP)
        langevin.setRandomNumberSeed(seed)
        return langevin

    yield "OpenMM Reference", make_context(system.xml, "Reference", integrator())
    yield "OpenMM CPU, 1 thread", make_context(system.xml, "CPU", integrator())
    platform = openmm.Platform.getPlatformByName("CPU")
    context = openmm.Context(system.openmm_system(), integrator(), platform)
    yield f"OpenMM CPU, {platform.getPropertyValue(context, 'Threads')} threads, its default", context


# Evaluations.


@dataclass
class Evaluation:
    """A way to evaluate a batch: ``evaluate`` does it."""

    cell: Cell
    evaluate: Callable[[], Values]
    energy_difference: float | None = None
    """To OpenMM's Reference platform, the largest, in kT."""
    force_difference: float | None = None
    """The same in kT/nm."""

    def start(self, reference: Values) -> None:
        """The first call, compared with the reference."""
        values = start(self.cell, self.evaluate, self.evaluate)
        if values is not None:
            differences = [float((a - b).abs().max()) for a, b in zip(values, reference, strict=True)]
            self.energy_difference, self.force_difference = differences

    def record(self, system: MolecularSystem) -> dict[str, Any]:
        return {
            **_plain(self.cell),
            "molecule": system.name,
            "atoms": system.n_atoms,
            "evaluations_per_second": per_second(self.cell),
            "energy_difference_kT": self.energy_difference,
            "force_difference_kT_per_nm": self.force_difference,
        }


def _plain(cell: Cell) -> dict[str, Any]:
    """The record of a cell, with the name that its first call has here."""
    facts = cell.record()
    del facts["difference_to_eager"]
    return {"first_call_seconds": facts.pop("compile_seconds"), **facts}


def time_evaluations(bar: Progress, system: MolecularSystem, n: int, settings: Settings) -> list[Evaluation]:
    """All candidates on one batch."""
    with OpenMMEnergy(system) as pool:
        frames = langevin_frames(system, n, settings.seed)
        reference = _in_loop(make_context(system.xml, "Reference"), frames, system.kT)
        evaluations = [
            *openmm_evaluations(system, frames, pool, settings.seed),
            *torch_evaluations(system, torch.from_numpy(frames), compiled=settings.compiled),
        ]
        for evaluation in bar.track(evaluations, description=f"{system.name}: first calls"):
            evaluation.start(reference)
        time_in_turns(bar, system.name, [evaluation.cell for evaluation in evaluations], settings.repeats)
    return evaluations


def langevin_frames(system: MolecularSystem, n: int, seed: int) -> NDArray[np.float64]:
    """Frames of a short run, shape (n, atoms, 3) in nm, which float32 can hold."""
    engine = OpenMMEngine(system, fastest_platform(system.xml, system.positions))
    engine.seed(seed)
    temperature = np.array([system.temperature])
    x = system.positions[None]
    now = engine.advance(x, np.zeros_like(x), temperature, EQUILIBRATION)
    frames = []
    for _ in range(n):
        now = engine.advance(now.positions, now.velocities, temperature, FRAME_STEPS)
        frames.append(now.positions[0])
    return np.array(frames, dtype=np.float32).astype(np.float64)


def openmm_evaluations(
    system: MolecularSystem, frames: NDArray[np.float64], pool: OpenMMEnergy, seed: int
) -> Iterator[Evaluation]:
    """One frame after the other: on one core in two ways, with OpenMM's threads, and in processes."""
    for name, context in openmm_contexts(system, seed):
        cell = Cell(name, False, "evaluation", "loop", len(frames))
        yield Evaluation(cell, partial(_in_loop, context, frames, system.kT))
    name = f"OpenMMEnergy, {pool.platform}, processes: {pool.workers}"
    cell = Cell(name, False, "evaluation", "workers", len(frames))
    yield Evaluation(cell, partial(pool.energy_and_force, torch.from_numpy(frames)))


def _in_loop(context: openmm.Context, frames: NDArray[np.float64], kT: float) -> Values:
    energies_kj, forces_kj = frame_energies(context, frames)
    return torch.from_numpy(energies_kj / kT), torch.from_numpy(forces_kj / kT)


def torch_evaluations(system: MolecularSystem, x: Tensor, *, compiled: bool) -> Iterator[Evaluation]:
    """The whole batch in both precisions, eager and, if wanted, compiled."""
    for mode in ("eager", "compiled") if compiled else ("eager",):
        field = TorchForceField(system, compiled=mode == "compiled")
        for dtype in (torch.float32, torch.float64):
            name = f"TorchForceField, {str(dtype).removeprefix('torch.')}"
            evaluate = partial(_in_torch, field, x.to(dtype), compiled=mode == "compiled")
            yield Evaluation(Cell(name, True, "evaluation", mode, len(x)), evaluate)


def _in_torch(field: TorchForceField, x: Tensor, *, compiled: bool) -> Values:
    values = field.energy_and_force(x)
    if field.compiled != compiled:
        raise RuntimeError("TorchForceField fell back to eager PyTorch, see its warning")
    return values


def evaluation_table(system: MolecularSystem, evaluations: list[Evaluation]) -> Table:
    cells = [evaluation.cell for evaluation in evaluations]
    rows = []
    for evaluation in evaluations:
        cell = evaluation.cell
        differences = (evaluation.energy_difference, evaluation.force_difference)
        texts = ["–" if difference is None else f"{difference:.1e}" for difference in differences]
        first = figure(cell.compile_seconds)
        rows.append([cell.candidate, cell.mode, *rates(cell, cells), first, *texts])
    columns = ["candidate", "mode", *RATE_COLUMNS, "first call s", "largest Δu, kT", "largest Δf, kT/nm"]
    title = f"Energies and forces of {system.name}, {system.n_atoms} atoms, {cells[0].elements} frames"
    found = [
        *notes(cells),
        f"calls are repeated for at least {SHORTEST:g} s in every round",
        "differences are to OpenMM Reference, at the same positions",
        "first calls start processes or compile, from an empty cache",
    ]
    return Table(title, columns, rows, found, n_labels=2)


# Dynamics.


@dataclass
class Run:
    """A way to simulate: ``advance`` does it, ``prepare`` gets it ready for the first call."""

    cell: Cell
    processes: int
    walkers: int
    """In all processes together."""
    prepare: Callable[[], Any]
    advance: Callable[[], Any]

    def nanoseconds_per_day(self) -> float | None:
        rate = per_second(self.cell)
        return None if rate is None else rate * STEP / 1000 * 24 * 3600

    def hours_per_microsecond(self) -> float | None:
        rate = per_second(self.cell)
        return None if rate is None else MICROSECOND / STEP / rate / 3600

    def record(self) -> dict[str, Any]:
        return {
            **_plain(self.cell),
            "processes": self.processes,
            "walkers": self.walkers,
            "steps_per_second": per_second(self.cell),
            "ns_per_day": self.nanoseconds_per_day(),
            "hours_per_microsecond": self.hours_per_microsecond(),
        }


def time_dynamics(bar: Progress, system: MolecularSystem, settings: Settings) -> list[Run]:
    """OpenMM in this process, then both engines in workers."""
    with ExitStack() as stack:
        runs = [*loops(system, settings), *openmm_workers(system, settings, stack)]
        runs += torch_workers(system, settings, stack)
        for run in bar.track(runs, description="dynamics: first calls"):
            start(run.cell, run.prepare, run.advance)
        time_in_turns(bar, "dynamics", [run.cell for run in runs], settings.dynamics_repeats)
    return runs


def loops(system: MolecularSystem, settings: Settings) -> Iterator[Run]:
    """OpenMM's own integrator, as a user of OpenMM would run it."""
    for name, context in openmm_contexts(system, settings.seed):
        context.setPositions(system.positions)
        context.setVelocitiesToTemperature(system.temperature, settings.seed)
        cell = Cell(name, False, "dynamics", "loop", settings.openmm_steps)
        yield Run(cell, 1, 1, partial(_step, context, 1), partial(_step, context, settings.openmm_steps))


def _step(context: openmm.Context, steps: int) -> None:
    context.getIntegrator().step(steps)


def openmm_workers(system: MolecularSystem, settings: Settings, stack: ExitStack) -> Iterator[Run]:
    """A walker in a process for each core."""
    for platform in ("Reference", "CPU"):
        setup = ("openmm", system, platform)
        pool = stack.enter_context(WorkerPool(WORKER, setup, usable_cores()))
        task = one_frame(system, 1, settings.openmm_steps, settings.seed)
        yield _in_workers(f"OpenMM {platform}", False, pool, task, usable_cores())


def torch_workers(system: MolecularSystem, settings: Settings, stack: ExitStack) -> Iterator[Run]:
    """Many walkers in one process, and as many in a process for each core."""
    target, setup = (WORKER, ("torch", system, "cpu")) if settings.compiled else (EAGER_WORKER, system)
    pool = stack.enter_context(WorkerPool(target, setup, usable_cores()))
    task = one_frame(system, settings.walkers, settings.torch_steps, settings.seed)
    name = f"TorchEngine, {'compiled' if settings.compiled else 'eager'}"
    for processes in sorted({1, usable_cores()}):
        yield _in_workers(name, True, pool, task, processes)


def eager_worker(system: MolecularSystem) -> Callable[[Task], Outcome]:
    """Target of a `WorkerPool`: the torch engine, not compiled."""
    return partial(run_task, TorchEngine(system, compiled=False))


def one_frame(system: MolecularSystem, walkers: int, steps: int, seed: int) -> Task:
    """Some steps of walkers that start at the structure, and a frame of each at the end."""
    start = Walkers.at(system.positions, walkers, rungs=1)
    temperatures = (system.temperature,)
    return Task(start, temperatures, 1, steps, exchange=steps, attempts=0, seed=seed, thermalise=True)


def _in_workers(name: str, ours: bool, pool: WorkerPool, task: Task, processes: int) -> Run:
    """The same task in several processes at once."""
    walkers = processes * len(task.walkers.positions)
    cell = Cell(name, ours, "dynamics", "workers", walkers * task.interval)
    short = replace(task, interval=1, exchange=1)
    prepare, advance = (partial(pool.map, [some] * processes) for some in (short, task))
    return Run(cell, processes, walkers, prepare, advance)


def dynamics_table(runs: list[Run]) -> Table:
    cells = [run.cell for run in runs]
    rows = []
    for run in runs:
        hours = run.hours_per_microsecond()
        sizes = [str(run.processes), str(run.walkers)]
        long = [figure(run.nanoseconds_per_day()), "–" if hours is None else f"{hours:.2f}"]
        long.append(figure(run.cell.compile_seconds))
        rows.append([run.cell.candidate, run.cell.mode, *sizes, *rates(run.cell, cells), *long])
    columns = ["engine", "mode", "processes", "walkers", *RATE_COLUMNS]
    columns += ["ns/day", "h for 1 µs", "first call s"]
    rounds = f"steps of {1000 * STEP:g} fs of ala2, all walkers together, {len(cells[0].seconds)} rounds"
    first = "first calls start processes and compile, the first torch worker's from an empty cache"
    found = [rounds, *notes(cells)[1:], _target(runs), first]
    return Table("Langevin dynamics, steps per second", columns, rows, found, n_labels=2)


def _target(runs: list[Run]) -> str:
    """What was wanted, beside what was measured."""
    wanted = f"target: 1 µs in less than {TARGET_HOURS:g} h on {TARGET_CORES} cores"
    for run in runs:
        hours = run.hours_per_microsecond()
        if run.cell.ours and run.processes == TARGET_CORES and hours is not None:
            return f"{wanted}; {run.cell.candidate}: {hours:.2f} h"
    return f"{wanted}; not measured here"
