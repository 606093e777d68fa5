"""Long runs of `FlowMonteCarlo`: chains into a trajectory file, going on where a killed run stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from knotflow.config import Config
from knotflow.dynamics.chains import Chains, ChainState, Moves, accepted_shares
from knotflow.dynamics.flow_monte_carlo import FlowMonteCarlo
from knotflow.energies.energy import MolecularEnergy
from knotflow.files import only_writer, write_atomically
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.inputs import file_fingerprint, refuse_others
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.storage import trajectory
from knotflow.storage.trajectory import Frames

SAVE_SECONDS: Final = 20.0
"""Work is on disk after so many seconds; a killed run does as much once more."""
SAVE_FRAMES: Final = 50_000
"""Frames that wait in memory at most."""


class ExactPlan(Config):
    """How long chains run, and by which moves (`FlowMonteCarlo`).

    All but ``rows`` is fixed once a file has been started; asking for more rows goes on with it.

    Args:
        chains: Chains, all of which move at once. rows: States to keep of each. burn_in: Cycles before the
        first, in which chains forget that they started with samples of the flow. every: Cycles from one kept
        state to the next. flow_moves: Proposals of the flow in a cycle. hmc_moves: Trajectories in a cycle.
        md_steps: Time steps of a trajectory. time_step: In ps. seed: Of all random numbers.
    """

    chains: int = Field(256, ge=1)
    rows: int = Field(40, ge=1)
    burn_in: int = Field(100, ge=0)
    every: int = Field(10, ge=1)
    flow_moves: int = Field(4, ge=0)
    hmc_moves: int = Field(1, ge=0)
    md_steps: int = Field(20, ge=1)
    time_step: float = Field(0.001, gt=0, allow_inf_nan=False)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _moves(self) -> ExactPlan:
        if self.flow_moves + self.hmc_moves == 0:
            raise ValueError("a cycle needs a move: give flow_moves, hmc_moves or both")
        return self

    @property
    def cycles(self) -> int:
        """Of the whole run."""
        return self.burn_in + self.rows * self.every

    @property
    def samples(self) -> int:
        """States that are kept, of all chains together."""
        return self.rows * self.chains

    @property
    def evaluations(self) -> int:
        """Evaluations of the energy in the whole run, all chains together."""
        cycle = self.flow_moves + self.hmc_moves * (self.md_steps + 1)
        return self.chains * (self.cycles * cycle + self.rows)

    def fixed(self) -> dict[str, Any]:
        """What may not change when a run goes on."""
        return {key: value for key, value in self.plain().items() if key != "rows"}


@dataclass
class ExactState:
    """All that a run needs to go on, and its statistics."""

    chains: ChainState
    rows: int = 0
    """States kept of each chain."""
    accepted: tuple[int, int] = (0, 0)
    """Moves of the flow and trajectories, all chains together, after the burn-in."""
    seconds: float = 0.0
    """Spent so far."""

    def save(self, path: Path) -> None:
        """Write the state, completely or not at all."""
        more = {
            "rows": torch.tensor(self.rows),
            "accepted": torch.tensor(self.accepted),
            "seconds": torch.tensor(self.seconds, dtype=torch.float64),
        }
        write_atomically(
            path, to_bytes({**{f"chains.{k}": t for k, t in self.chains.tensors().items()}, **more})
        )

    @classmethod
    def load(cls, path: Path, device: str) -> ExactState:
        """Read a state.

        Raises:
            OSError: if it is missing or damaged.
        """
        try:
            found = from_bytes(path.read_bytes())
            rows, seconds = int(found.pop("rows")), float(found.pop("seconds"))
            flow, hmc = (int(number) for number in found.pop("accepted"))
            chains = {name.removeprefix("chains."): tensor for name, tensor in found.items()}
            return cls(ChainState.of(chains, device), rows, (flow, hmc), seconds)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise OSError(
                f"the state of the chains, {path}, is missing or damaged ({error}), so they cannot go on; "
                "the samples they made are fine, choose another file for new ones."
            ) from None


class ExactRun:
    """Chains and their file: a trajectory (`knotflow.storage.trajectory`) in which replicas are chains.

    ``frame`` is the number of the row; ``time`` counts cycles after the burn-in. Next to the file
    ``name.h5`` there is ``name.h5.state``, from which a stopped or killed run goes on, with the same samples
    as if it had not been; without it the file is complete in itself.

    Args:
        path: The HDF5 file, new or from an earlier run with the same plan and model.
        model: The generator.
        plan: How long and by which moves; more rows than in the file continue it.
        source: Which model it is (its name, a fingerprint): noted in the file, and compared when a run
            goes on.

    Raises:
        ValueError: if the file is another run's.
        OSError: if the file or its state is damaged.
    """

    def __init__(
        self, path: str | Path, model: BoltzmannGenerator, plan: ExactPlan, source: Mapping[str, Any]
    ) -> None:
        self.path, self.model, self.plan = Path(path), model, plan
        self.source = {**source, "dtype": str(_like(model).dtype).removeprefix("torch.")}
        self.system = MolecularSystem.parse(model.molecule)
        self.state: ExactState | None = None
        if self.path.exists():
            info = trajectory.open_info(self.path)
            self._check_same(info.provenance)
            self.state = ExactState.load(self.state_path, str(_like(model).device))
            if self.state.rows * plan.chains > info.n_frames:
                raise OSError(
                    f"{self.path} has {info.n_frames:,} frames, but by its state {self.state_path.name} "
                    f"there must be {self.samples:,}; copy both again, or choose another file."
                )

    @property
    def state_path(self) -> Path:
        """Where the state of the chains is kept."""
        return self.path.with_name(self.path.name + ".state")

    @property
    def rows(self) -> int:
        """States kept of each chain so far; they may be more than the plan asks for."""
        return 0 if self.state is None else self.state.rows

    @property
    def samples(self) -> int:
        """States kept so far, of all chains together."""
        return self.rows * self.plan.chains

    @property
    def cycles(self) -> int:
        """Cycles done so far."""
        return 0 if self.state is None else int(self.state.chains.cycles)

    @property
    def seconds(self) -> float:
        """Spent so far."""
        return 0.0 if self.state is None else self.state.seconds

    @property
    def evaluations(self) -> int:
        """Evaluations of the energy so far, all chains together."""
        return self.plan.model_copy(update={"rows": self.rows}).evaluations

    @property
    def finished(self) -> bool:
        """Whether all rows of the plan are in the file."""
        return self.rows >= self.plan.rows

    @property
    def moves(self) -> dict[str, Moves]:
        """How often moves were tried and accepted after the burn-in."""
        accepted = (0, 0) if self.state is None else self.state.accepted
        return self._moves(self.rows * self.plan.every, accepted)

    def run(self, energy: MolecularEnergy, progress: Progress | None = None) -> None:
        """Do what is missing of the plan.

        Args:
            energy: What to sample; at the temperature of the model.
            progress: Called with the cycles done, at the start, after every cycle of the burn-in, and then
                after every row.

        Raises:
            ValueError: if energy and model do not fit together, or no chain can start.
            OSError: if the file cannot be written; what it had is kept.
        """
        if self.finished:
            return
        plan, report = self.plan, progress or silent
        moves = plan.model_dump(include={"flow_moves", "hmc_moves", "md_steps", "time_step"})
        sampler = FlowMonteCarlo(self.model, energy, **moves)
        with only_writer(self.path):
            if self.state is None:
                began = time.perf_counter()
                chains = sampler.start(plan.chains, plan.seed)
                self.state = ExactState(chains, seconds=time.perf_counter() - began)
                self.state.save(self.state_path)
                trajectory.create(self.path, self.system, self._provenance())
            report("burning in" if self.cycles < plan.burn_in else "sampling", self.cycles, plan.cycles)
            while self.cycles < plan.burn_in:
                self._burn_in(sampler, self.state, report)
            while not self.finished:
                self._sample(sampler, self.state, energy, report)

    def _burn_in(self, sampler: FlowMonteCarlo, state: ExactState, progress: Progress) -> None:
        """Cycles of the burn-in, as many as there is time for before the next save."""
        began, before, accepted = time.perf_counter(), self.cycles, (0, 0)
        due = False
        while self.cycles < self.plan.burn_in and not due:
            chains = sampler.run(state.chains, 1)
            state.chains, accepted = chains.state, _sum(accepted, chains)
            due = time.perf_counter() - began >= SAVE_SECONDS
            note = accepted_shares(self._moves(self.cycles - before, accepted))
            progress("burning in", self.cycles, self.plan.cycles, note)
        state.seconds += time.perf_counter() - began
        state.save(self.state_path)

    def _sample(
        self, sampler: FlowMonteCarlo, state: ExactState, energy: MolecularEnergy, progress: Progress
    ) -> None:
        """Rows, as many as there is time and memory for; they count when frames, then state are on disk."""
        began, plan = time.perf_counter(), self.plan
        now, accepted = state.chains, state.accepted
        kept: list[Tensor] = []
        due = False
        while state.rows + len(kept) < plan.rows and not due:
            chains = sampler.run(now, plan.every, every=plan.every)
            now, accepted = chains.state, _sum(accepted, chains)
            kept.append(chains.positions[0])
            slow = time.perf_counter() - began >= SAVE_SECONDS
            due = slow or (len(kept) + 1) * plan.chains > SAVE_FRAMES
            rows = state.rows + len(kept)
            shares = accepted_shares(self._moves(rows * plan.every, accepted))
            progress("sampling", int(now.cycles), plan.cycles, f"{rows * plan.chains:,} samples, {shares}")
        trajectory.append(self.path, self._frames(kept, energy), at=self.samples)
        state.chains, state.accepted, state.rows = now, accepted, state.rows + len(kept)
        state.seconds += time.perf_counter() - began
        state.save(self.state_path)

    def _frames(self, kept: list[Tensor], energy: MolecularEnergy) -> Frames:
        """Rows of positions as frames of a file, row after row."""
        x = torch.cat(kept)
        u, force = energy.energy_and_force(x)
        kT, chains = self.system.kT, self.plan.chains
        row = np.repeat(np.arange(self.rows, self.rows + len(kept)), chains)
        return Frames(
            x.cpu().numpy(),
            (force * kT).cpu().numpy(),
            u.double().cpu().numpy() * kT,
            np.tile(np.arange(chains, dtype=np.int32), len(kept)),
            row,
            np.asarray((row + 1) * self.plan.every, dtype=np.float64),
        )

    def _moves(self, cycles: int, accepted: tuple[int, int]) -> dict[str, Moves]:
        tried = (cycles * self.plan.chains * n for n in (self.plan.flow_moves, self.plan.hmc_moves))
        return {kind: Moves(*pair) for kind, *pair in zip(("flow", "hmc"), tried, accepted, strict=True)}

    def _provenance(self) -> dict[str, Any]:
        return {"command": "exact", "plan": self.plan.fixed(), "source": self.source, "time": "cycles"}

    def _check_same(self, provenance: Mapping[str, Any]) -> None:
        if provenance.get("command") != "exact":
            raise ValueError(f"{self.path} exists already and holds no chains; choose another name.")
        found = {**provenance["source"], **provenance["plan"]}
        refuse_others(self.path, "chains", found, {**self.source, **self.plan.fixed()})


def open_run(path: str | Path, model: str | Path, plan: ExactPlan, *, double: bool = False) -> ExactRun:
    """The run of a model file, new or as far as it went.

    Args:
        path: The file of the chains.
        model: The model file; chains only go on with the same content.
        plan: How long and by which moves.
        double: Whether the model computes in double precision.
    """
    generator = BoltzmannGenerator.load(model).requires_grad_(False)
    source = {"model": Path(model).name, "fingerprint": file_fingerprint(model)}
    return ExactRun(path, generator.double() if double else generator, plan, source)


def _sum(accepted: tuple[int, int], chains: Chains) -> tuple[int, int]:
    return accepted[0] + chains.moves["flow"].accepted, accepted[1] + chains.moves["hmc"].accepted


def _like(model: BoltzmannGenerator) -> Tensor:
    return next(model.parameters(), torch.empty(0))
