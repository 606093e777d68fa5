"""Simulations: replicas on all cores, frames in one file, resumable after an interruption."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from knotflow.config import Config
from knotflow.energies.openmm_contexts import fastest_platform, worker_count, works
from knotflow.files import only_writer
from knotflow.inputs import fingerprint, refuse_others
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.simulation.engines import STEP, EngineName
from knotflow.simulation.tasks import Outcome, Task, Walkers
from knotflow.simulation.tempering import geometric_ladder
from knotflow.storage import trajectory
from knotflow.storage.arrays import read_arrays, write_arrays
from knotflow.storage.trajectory import Frames
from knotflow.workers import WorkerPool

SPREAD_STEPS: Final = 20_000
SPREAD_RATIO: Final = 2.0
"""Replicas first run at this multiple of the temperature, to start in different basins."""

EXCHANGE_STEPS: Final = 250
"""Steps between attempts to exchange temperatures; fewer if frames are kept more often."""

USUAL_REPLICAS: Final = {"openmm": 8, "torch": 512}
TASK_STEPS: Final = {"openmm": 100_000, "torch": 500_000}
"""Steps of all walkers in a task for 22 atoms, some seconds of work; fewer for larger molecules."""

GPU_WALKERS: Final = 4096
FEWEST_TASKS: Final = 4
"""Replicas are divided into at least this many tasks, to keep all cores busy."""


class SimulationPlan(Config):
    """What to simulate.

    Once a file has been started, only ``frames`` may change: more frames continue it.
    """

    engine: EngineName = "openmm"
    """``openmm``, one replica after the other on each core; ``torch``, many at once."""
    method: Literal["langevin", "tempering"] = "langevin"
    """``langevin`` at one temperature; ``tempering``, with a ladder of temperatures for each replica."""
    replicas: int = Field(8, ge=1)
    """Independent simulations."""
    frames: int = Field(1000, ge=1)
    """Frames to keep of each replica."""
    interval: int = Field(1000, ge=1)
    """Steps of 1 fs from frame to frame."""
    equilibration: int = Field(20_000, ge=1)
    """Steps at the target temperature before the first frame."""
    highest_temperature: float = Field(1000.0, gt=0)
    """Top of the ladder in K, for tempering."""
    seed: int = Field(0, ge=0)
    """Seed of all random numbers."""

    @model_validator(mode="after")
    def _exchanges_fit(self) -> SimulationPlan:
        if self.method == "tempering" and self.interval > EXCHANGE_STEPS and self.interval % EXCHANGE_STEPS:
            raise ValueError(
                f"tempering exchanges every {EXCHANGE_STEPS} steps, so the interval of frames must be a "
                f"multiple of {EXCHANGE_STEPS} steps or shorter, got {self.interval}"
            )
        return self

    @classmethod
    def of_times(
        cls,
        ns: float,
        *,
        every: float = 1.0,
        equilibration: float = 20.0,
        engine: EngineName = "openmm",
        replicas: int | None = None,
        **more: Any,
    ) -> SimulationPlan:
        """A plan by times instead of steps.

        Args:
            ns: Total sampling time of all replicas, in nanoseconds.
            every: Picoseconds between saved frames of a replica.
            equilibration: Picoseconds that each replica runs before its first saved frame.
            engine: See `SimulationPlan`.
            replicas: Independent simulations; None: 8 with OpenMM, 512 with torch.
            **more: Other fields of `SimulationPlan`.

        Raises:
            ValueError: if a time does not fit the step of 1 fs, or is too short for a frame of each replica.
        """
        replicas = replicas or USUAL_REPLICAS.get(engine, 1)
        interval = _steps("every", every)
        frames = round(ns * 1000 / (interval * STEP * replicas)) if ns > 0 else 0
        if frames < 1:
            raise ValueError(
                f"ns must give each of {replicas} replicas at least one frame of {every:g} ps, "
                f"{replicas * every / 1000:g} ns in all, got {ns:g}; raise it, or use fewer replicas."
            )
        steps = {"interval": interval, "equilibration": _steps("equilibration", equilibration)}
        return cls.parse({"engine": engine, "replicas": replicas, "frames": frames, **steps, **more})

    def ladder(self, system: MolecularSystem) -> tuple[float, ...]:
        """Temperatures in K, the target's first."""
        if self.method == "langevin":
            return (system.temperature,)
        return geometric_ladder(system.temperature, self.highest_temperature, system.n_atoms)

    def fixed(self) -> dict[str, Any]:
        """The fields that must stay the same when a run is continued."""
        return {key: value for key, value in self.plain().items() if key != "frames"}


