"""Tasks of a simulation: the work of one process on some walkers for a while.

A task depends only on positions, velocities and a seed. So it does not matter which worker does it, and an
interrupted run repeats its last tasks exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knotflow.energies.openmm_contexts import worker_count
from knotflow.molecules.system import MolecularSystem
from knotflow.simulation.engines import Engine, EngineName, make_engine
from knotflow.simulation.tempering import Exchanges, Ladder
from knotflow.workers import WorkerPool, report

REPORT_EVERY: Final = 1.0
"""Seconds between reports of a worker."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Walkers:
    """Groups of walkers, one on each rung of a temperature ladder; a single rung is plain dynamics."""

    positions: Floats
    """In nm, shape (groups, rungs, atoms, 3)."""
    velocities: Floats
    """In nm/ps, same shape."""
    rungs: Ints
    """Rung of each walker, shape (groups, rungs)."""
    heading: Ints
    """See `Ladder`."""

    @classmethod
    def at(cls, structure: Floats, groups: int, rungs: int) -> Walkers:
        """All walkers at the same structure, at rest."""
        positions = np.tile(structure, (groups, rungs, 1, 1))
        ladder = Ladder.fresh((1.0,) * rungs, groups)
        return cls(positions, np.zeros_like(positions), ladder.rungs, ladder.heading)

    def __getitem__(self, groups: slice) -> Walkers:
        return Walkers(**{name: part[groups] for name, part in vars(self).items()})

    @classmethod
    def join(cls, some: list[Walkers]) -> Walkers:
        """Concatenate groups."""
        return cls(*(np.concatenate([getattr(w, part.name) for w in some]) for part in fields(cls)))


@dataclass(frozen=True)
class Task:
    """Work on some walkers.

    Args:
        walkers: The walkers at the start.
        temperatures: Temperatures of the rungs in K.
        frames: Number of frames to keep of each group.
        interval: Steps from frame to frame.
        exchange: Steps between attempts to exchange; divides the interval.
        attempts: Number of earlier attempts.
        seed: Seed of all random numbers.
        thermalise: Whether to draw new velocities first.
        hot: Numbers of the frames of which the walkers above the lowest temperature are kept, too.
    """

    walkers: Walkers
    temperatures: tuple[float, ...]
    frames: int
    interval: int
    exchange: int
    attempts: int
    seed: int
    thermalise: bool = False
    hot: range = range(0)


class Kept(NamedTuple):
    """Frames of some rungs, with shapes (groups, frames, rungs, ...), in nm and kJ/mol."""

    positions: NDArray[np.float32]
    forces: NDArray[np.float32]
    energies: Floats

    @classmethod
    def stack(cls, frames: list[Kept], rungs: slice) -> Kept:
        """Some rungs of frames, one after the other; a single frame has the shape (groups, rungs, ...)."""
        return cls(*(np.stack([part[:, rungs] for part in parts], 1) for parts in zip(*frames, strict=True)))


@dataclass(frozen=True)
class Outcome:
    """Walkers after a task, frames and statistics."""

    walkers: Walkers
    cold: Kept
    """Frames at the lowest temperature: a single rung."""
    hot: Kept | None
    """Frames at all higher temperatures; None if none were asked for."""
    temperatures: Floats
    """Kinetic temperatures in K of the frames at the lowest temperature, shape (groups, frames)."""
    exchanges: Exchanges


def task_pool(setup: tuple[EngineName, MolecularSystem, str, int | None]) -> WorkerPool:
    """Target of a `knotflow.ranks.Team`: the worker processes of a rank; None: as many as suit the place."""
    *engine, workers = setup
    return WorkerPool(
        "knotflow.simulation.tasks:task_worker", tuple(engine), workers or worker_count(setup[2])
    )


def task_worker(setup: tuple[EngineName, MolecularSystem, str]) -> Callable[[Task], Outcome]:
    """Target of a `WorkerPool`: an engine that does one `Task` after the other.

    It regularly reports the steps done so far in a task, summed over walkers.
    """
    engine = make_engine(*setup)

    def work(task: Task) -> Outcome:
        done, reported = 0, -REPORT_EVERY

        def count(steps: int) -> None:
            nonlocal done, reported
            done += steps
            if time.monotonic() - reported >= REPORT_EVERY:
                reported = time.monotonic()
                report(done)

        engine.report = count
        try:
            return run_task(engine, task)
        except FloatingPointError as error:
            raise ValueError(
                f"the simulation flew apart ({error}); check the structure, or lower the highest "
                "temperature. All frames written so far are kept."
            ) from None

    return work


def run_task(engine: Engine, task: Task) -> Outcome:
    """Move and exchange walkers; keep a frame of each group's coldest walker at every interval.

    The engine has computed energies and forces of all walkers for the last step, so hot frames cost nothing.
    """
    random = np.random.default_rng(task.seed)
    engine.seed(int(random.integers(1, 2**31)))
    walkers = task.walkers
    ladder = Ladder(task.temperatures, walkers.rungs.copy(), walkers.heading.copy(), task.attempts)
    shape = walkers.positions.shape
    x, v = (part.reshape(-1, *shape[2:]) for part in (walkers.positions, walkers.velocities))
    if task.thermalise:
        v = engine.thermal_velocities(ladder.of_walkers().reshape(-1), random)
    kept: list[Kept] = []
    temperatures: list[Floats] = []
    for _ in range(task.frames):
        for _ in range(task.interval // task.exchange):
            now = engine.advance(x, v, ladder.of_walkers().reshape(-1), task.exchange)
            x, v, motion = now.positions, now.velocities, now.temperatures
            if len(task.temperatures) > 1:
                rescale = ladder.exchange(now.energies.reshape(shape[:2]), random).reshape(-1)
                v, motion = v * rescale[:, None, None], motion * rescale**2
        on_rungs = np.arange(shape[0])[:, None] * shape[1] + ladder.on_rungs()
        rungs = on_rungs if len(kept) in task.hot else on_rungs[:, :1]
        forces, positions = now.forces[rungs], now.positions[rungs]
        kept.append(Kept(positions.astype(np.float32), forces.astype(np.float32), now.energies[rungs]))
        temperatures.append(motion[on_rungs[:, 0]])
    hot = [kept[number] for number in task.hot]
    return Outcome(
        Walkers(x.reshape(shape), v.reshape(shape), ladder.rungs, ladder.heading),
        Kept.stack(kept, np.s_[:1]),
        Kept.stack(hot, np.s_[1:]) if hot else None,
        np.stack(temperatures, 1),
        Exchanges(ladder.tried, ladder.accepted, ladder.round_trips),
    )
