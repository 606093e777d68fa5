"""The test of Hong & Chun (AAAI 2023), figure 4: dynamics on a learned energy, at last without a thermostat.

A thermostat hides what is wrong with a force: it cools what heats up. Without one the total energy must stay,
and a molecule stays whole only on an energy that is smooth and right.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator
from torch import Tensor

from knotflow.config import Config
from knotflow.dynamics.bonds import Bonds
from knotflow.dynamics.integrators import Integrator, Langevin, State, Verlet
from knotflow.dynamics.masses import Masses
from knotflow.dynamics.record import Record, from_mdtraj, read_noted, write_noted
from knotflow.dynamics.score import summary
from knotflow.energies.energy import MolecularEnergy
from knotflow.files import write_json
from knotflow.inputs import among, refuse_others
from knotflow.json_values import plain
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress, silent

if TYPE_CHECKING:
    import mdtraj

SAVE_EVERY: Final = 30.0
"""In seconds: how much work is lost if a run is killed."""
SAME_ENERGY: Final = 1e-2
"""In kT: by more, a checkpoint belongs to another energy."""

RECORD: Final = "record.npz"
DRIFT: Final = "drift.json"
CHECKPOINT: Final = "checkpoint.npz"
"""Files in the folder of a run."""


class DynamicsConfig(Config):
    """A run: equilibration with a thermostat, then production without. The defaults are the paper's."""

    replicas: int = Field(default=10, ge=1)
    """Independent molecules, each from another frame."""
    dt: float = Field(default=1e-4, gt=0, allow_inf_nan=False)
    """Length of a step in ps."""
    equilibration: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    """Langevin dynamics, in ps."""
    friction: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Of the thermostat, in 1/ps."""
    production: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Velocity Verlet, in ps."""
    every: int = Field(default=50, ge=1)
    """Steps from one record to the next."""
    strain: float = Field(default=1.5, gt=1)
    """A bond so many times as long as in the minimised structure, or as short, is broken."""
    seed: int = Field(default=0, ge=0)
    """Of the choice of frames, the velocities and the thermostat."""

    @model_validator(mode="after")
    def _check_records(self) -> Self:
        for name in ("equilibration", "production"):
            records = getattr(self, name) / (self.dt * self.every)
            if abs(records - round(records)) > 1e-6 * max(1.0, records):
                raise ValueError(
                    f"{name} must be a whole number of records of every·dt = {self.dt * self.every:g} ps, "
                    f"got {getattr(self, name):g} ps."
                )
        return self

    @property
    def equilibration_steps(self) -> int:
        """Steps with a thermostat."""
        return round(self.equilibration / self.dt)

    @property
    def steps(self) -> int:
        """All steps."""
        return self.equilibration_steps + round(self.production / self.dt)