def _steps(name: str, picoseconds: float) -> int:
    steps = round(picoseconds / STEP) if picoseconds > 0 else 0
    if steps < 1 or abs(steps * STEP - picoseconds) > 1e-9 * picoseconds:
        raise ValueError(
            f"{name} must be a positive multiple of the step, {STEP * 1000:g} fs, got {picoseconds:g} ps."
        )
    return steps


SUMS: Final = ("tried", "accepted", "temperatures")
NUMBERS: Final = ("block", "frames", "attempts", "round_trips")
"""Fields of `RunState`, as stored in its file."""


@dataclass
class RunState:
    """Everything needed to continue a run, and its statistics."""

    walkers: Walkers
    tried: NDArray[np.int64]
    """Exchanges tried between neighbouring temperatures, shape (rungs - 1,)."""
    accepted: NDArray[np.int64]
    temperatures: NDArray[np.float64]
    """Kinetic temperatures in K, summed over the frames of each replica."""
    block: int = 0
    """Number of the next block: 0 spreads the replicas, 1 equilibrates them, the others keep frames."""
    frames: int = 0
    """Frames kept per replica."""
    attempts: int = 0
    """Rounds of exchanges so far."""
    round_trips: int = 0

    @classmethod
    def fresh(cls, structure: NDArray[np.float64], replicas: int, rungs: int) -> RunState:
        """All walkers at the same structure."""
        exchanges = np.zeros(rungs - 1, dtype=np.int64)
        return cls(Walkers.at(structure, replicas, rungs), exchanges, exchanges, np.zeros(replicas))

    def save(self, path: Path) -> None:
        """Write the state, completely or not at all."""
        sums = {name: getattr(self, name) for name in SUMS}
        numbers = [getattr(self, name) for name in NUMBERS]
        write_arrays(path, {**vars(self.walkers), **sums, "numbers": numbers})

    @classmethod
    def load(cls, path: Path) -> RunState:
        """Read a state.

        Raises:
            OSError: if it is missing or damaged.
        """
        try:
            found = read_arrays(path)
            walkers = Walkers(*(found[part.name] for part in fields(Walkers)))
            rest: dict[str, Any] = {name: found[name] for name in SUMS}
            rest |= zip(NUMBERS, map(int, found["numbers"]), strict=True)
            return cls(walkers, **rest)
        except (OSError, ValueError, KeyError) as error:
            raise OSError(
                f"the state of the run, {path}, is missing or damaged ({error}), so the run cannot be "
                "resumed; its frames are fine, choose another --out for new ones."
            ) from None


