"""The dynamics test of Hong & Chun (AAAI 2023), figure 4: learned energies without a thermostat.

A thermostat hides errors of a force: it cools what heats up. Without one the total energy must be conserved,
and a molecule stays intact only on an energy that is smooth and right.
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
from knotflow.inputs import among, fingerprint, refuse_others
from knotflow.json_values import plain
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress, silent

if TYPE_CHECKING:
    import mdtraj

SAVE_EVERY: Final = 30.0
"""Seconds between checkpoints; a killed run loses at most this much work."""
SAME_ENERGY: Final = 1e-2
"""Largest difference in kT by which an energy may differ from that of a checkpoint."""

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
    """Friction of the thermostat, in 1/ps."""
    production: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Velocity Verlet, in ps."""
    every: int = Field(default=50, ge=1)
    """Steps from one record to the next."""
    strain: float = Field(default=1.5, gt=1)
    """A bond is broken if it is this many times longer or shorter than in the minimised structure."""
    seed: int = Field(default=0, ge=0)
    """Seed of the choice of frames, the velocities and the thermostat."""

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
        """Number of steps with a thermostat."""
        return round(self.equilibration / self.dt)

    @property
    def steps(self) -> int:
        """Number of all steps."""
        return self.equilibration_steps + round(self.production / self.dt)


def run(
    energy: MolecularEnergy,
    system: MolecularSystem,
    frames: ArrayLike | Tensor | mdtraj.Trajectory,
    config: DynamicsConfig | None = None,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
    about: Mapping[str, Any] | None = None,
) -> Record:
    """Equilibrate replicas on an energy, then remove the thermostat and record what happens.

    Positions and velocities are float64, centred, without motion of the centre of mass. Velocities are drawn
    at the temperature of the energy. The result depends on configuration, frames and energy only.

    Args:
        energy: energy of the molecule: a `knotflow.dynamics.FlowEnergy`, a force field.
        system: masses and bonds.
        frames: (n, atoms, 3) in nm, or a trajectory of MDTraj; if there are more than replicas, some are
            chosen at random.
        config: settings of the run.
        folder: for the files of the run. While it runs, `CHECKPOINT` is written there every `SAVE_EVERY`
            seconds and on interruption; called again, the run resumes from it with the same bits as if it
            had never stopped. At the end the folder has ``record.npz``, for `Record.load`, and
            ``drift.json``, the result of `knotflow.dynamics.score.summary`. A finished run is read.
        progress: called with the steps done at the start and after every record.
        about: more inputs to note in the record, as JSON can hold them. Files that note others belong to
            another run.

    Raises:
        ValueError: if there are too few frames, or if the folder holds another run.
    """
    config = config or DynamicsConfig()
    if energy.n_atoms != system.n_atoms or not math.isclose(energy.temperature, system.temperature):
        raise ValueError(
            f"the energy is of {energy.n_atoms} atoms at {energy.temperature:g} K, but the molecule has "
            f"{system.n_atoms} at {system.temperature:g} K; give those that belong together."
        )
    work = _Work(config, Masses.of(system), run_inputs(system, frames, config, about))
    if folder is None:
        return work.run(energy, system, frames, None, progress or silent)
    finished, checkpoint = folder / RECORD, folder / CHECKPOINT
    if finished.exists():
        record = Record.load(finished)
        _refuse_other_run(finished, record.about, work.about)
    else:
        record = work.run(energy, system, frames, checkpoint, progress or silent)
        record.save(finished)
    write_json(folder / DRIFT, summary(record))
    checkpoint.unlink(missing_ok=True)
    return record


