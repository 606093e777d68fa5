"""Simulations: replicas on all cores, frames in one file, resumable after an interruption."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from knotflow.energies.openmm_contexts import GPU_PLATFORMS, fastest_platform, worker_count, works
from knotflow.files import only_writer, remove_lock
from knotflow.inputs import fingerprint, refuse_others, same
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.ranks import Team, team_size
from knotflow.resources import check_disk, check_memory, check_time
from knotflow.simulation.engines import STEP, engine_of
from knotflow.simulation.plan import EXCHANGE_STEPS, SimulationPlan, groups_per_task
from knotflow.simulation.tasks import Kept, Outcome, Task, Walkers
from knotflow.simulation.tempering import Exchanges
from knotflow.storage import trajectory
from knotflow.storage.arrays import read_arrays, write_arrays
from knotflow.storage.trajectory import Frames

log = logging.getLogger("knotflow")

SPREAD_STEPS: Final = 20_000
SPREAD_RATIO: Final = 2.0
"""Replicas first run at this multiple of the temperature, to start in different basins."""

TASK_STEPS: Final = {"openmm": 100_000, "torch": 500_000, "xtb": 5_000, "ase": 5_000, "module": 20_000}
"""Steps of all walkers in a task for 22 atoms, some seconds of work; fewer for larger molecules."""

GPU_WALKERS: Final = 4096

LADDER_STEPS: Final = 100
"""Least number of steps between two frames above the target temperature. Bonds and angles have new forces
after 0.1 ps, and a flow that learns from forces needs many: see docs/temperatures.md."""

STEPS_PER_SECOND: Final = {"openmm": 15_000, "torch": 110_000}
"""Of a core, for 22 atoms, as measured on two cores (docs/benchmarks.md): a first guess of the time left."""
GROWTH: Final = 1.6
"""Steps take longer by this power of the number of atoms; measured: 1.5 up to 42 atoms, 1.75 up to 147."""


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

    @property
    def exchanges(self) -> Exchanges:
        """How walkers moved on the ladder while frames were kept."""
        return Exchanges(self.tried, self.accepted, self.round_trips)

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
            found = read_arrays(path, note=True)
            walkers = Walkers(*(found[part.name] for part in fields(Walkers)))
            rest: dict[str, Any] = {name: found[name] for name in SUMS}
            rest |= zip(NUMBERS, map(int, found["numbers"]), strict=True)
            return cls(walkers, **rest)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OSError(
                f"the state of the run, {path}, is missing or damaged ({error}), so the run cannot be "
                "resumed; its frames are fine, choose another --out for new ones."
            ) from None


class Simulation:
    """A run and its file.

    An interrupted run resumes from ``name.h5.state``, next to its file ``name.h5``. The state is not needed
    to read the frames. A tempering run writes the frames above the target temperature to `ladder_path`,
    ``name.ladder.h5``. Runs of earlier versions have no such file, and go on without it.

    Args:
        path: The HDF5 file, new or from an earlier run with the same plan.
        system: The molecule.
        plan: What to simulate; more frames than in the file continue it.
        workers: Number of processes; default: one per core, or one on a GPU.

    Raises:
        ValueError: if the file is from another plan or molecule, or the engine does not support it.
        OSError: if the file or its state is damaged.
    """

    def __init__(
        self, path: str | Path, system: MolecularSystem, plan: SimulationPlan, workers: int | None = None
    ) -> None:
        self.path = Path(path)
        self.system = system
        self.plan = plan
        self.ladder = plan.ladder(system)
        engine_of(system, plan.engine)
        if plan.engine == "torch":
            from knotflow.energies.force_terms import read_terms  # here: OpenMM runs without torch

            read_terms(system.openmm_system(), system.kT)
        self._workers = workers
        self.resumed = self.path.exists()
        self._begun_on: str | None = None
        self.ladder_every = math.ceil(LADDER_STEPS / plan.interval) if len(self.ladder) > 1 else 0
        """Every so many frames, those above the target temperature are kept, too; 0: never."""
        self._check_affordable()
        if self.resumed:
            info = trajectory.open_info(self.path)
            self._check_same(info)
            self.system = info.system
            self._begun_on = info.provenance.get("place")
            self.ladder_every = info.provenance.get("ladder_every", 0)
            # Killed before it wrote its first state, it has lost nothing.
            begun = info.n_frames > 0 or self.state_path.exists()
            self.state = RunState.load(self.state_path) if begun else self._fresh()
            self._check_ladder_file()
        else:
            self.state = self._fresh()

    def _fresh(self) -> RunState:
        return RunState.fresh(self.system.positions, self.plan.replicas, len(self.ladder))

    def _check_affordable(self) -> None:
        """Refuse a run that would never end, or has no room."""
        plan, walkers = self.plan, f"{self.walkers:,} walkers"
        check_memory(walkers, self.walkers * 48 * self.system.n_atoms)
        check_time(f"{self.steps:,} steps of {walkers}", self.steps * 1e-7)
        if not self.resumed:
            check_disk(self.path, f"{plan.frames * plan.replicas:,} frames", sum(self.bytes_of_frames))

    @classmethod
    def planned(
        cls,
        path: str | Path,
        system: MolecularSystem,
        ns: float,
        *,
        workers: int | None = None,
        replicas: int | None = None,
        **settings: Any,
    ) -> Self:
        """A run by its length; see `SimulationPlan.of_times`.

        Unless ``replicas`` are given, a file that exists is continued with its own number of them.
        """
        if replicas is None and Path(path).exists():
            recorded = trajectory.open_info(path).provenance.get("plan") or {}
            replicas = recorded.get("replicas")
        return cls(path, system, SimulationPlan.of_times(ns, system, replicas=replicas, **settings), workers)

    @property
    def ladder_path(self) -> Path:
        """File with the frames above the target temperature, if there are any (`ladder_every`)."""
        return trajectory.ladder_file(self.path)

    @property
    def walkers(self) -> int:
        """Copies of the molecule that move."""
        return self.plan.replicas * len(self.ladder)

    @property
    def steps(self) -> int:
        """Steps of all walkers in the whole run, with those before the first frame."""
        plan = self.plan
        return self.walkers * (self._spread_steps + plan.equilibration + plan.frames * plan.interval)

    @property
    def steps_done(self) -> int:
        """Those of them whose results are on disk."""
        before = sum((self._spread_steps, self.plan.equilibration)[: self.state.block])
        return self.walkers * (before + self.state.frames * self.plan.interval)

    @property
    def _spread_steps(self) -> int:
        """Energies other than force fields are slow, so these runs then spread for as long as they relax."""
        if self.system.energy is None:
            return SPREAD_STEPS
        return min(SPREAD_STEPS, self.plan.equilibration)

    @cached_property
    def seconds_per_step(self) -> float | None:
        """Rough duration of a step of one walker on this machine; None on a GPU, where nothing is known."""
        if self._place in (*GPU_PLATFORMS, "cuda"):
            return None
        busy = min(team_size() * (self._workers or worker_count(self._place)), len(self._shares()))
        if self.system.energy is not None:
            return self._seconds_per_evaluation() / busy
        speed = busy * STEPS_PER_SECOND[self.plan.engine]
        return math.pow(max(1.0, self.system.n_atoms / 22), GROWTH) / speed

    def _seconds_per_evaluation(self) -> float:
        """Of one walker in a task, by one process."""
        from knotflow.energies.choose import force_field
        from knotflow.energies.speed import evaluations_per_second

        walkers = min(self._groups_per_task, self.plan.replicas) * len(self.ladder)
        with force_field(self.system, workers=1) as energy:
            return 1 / evaluations_per_second(energy, self.system.positions, walkers)

    @property
    def bytes_of_frames(self) -> tuple[int, int]:
        """Rough sizes of the file and of the ladder file at the end."""
        frame = 24 * self.system.n_atoms + 40
        frames = self.plan.replicas * self.plan.frames
        hot = frames // self.ladder_every * (len(self.ladder) - 1) if self.ladder_every else 0
        return frame * frames, frame * hot

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
            remove_lock(self.path)
            return
        place = self._place
        if not self.resumed:
            if self.ladder_every:
                trajectory.check_new(self.ladder_path)
            trajectory.create(self.path, self.system, self._provenance)
            self.state.save(self.state_path)
            self.resumed = True
        if self.ladder_every and not self.ladder_path.exists():
            trajectory.create(self.ladder_path, self.system, self._provenance, ladder=True)
        setup = (self.plan.engine, self.system, place, self._workers)
        report = _Report(self, progress or silent)
        if self.plan.engine == "torch":
            report.progress("compiling the force field", self.steps_done, self.steps, "about a minute")
        with only_writer(self.path), Team("knotflow.simulation.tasks:task_pool", setup) as team:
            warned = False
            while not self.finished:
                self._run_block(team, report)
                if not warned and (warning := self.state.exchanges.warning(self.ladder)):
                    log.warning(warning)
                    warned = True

    def _run_block(self, team: Team, report: _Report) -> None:
        """One block of all replicas; it is done when its frames and then the state are on disk."""
        phase, frames, interval, temperatures = self._block()
        hot = self._hot_frames(frames) if phase == "sampling" else range(0)
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
                hot=hot,
            )
            for number, share in enumerate(shares)
        ]
        outcomes: dict[int, Outcome] = {}
        report.begin(phase)
        for number, outcome in team.imap_unordered(tasks, report):
            outcomes[number] = outcome
            report.exchanges += outcome.exchanges
            report(number, outcome.temperatures.size * interval * len(self.ladder))
        done = [outcomes[number] for number in range(len(shares))]
        self.state.walkers = Walkers.join([outcome.walkers for outcome in done])
        self.state.block += 1
        if phase != "spreading":
            self.state.attempts += frames * interval // exchange
        if phase == "sampling":
            self._keep(done, frames, hot)
        self.state.save(self.state_path)

    def _keep(self, done: list[Outcome], frames: int, hot: range) -> None:
        """Append the frames of a block to the files, replica after replica."""
        state, replicas = self.state, self.plan.replicas
        new = self._frames([outcome.cold for outcome in done], range(frames))
        trajectory.append(self.path, new, at=state.frames * replicas)
        if hot:
            above = self._frames([o.hot for o in done if o.hot is not None], hot, self.ladder[1:])
            rows = state.frames // self.ladder_every * (self.walkers - replicas)
            trajectory.append(self.ladder_path, above, at=rows)
        state.frames += frames
        state.temperatures = state.temperatures + np.concatenate([o.temperatures.sum(1) for o in done])
        total = sum((outcome.exchanges for outcome in done), state.exchanges)
        state.tried, state.accepted, state.round_trips = total.tried, total.accepted, total.round_trips

    def _frames(
        self, done: list[Kept], numbers: range, temperatures: tuple[float, ...] | None = None
    ) -> Frames:
        """Frames of a block: replica after replica, frame after frame, temperature after temperature."""
        positions, forces, energies = (np.concatenate(part) for part in zip(*done, strict=True))
        replica, frame, rung = (index.reshape(-1) for index in np.indices(energies.shape))
        frame = self.state.frames + np.array(numbers)[frame]
        return Frames(
            positions.reshape(-1, *positions.shape[3:]),
            forces.reshape(-1, *forces.shape[3:]),
            energies.reshape(-1),
            replica.astype(np.int32),
            frame,
            np.asarray((frame + 1) * (self.plan.interval * STEP), dtype=np.float64),
            None if temperatures is None else np.array(temperatures)[rung],
        )

    def _hot_frames(self, frames: int) -> range:
        """Frames of the next block of which all temperatures are kept: those that end a stretch."""
        if not self.ladder_every:
            return range(0)
        return range(-(self.state.frames + 1) % self.ladder_every, frames, self.ladder_every)

    def _block(self) -> tuple[str, int, int, tuple[float, ...]]:
        """Phase, number of frames, steps per frame and temperatures of the next block."""
        if self.state.block == 0:
            hot = (SPREAD_RATIO * self.system.temperature,) * len(self.ladder)
            return "spreading", 1, self._spread_steps, hot
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
        if self.plan.engine in ("xtb", "ase"):
            return "cpu"
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    def _shares(self) -> list[slice]:
        """The groups of each task."""
        n = self._groups_per_task
        return [slice(start, start + n) for start in range(0, self.plan.replicas, n)]

    @property
    def _groups_per_task(self) -> int:
        if self._place == "cuda":
            return max(1, GPU_WALKERS // len(self.ladder))
        return groups_per_task(self.plan.engine, self.plan.replicas, len(self.ladder), self.system.n_atoms)

    @property
    def _frames_per_block(self) -> int:
        smaller = max(1.0, (self.system.n_atoms / 22) ** 2)
        steps = TASK_STEPS[self.plan.engine] / smaller
        walkers = min(self._groups_per_task, self.plan.replicas) * len(self.ladder)
        return max(1, round(steps / (walkers * self.plan.interval)))

    @property
    def _provenance(self) -> dict[str, Any]:
        made = {"command": "simulate", "plan": self.plan.fixed(), "place": self._place, "ladder": self.ladder}
        return made | ({"ladder_every": self.ladder_every} if self.ladder_every else {})

    def _check_same(self, info: trajectory.TrajectoryInfo) -> None:
        """Refuse a file that was begun with another plan or molecule."""
        recorded = info.provenance.get("plan")
        if recorded is None:
            raise ValueError(f"{self.path} was not made by `knotflow simulate`; choose another --out.")
        refuse_others(
            self.path, "a simulation", _inputs(recorded, info.system), _inputs(self.plan.fixed(), self.system)
        )

    def _check_ladder_file(self) -> None:
        """Refuse to continue with a ladder file that is missing or of another run."""
        kept = self.state.frames // self.ladder_every if self.ladder_every else 0
        if kept == 0 and not (self.ladder_every and self.ladder_path.exists()):
            return
        needed = kept * (self.walkers - self.plan.replicas)
        if not self.ladder_path.exists():
            raise FileNotFoundError(
                f"{self.ladder_path} with the frames above the target temperature is missing; put it back "
                f"beside {self.path.name}, or choose another --out."
            )
        info = trajectory.open_info(self.ladder_path, ladder=True)
        if not same(info.provenance.get("plan"), self.plan.fixed()) or info.n_frames < needed:
            raise ValueError(
                f"{self.ladder_path} does not belong to {self.path.name}; put the right one beside it, or "
                "choose another --out."
            )


def _inputs(plan: dict[str, Any], system: MolecularSystem) -> dict[str, Any]:
    """Everything that the frames of a run depend on; the force field also fixes the order of the atoms."""
    field = fingerprint(system.energy_inputs())
    return {**plan, "molecule": system.name, "temperature": system.temperature, "force field": field}


class _Report:
    """Turns the reports of tasks into the progress of the whole run: phase, steps of all walkers, speed."""

    def __init__(self, simulation: Simulation, progress: Progress) -> None:
        self.simulation, self.progress = simulation, progress
        self.exchanges = simulation.state.exchanges
        """Of all blocks so far, and of the tasks that are done in this one."""
        self._phase = ""
        self._tasks: dict[int, int] = {}
        """Steps done in each task of the block."""
        self._first: tuple[float, int] | None = None
        """Time and steps of the first report: the speed is measured from there, once workers run."""

    def begin(self, phase: str) -> None:
        """Called when a block begins."""
        self._phase = phase
        self._tasks.clear()
        self.exchanges = self.simulation.state.exchanges

    def __call__(self, task: int, steps: int) -> None:
        self._tasks[task] = steps
        run = self.simulation
        block = sum(self._tasks.values())
        done, kept = run.steps_done + block, run.state.frames * run.plan.interval
        if self._phase == "sampling":
            kept += block // run.walkers
        note = f"{run.plan.replicas * kept * STEP / 1000:.1f} ns kept"
        now = time.perf_counter()
        since, first = self._first = self._first or (now, done)
        if done > first:
            speed = (done - first) * STEP / 1000 / (now - since) * 86400
            note += f", {speed:,.0f} ns/day of all walkers"
        if self._phase == "sampling" and self.exchanges:
            note += f", {self.exchanges}"
        self.progress(self._phase, done, run.steps, note)


def _seed(seed: int, block: int, task: int) -> int:
    """A unique seed for each task."""
    return int(np.random.SeedSequence([seed, block, task]).generate_state(1, np.uint64)[0])