class Simulation:
    """A run and its file.

    An interrupted run resumes from ``name.h5.state``, next to its file ``name.h5``. The state is not needed
    to read the frames.

    Args:
        path: The HDF5 file, new or from an earlier run with the same plan.
        system: The molecule.
        plan: What to simulate; more frames than in the file continue it.
        workers: Number of processes; default: one per core, or one on a GPU.

    Raises:
        ValueError: if the file is from another plan or molecule, or the torch engine does not support it.
        OSError: if the file or its state is damaged.
    """

    def __init__(
        self, path: str | Path, system: MolecularSystem, plan: SimulationPlan, workers: int | None = None
    ) -> None:
        self.path = Path(path)
        self.system = system
        self.plan = plan
        self.ladder = plan.ladder(system)
        if plan.engine == "torch":
            from knotflow.energies.force_terms import read_terms  # here: OpenMM runs without torch

            read_terms(system.openmm_system(), system.kT)
        self._workers = workers
        self.resumed = self.path.exists()
        self._begun_on: str | None = None
        if self.resumed:
            info = trajectory.open_info(self.path)
            self._check_same(info)
            self.system = info.system
            self._begun_on = info.provenance.get("place")
            self.state = RunState.load(self.state_path)
        else:
            self.state = RunState.fresh(system.positions, plan.replicas, len(self.ladder))

    @property
    def state_path(self) -> Path:
        """File with the state of the run."""
        return self.path.with_name(self.path.name + ".state")

    @property
    def finished(self) -> bool:
        """Whether all frames of the plan are in the file."""
        return self.state.frames >= self.plan.frames

    def run(self, progress: Progress | None = None) -> None:
        """Simulate the missing frames of the plan.

        Args:
            progress: Called about once a second with the steps done, summed over walkers.

        Raises:
            ValueError: if the simulation flies apart.
            OSError: if the file cannot be written; earlier frames are kept.
        """
        if self.finished:
            return
        place = self._place
        if not self.resumed:
            made = {"command": "simulate", "plan": self.plan.fixed(), "place": place, "ladder": self.ladder}
            trajectory.create(self.path, self.system, made)
            self.state.save(self.state_path)
            self.resumed = True
        workers = self._workers or worker_count(place)
        setup = (self.plan.engine, self.system, place)
        report = _Report(self, progress or silent)
        if self.plan.engine == "torch":
            report.progress("compiling the force field", 0, 0, "about a minute")
        with (
            only_writer(self.path),
            WorkerPool("knotflow.simulation.tasks:task_worker", setup, workers) as pool,
        ):
            while not self.finished:
                self._run_block(pool, report)

    def _run_block(self, pool: WorkerPool, report: _Report) -> None:
        """One block of all replicas; it is done when its frames and then the state are on disk."""
        phase, frames, interval, temperatures = self._block()
        shares = self._shares()
        exchanges = len(self.ladder) > 1 and phase != "spreading"
        exchange = min(interval, EXCHANGE_STEPS) if exchanges else interval
        tasks = [
            Task(
                self.state.walkers[share],
                temperatures,
                frames,
                interval,
                exchange,
                self.state.attempts,
                seed=_seed(self.plan.seed, self.state.block, number),
                thermalise=self.state.block <= 1,
            )
            for number, share in enumerate(shares)
        ]
        outcomes: dict[int, Outcome] = {}
        report.begin(phase)
        for number, outcome in pool.imap_unordered(tasks, report):
            outcomes[number] = outcome
            report(number, outcome.energies.size * interval * len(self.ladder))
        done = [outcomes[number] for number in range(len(shares))]
        self.state.walkers = Walkers.join([outcome.walkers for outcome in done])
        self.state.block += 1
        if phase != "spreading":
            self.state.attempts += frames * interval // exchange
        if phase == "sampling":
            self._keep(done, frames)
        self.state.save(self.state_path)

    def _keep(self, done: list[Outcome], frames: int) -> None:
        """Append the frames of a block to the file, replica after replica."""
        state, replicas = self.state, self.plan.replicas
        replica = np.repeat(np.arange(replicas, dtype=np.int32), frames)
        frame = np.tile(np.arange(state.frames, state.frames + frames), replicas)
        times = np.asarray((frame + 1) * (self.plan.interval * STEP), dtype=np.float64)
        positions, forces, energies = (
            np.concatenate([row for outcome in done for row in getattr(outcome, name)])
            for name in ("positions", "forces", "energies")
        )
        new = Frames(positions, forces, energies, replica, frame, times)
        trajectory.append(self.path, new, at=state.frames * replicas)
        state.frames += frames
        state.temperatures = state.temperatures + np.concatenate([o.temperatures.sum(1) for o in done])
        for outcome in done:
            state.tried = state.tried + outcome.tried
            state.accepted = state.accepted + outcome.accepted
            state.round_trips += outcome.round_trips

    def _block(self) -> tuple[str, int, int, tuple[float, ...]]:
        """Phase, number of frames, steps per frame and temperatures of the next block."""
        if self.state.block == 0:
            return "spreading", 1, SPREAD_STEPS, (SPREAD_RATIO * self.system.temperature,) * len(self.ladder)
        if self.state.block == 1:
            return "equilibrating", 1, self.plan.equilibration, self.ladder
        # Blocks end at multiples of their length.
        per_block = self._frames_per_block
        left = per_block - self.state.frames % per_block
        return "sampling", min(left, self.plan.frames - self.state.frames), self.plan.interval, self.ladder

    @cached_property
    def _place(self) -> str:
        """The OpenMM platform or the torch device: the one the run began on, if this machine has it.

        Each has its own random numbers, so the frames would differ on another one.
        """
        if self.plan.engine == "openmm":
            if self._begun_on is not None and works(self._begun_on, self.system.xml):
                return self._begun_on
            return fastest_platform(self.system.xml, self.system.positions)
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    def _shares(self) -> list[slice]:
        """The groups of each task."""
        n = self._groups_per_task
        return [slice(start, start + n) for start in range(0, self.plan.replicas, n)]

    @property
    def _groups_per_task(self) -> int:
        if self.plan.engine == "openmm":
            return 1
        from knotflow.energies.torch_force_field import frames_at_once

        at_once = frames_at_once(self.system.n_atoms) if self._place == "cpu" else GPU_WALKERS
        largest = max(1, at_once // len(self.ladder))
        return min(largest, math.ceil(self.plan.replicas / FEWEST_TASKS)) if self._place == "cpu" else largest

    @property
    def _frames_per_block(self) -> int:
        smaller = max(1.0, (self.system.n_atoms / 22) ** 2)
        steps = TASK_STEPS[self.plan.engine] / smaller
        walkers = min(self._groups_per_task, self.plan.replicas) * len(self.ladder)
        return max(1, round(steps / (walkers * self.plan.interval)))

    def _check_same(self, info: trajectory.TrajectoryInfo) -> None:
        """Refuse a file that was begun with another plan or molecule."""
        recorded = info.provenance.get("plan")
        if recorded is None:
            raise ValueError(f"{self.path} was not made by `knotflow simulate`; choose another --out.")
        refuse_others(
            self.path, "a simulation", _inputs(recorded, info.system), _inputs(self.plan.fixed(), self.system)
        )


def _inputs(plan: dict[str, Any], system: MolecularSystem) -> dict[str, Any]:
    """Everything that the frames of a run depend on; the force field also fixes the order of the atoms."""
    field = fingerprint({"xml": system.xml})
    return {**plan, "molecule": system.name, "temperature": system.temperature, "force field": field}


class _Report:
    """Turns the reports of tasks into the progress of the whole run: phase, steps of all walkers, speed."""

    def __init__(self, simulation: Simulation, progress: Progress) -> None:
        self.simulation, self.progress = simulation, progress
        self._phase = ""
        self._tasks: dict[int, int] = {}
        """Steps done in each task of the block."""
        self._first: tuple[float, int] | None = None
        """Time and steps of the first report: the speed is measured from there, once workers run."""

    def begin(self, phase: str) -> None:
        """Called when a block begins."""
        self._phase = phase
        self._tasks.clear()

    def __call__(self, task: int, steps: int) -> None:
        self._tasks[task] = steps
        plan, state = self.simulation.plan, self.simulation.state
        walkers = plan.replicas * len(self.simulation.ladder)
        before = [SPREAD_STEPS, plan.equilibration]
        kept, block = state.frames * plan.interval, sum(self._tasks.values())
        done = walkers * (sum(before[: state.block]) + kept) + block
        if self._phase == "sampling":
            kept += block // walkers
        note = f"{plan.replicas * kept * STEP / 1000:.1f} ns kept"
        now = time.perf_counter()
        since, first = self._first = self._first or (now, done)
        if done > first:
            speed = (done - first) * STEP / 1000 / (now - since) * 86400
            note += f", {speed:,.0f} ns/day of all walkers"
        self.progress(self._phase, done, walkers * (sum(before) + plan.frames * plan.interval), note)


def _seed(seed: int, block: int, task: int) -> int:
    """A unique seed for each task."""
    return int(np.random.SeedSequence([seed, block, task]).generate_state(1, np.uint64)[0])