def run_inputs(
    system: MolecularSystem,
    frames: ArrayLike | Tensor | mdtraj.Trajectory,
    config: DynamicsConfig,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All inputs of a run, as its record notes them; for the arguments see `run`.

    ``fingerprint`` is a hash of the configuration, the force field and the starting frames.
    """
    key = json.dumps(config.plain(), sort_keys=True).encode() + system.xml.encode()
    if system.energy is not None:
        key += fingerprint(system.energy_inputs()).encode()
    start = _start(frames, system, config)
    return {
        "molecule": system.name,
        "temperature": system.temperature,
        "config": config.plain(),
        **plain(about or {}),
        "fingerprint": hashlib.sha256(key + start.numpy().tobytes()).hexdigest(),
    }


def _start(frames: Any, system: MolecularSystem, config: DynamicsConfig) -> Tensor:
    """Starting positions in float64, one frame for each replica, chosen by the seed, in order.

    They are centred at the centre of mass: a large offset would cost digits.
    """
    found: Any = from_mdtraj(frames, system) if hasattr(frames, "topology") else frames
    x = torch.as_tensor(found if isinstance(found, Tensor) else np.asarray(found)).double().cpu()
    if x.ndim != 3 or x.shape[1:] != (system.n_atoms, 3):
        raise ValueError(f"frames must have shape (n, {system.n_atoms}, 3) in nm, got {tuple(x.shape)}.")
    if not bool(x.isfinite().all()):
        row = int((~x.isfinite()).flatten(1).any(1).long().argmax())
        raise ValueError(f"frame {row} has positions that are not finite; leave out such frames.")
    if len(x) < config.replicas:
        raise ValueError(
            f"{config.replicas} replicas need as many frames, got {len(x)}; give more, or set replicas."
        )
    rows = np.random.default_rng(config.seed).permutation(len(x))[: config.replicas]
    return Masses.of(system).at_rest(x[np.sort(rows)])


def _refuse_other_run(path: Path, noted: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse the file of a run with other inputs; more inputs, noted by earlier versions, are ignored.

    Raises:
        ValueError: names what differs; the starting frames, if it is nothing else.
    """
    named = {key: value for key, value in wanted.items() if key != "fingerprint"}
    refuse_others(path, "dynamics", among(noted, named), named)
    frames = {"starting frames": wanted["fingerprint"]}
    refuse_others(path, "dynamics", {"starting frames": noted.get("fingerprint")}, frames)


class _Work:
    """The records of a run so far, and their checkpoint."""

    def __init__(self, config: DynamicsConfig, masses: Masses, about: Mapping[str, Any]) -> None:
        self.config, self.masses, self.about = config, masses, about
        shape = config.steps // config.every + 1, config.replicas
        self.arrays: dict[str, NDArray[Any]] = {
            "potential": np.full(shape, np.nan),
            "kinetic": np.full(shape, np.nan),
            "positions": np.full((*shape, *masses.shape), np.nan, dtype=np.float32),
        }
        self.seconds, self.steps = 0.0, 0

    def run(
        self,
        energy: MolecularEnergy,
        system: MolecularSystem,
        frames: Any,
        path: Path | None,
        report: Progress,
    ) -> Record:
        """Run, or resume from the checkpoint ``path``."""
        config, masses = self.config, self.masses
        broken = Bonds.of(system, config.strain).broken
        thermostat = Langevin(energy, masses, config.dt, config.friction, seed=config.seed, broken=broken)
        newton = Verlet(energy, masses, config.dt, broken=broken)
        if path is not None and path.exists():
            state = self._load(path, energy)
        else:
            seeded = torch.Generator().manual_seed(config.seed)
            velocities = masses.thermal_velocities(config.replicas, generator=seeded)
            state = newton.start(_start(frames, system, config), velocities)
            self._put(state)
        report("dynamics", state.step, config.steps, self._note(state))
        began = saved = time.monotonic()
        before = self.seconds
        # The first evaluation, above, compiled the energy: that does not count as time of steps.
        try:
            while state.step < config.steps:
                integrator: Integrator = thermostat if state.step < config.equilibration_steps else newton
                # The record comes before the state: whatever interrupts, the file never lacks a record.
                now = integrator.run(state, config.every)
                self._put(now)
                steps = self.steps + (config.every if bool(state.moving.any()) else 0)
                state, self.steps, self.seconds = now, steps, before + time.monotonic() - began
                if path is not None and time.monotonic() - saved >= SAVE_EVERY:
                    self._save(path, state)
                    saved = time.monotonic()
                report("dynamics", state.step, config.steps, self._note(state))
        finally:
            if path is not None:
                self._save(path, state)
        return Record(
            time=np.arange(config.steps // config.every + 1, dtype=np.float64) * (config.every * config.dt),
            **self.arrays,
            status=state.status.numpy(),
            stopped=state.stopped.numpy(),
            production=config.equilibration_steps // config.every,
            degrees_of_freedom=masses.degrees_of_freedom,
            about={**self.about, "seconds": self.seconds, "steps": self.steps},
        )

    def _put(self, state: State) -> None:
        """Record the replicas that still move."""
        row, moving = state.step // self.config.every, state.moving.numpy()
        kinetic = self.masses.kinetic_energy(state.velocities)
        for name, values in (
            ("potential", state.energy),
            ("kinetic", kinetic),
            ("positions", state.positions),
        ):
            self.arrays[name][row, moving] = values.numpy()[moving]

    def _note(self, state: State) -> str:
        """Mean temperature and number of the molecules that still move."""
        moving = state.moving
        heat = self.masses.kinetic_temperature(state.velocities)[moving]
        kelvin = f"{float(heat.mean()):.0f} K, " if len(heat) else ""
        return f"{kelvin}{int(moving.sum())} of {len(moving)} whole"

    def _save(self, path: Path, state: State) -> None:
        parts = {f"state_{f.name}": np.asarray(getattr(state, f.name)) for f in fields(state)}
        about = {**self.about, "seconds": self.seconds, "steps": self.steps}
        write_noted(path, {**parts, **self.arrays}, about)

    def _load(self, path: Path, energy: MolecularEnergy) -> State:
        arrays, about = read_noted(path)
        _refuse_other_run(path, about, self.about)
        try:
            found = {f.name: arrays[f"state_{f.name}"] for f in fields(State)}
            step, clock = int(found.pop("step")), float(found.pop("time"))
            state = State(**{name: torch.from_numpy(a) for name, a in found.items()}, step=step, time=clock)
            kept = {name: arrays[name] for name in self.arrays}
            self.seconds, self.steps = float(about["seconds"]), int(about["steps"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove it to start over.") from None
        moving = state.moving
        if bool(moving.any()):
            u = energy.energy_and_force(state.positions)[0]
            if not bool(((u - state.energy).abs() < SAME_ENERGY)[moving].all()):
                raise ValueError(
                    f"{path} is the checkpoint of a run on another energy; give that one, or remove the file "
                    "to start over."
                )
        self.arrays = kept
        return state