def run(
    energy: MolecularEnergy,
    system: MolecularSystem,
    frames: ArrayLike | Tensor | mdtraj.Trajectory,
    config: DynamicsConfig | None = None,
    *,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    save_every: float = SAVE_EVERY,
    about: Mapping[str, Any] | None = None,
) -> Record:
    """Equilibrate replicas on an energy, take the thermostat away, and see what happens.

    Positions and velocities are float64, centred, without motion of the centre of mass. Velocities are drawn
    at the temperature of the energy. Nothing but configuration, frames and energy decides about the result.

    Args:
        energy: of the molecule: a `knotflow.dynamics.FlowEnergy`, a force field.
        system: masses and bonds.
        frames: (n, atoms, 3) in nm, or a trajectory of MDTraj; if there are more than replicas, as many of
            them are chosen at random.
        config: how to run.
        checkpoint: where to keep the state of the run. If the file is there, the run goes on from it, with
            the same bits as if it had never stopped; it is kept at the end, and may then be removed.
        progress: called with the steps done at the start and after every record.
        save_every: seconds between two checkpoints; one is written on interruption, too.
        about: what else the record is to say, as JSON can hold it. A checkpoint that says otherwise is of
            another run.

    Raises:
        ValueError: if there are too few frames, or if the checkpoint is of another run.
    """
    config = config or DynamicsConfig()
    if energy.n_atoms != system.n_atoms or not math.isclose(energy.temperature, system.temperature):
        raise ValueError(
            f"the energy is of {energy.n_atoms} atoms at {energy.temperature:g} K, but the molecule has "
            f"{system.n_atoms} at {system.temperature:g} K; give those that belong together."
        )
    masses = Masses.of(system)
    work = _Work(config, masses, run_inputs(system, frames, config, about))
    broken = Bonds.of(system, config.strain).broken
    thermostat = Langevin(energy, masses, config.dt, config.friction, seed=config.seed, broken=broken)
    newton = Verlet(energy, masses, config.dt, broken=broken)
    if checkpoint is not None and checkpoint.exists():
        state = work.resumed(checkpoint, energy)
    else:
        seeded = torch.Generator().manual_seed(config.seed)
        start = _start(frames, masses, system, config)
        state = newton.start(start, masses.thermal_velocities(config.replicas, generator=seeded))
        work.put(state)
    report = progress or silent
    report("dynamics", state.step, config.steps, _note(state, masses))
    began = saved = time.monotonic()
    before = work.seconds
    # Compiled code was made above, by the first evaluation: it does not count as time of steps.
    try:
        while state.step < config.steps:
            integrator: Integrator = thermostat if state.step < config.equilibration_steps else newton
            # The record comes before the state: whatever interrupts, the file never lacks a record.
            now = integrator.run(state, config.every)
            work.put(now)
            steps = work.steps + (config.every if bool(state.moving.any()) else 0)
            state, work.steps, work.seconds = now, steps, before + time.monotonic() - began
            if checkpoint is not None and time.monotonic() - saved >= save_every:
                work.save(checkpoint, state)
                saved = time.monotonic()
            report("dynamics", state.step, config.steps, _note(state, masses))
    finally:
        if checkpoint is not None:
            work.save(checkpoint, state)
    return work.record(state)


def run_in(
    folder: Path,
    energy: MolecularEnergy,
    system: MolecularSystem,
    frames: ArrayLike | Tensor | mdtraj.Trajectory,
    config: DynamicsConfig | None = None,
    *,
    progress: Progress | None = None,
    about: Mapping[str, Any] | None = None,
) -> Record:
    """`run` with its files in a folder: a stopped run goes on, a finished one is read.

    At the end the folder has ``record.npz``, for `Record.load`, and ``drift.json``, what
    `knotflow.dynamics.score.summary` gives; while it runs, `CHECKPOINT`.

    Raises:
        ValueError: if the folder holds another run, or there are too few frames.
    """
    config = config or DynamicsConfig()
    finished, checkpoint = folder / RECORD, folder / CHECKPOINT
    if finished.exists():
        record = Record.load(finished)
        refuse_other_run(finished, record.about, run_inputs(system, frames, config, about))
    else:
        record = run(energy, system, frames, config, checkpoint=checkpoint, progress=progress, about=about)
        record.save(finished)
    write_json(folder / DRIFT, summary(record))
    checkpoint.unlink(missing_ok=True)
    return record


def starting_frames(
    frames: ArrayLike | Tensor | mdtraj.Trajectory, system: MolecularSystem, config: DynamicsConfig
) -> Tensor:
    """As many frames as there are replicas, in float64: which ones depends on the seed; order is kept."""
    found: Any = from_mdtraj(frames, system) if hasattr(frames, "topology") else frames
    x = torch.as_tensor(found if isinstance(found, Tensor) else np.asarray(found)).double().cpu()
    if x.ndim != 3 or x.shape[1:] != (system.n_atoms, 3):
        raise ValueError(f"frames must have shape (n, {system.n_atoms}, 3) in nm, got {tuple(x.shape)}.")
    if len(x) < config.replicas:
        raise ValueError(
            f"{config.replicas} replicas need as many frames, got {len(x)}; give more, or set replicas."
        )
    rows = np.random.default_rng(config.seed).permutation(len(x))[: config.replicas]
    return x[np.sort(rows)]


def run_inputs(
    system: MolecularSystem,
    frames: ArrayLike | Tensor | mdtraj.Trajectory,
    config: DynamicsConfig,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All that decides about a run, as its record notes it; for the arguments see `run`.

    ``fingerprint`` is that of configuration, force field and the frames that replicas start from.
    """
    key = json.dumps(config.plain(), sort_keys=True).encode() + system.xml.encode()
    start = _start(frames, Masses.of(system), system, config)
    return {
        "molecule": system.name,
        "temperature": system.temperature,
        "config": config.plain(),
        **plain(about or {}),
        "fingerprint": hashlib.sha256(key + start.numpy().tobytes()).hexdigest(),
    }


def refuse_other_run(path: Path, noted: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse the file of a run with other inputs; what earlier versions noted besides is of no account.

    Raises:
        ValueError: names what differs; the frames, if it is nothing else.
    """
    named = {key: value for key, value in wanted.items() if key != "fingerprint"}
    refuse_others(path, "dynamics", among(noted, named), named)
    frames = {"starting frames": wanted["fingerprint"]}
    refuse_others(path, "dynamics", {"starting frames": noted.get("fingerprint")}, frames)


def _start(frames: Any, masses: Masses, system: MolecularSystem, config: DynamicsConfig) -> Tensor:
    """Where replicas start: less their centre of mass, which would cost digits."""
    return masses.at_rest(starting_frames(frames, system, config))


def _note(state: State, masses: Masses) -> str:
    """Temperature of the molecules that still move, and how many these are."""
    moving = state.moving
    heat = masses.kinetic_temperature(state.velocities)[moving]
    kelvin = f"{float(heat.mean()):.0f} K, " if len(heat) else ""
    return f"{kelvin}{int(moving.sum())} of {len(moving)} whole"


class _Work:
    """Records of a run that are there so far, and their file."""

    def __init__(self, config: DynamicsConfig, masses: Masses, about: Mapping[str, Any]) -> None:
        self.config, self.masses, self.about = config, masses, about
        rows, replicas = config.steps // config.every + 1, config.replicas
        self.potential, self.kinetic = np.full((2, rows, replicas), np.nan)
        self.positions = np.full((rows, replicas, *masses.shape), np.nan, dtype=np.float32)
        self.seconds, self.steps = 0.0, 0

    def put(self, state: State) -> None:
        row, moving = state.step // self.config.every, state.moving.numpy()
        self.potential[row, moving] = state.energy.numpy()[moving]
        self.kinetic[row, moving] = self.masses.kinetic_energy(state.velocities).numpy()[moving]
        self.positions[row, moving] = state.positions.numpy()[moving]

    def record(self, state: State) -> Record:
        return Record(
            time=np.arange(len(self.potential), dtype=np.float64) * (self.config.every * self.config.dt),
            potential=self.potential,
            kinetic=self.kinetic,
            positions=self.positions,
            status=state.status.numpy(),
            stopped=state.stopped.numpy(),
            production=self.config.equilibration_steps // self.config.every,
            degrees_of_freedom=self.masses.degrees_of_freedom,
            about={**self.about, "seconds": self.seconds, "steps": self.steps},
        )

    def save(self, path: Path, state: State) -> None:
        arrays: dict[str, NDArray[Any]] = {
            f"state_{f.name}": np.asarray(getattr(state, f.name)) for f in fields(state)
        }
        arrays |= {"potential": self.potential, "kinetic": self.kinetic, "positions": self.positions}
        write_noted(path, arrays, {**self.about, "seconds": self.seconds, "steps": self.steps})

    def resumed(self, path: Path, energy: MolecularEnergy) -> State:
        arrays, about = read_noted(path)
        refuse_other_run(path, about, self.about)
        found = {f.name: arrays[f"state_{f.name}"] for f in fields(State)}
        step, clock = int(found.pop("step")), float(found.pop("time"))
        state = State(**{name: torch.from_numpy(a) for name, a in found.items()}, step=step, time=clock)
        moving = state.moving
        if bool(moving.any()):
            u = energy.energy_and_force(state.positions)[0]
            if not bool(((u - state.energy).abs() < SAME_ENERGY)[moving].all()):
                raise ValueError(
                    f"{path} is the checkpoint of a run on another energy; give that one, or remove the file "
                    "to begin anew."
                )
        self.potential, self.kinetic = arrays["potential"], arrays["kinetic"]
        self.positions = arrays["positions"]
        self.seconds, self.steps = float(about["seconds"]), int(about["steps"])
        return state
