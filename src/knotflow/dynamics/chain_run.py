"""Long runs of `FlowMonteCarlo`: chains written to a trajectory file; interrupted runs resume."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from knotflow.config import Config
from knotflow.dynamics.chains import NO_MOVES, Chains, ChainState, Moves, accepted_shares
from knotflow.dynamics.flow_monte_carlo import FlowMonteCarlo
from knotflow.energies.energy import MolecularEnergy
from knotflow.files import only_writer, remove_lock
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import dtype_name, like
from knotflow.inputs import file_fingerprint, refuse_others
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.ranks import OneByOne, Team, piece_seed
from knotflow.resources import check_disk, check_memory, check_time
from knotflow.storage import trajectory
from knotflow.storage.trajectory import Frames
from knotflow.tensor_files import read_tensors, write_tensors

SAVE_SECONDS: Final = 20.0
"""Seconds between saves; an interrupted run repeats at most this much work."""
TOGETHER: Final = 128
"""Chains that move at once, at most. Such a group has random numbers of its own, so that any process can move
it; smaller groups would take longer, as a flow has some work for each batch."""
SAVE_FRAMES: Final = 50_000
"""Largest number of frames kept in memory before they are saved."""


class ExactPlan(Config):
    """Length of the chains and the moves they make (`FlowMonteCarlo`).

    Once a file has been started, only ``rows`` may change: more rows continue it.
    """

    chains: int = Field(256, ge=1)
    """Number of chains; up to `TOGETHER` of them move at once."""
    rows: int = Field(40, ge=1)
    """States to keep of each chain."""
    burn_in: int = Field(100, ge=0)
    """Cycles before the first kept state, in which chains forget that they started as flow samples."""
    every: int = Field(10, ge=1)
    """Cycles from one kept state to the next."""
    flow_moves: int = Field(4, ge=0)
    """Flow proposals in a cycle."""
    hmc_moves: int = Field(1, ge=0)
    """Trajectories in a cycle."""
    md_steps: int = Field(20, ge=1)
    """Time steps of a trajectory."""
    time_step: float = Field(0.001, gt=0, allow_inf_nan=False)
    """Length of a time step in ps."""
    seed: int = Field(0, ge=0)
    """Seed of all random numbers."""

    @model_validator(mode="after")
    def _moves(self) -> ExactPlan:
        if self.flow_moves + self.hmc_moves == 0:
            raise ValueError("a cycle needs a move: give flow_moves, hmc_moves or both")
        return self

    @property
    def cycles(self) -> int:
        """Cycles in the whole run."""
        return self.burn_in + self.rows * self.every

    @property
    def samples(self) -> int:
        """Number of kept states, all chains together."""
        return self.rows * self.chains

    @property
    def evaluations(self) -> int:
        """Energy evaluations in the whole run, all chains together."""
        cycle = self.flow_moves + self.hmc_moves * (self.md_steps + 1)
        return self.chains * (self.cycles * cycle + self.rows)

    def fixed(self) -> dict[str, Any]:
        """The part that must stay the same when a run is continued."""
        return self.model_dump(mode="json", exclude={"rows"})


class ExactRun:
    """Chains and their file: a trajectory (`knotflow.storage.trajectory`) in which replicas are chains.

    ``frame`` is the number of the row; ``time`` counts cycles after the burn-in. An interrupted run resumes
    from ``name.h5.state``, beside its file ``name.h5``, with the same samples as without the interruption. To
    read the samples, the state is not needed.

    Args:
        path: The HDF5 file, new or from an earlier run with the same plan and model.
        model: The generator.
        plan: Length and moves; more rows than in the file continue it.
        source: Identifies the model (its name, a fingerprint). Stored in the file, and compared when a run is
            continued.

    Raises:
        ValueError: if the file holds another run.
        OSError: if the file or its state is damaged.
    """

    def __init__(
        self, path: str | Path, model: BoltzmannGenerator, plan: ExactPlan, source: Mapping[str, Any]
    ) -> None:
        self.path, self.model, self.plan = Path(path), model, plan
        own = like(model)
        self.source = {**source, "dtype": dtype_name(own.dtype)}
        self.system = MolecularSystem.parse(model.molecule)
        self.state: ChainState | None = None
        """Current state of the chains; None if they have not started."""
        self.rows = 0
        """States of each chain in the file. There may be more than the plan asks for."""
        self.moves: dict[str, Moves] = NO_MOVES
        """Moves tried and accepted after the burn-in, for each kind, all chains together."""
        self.seconds = 0.0
        """Time spent so far."""
        atoms, samples = self.system.n_atoms, f"{plan.samples:,} samples"
        check_memory(f"{plan.chains:,} chains", plan.chains * 100 * atoms)
        check_time(f"{plan.evaluations:,} energy evaluations", plan.evaluations * 1e-6)
        check_disk(self.path, samples, (plan.samples if not self.path.exists() else 0) * (24 * atoms + 40))
        if self.path.exists():
            info = trajectory.open_info(self.path)
            if info.provenance.get("command") != "exact":
                raise ValueError(f"{self.path} exists already and does not hold chains; choose another name.")
            found = {**info.provenance["source"], **info.provenance["plan"]}
            refuse_others(self.path, "chains", found, {**self.source, **plan.fixed()})
            self._load(str(own.device))
            if self.samples > info.n_frames:
                raise OSError(
                    f"{self.path} has {info.n_frames:,} frames, but its state {self.state_path.name} counts "
                    f"{self.samples:,}; copy both again, or choose another file."
                )

    @property
    def state_path(self) -> Path:
        """The file with the state of the chains."""
        return self.path.with_name(self.path.name + ".state")

    @property
    def samples(self) -> int:
        """States in the file, all chains together."""
        return self.rows * self.plan.chains

    @property
    def cycles(self) -> int:
        """Cycles done so far."""
        return 0 if self.state is None else int(self.state.cycles)

    @property
    def evaluations(self) -> int:
        """Energy evaluations so far, all chains together."""
        return self.plan.model_copy(update={"rows": self.rows}).evaluations

    @property
    def finished(self) -> bool:
        """Whether all rows of the plan are in the file."""
        return self.rows >= self.plan.rows

    def run(self, energy: MolecularEnergy, progress: Progress | None = None) -> None:
        """Do what is missing of the plan.

        Args:
            energy: The energy to sample, at the temperature of the model.
            progress: Called with the cycles done: at the start, after every cycle of the burn-in, and then
                after every row.

        Raises:
            ValueError: if energy and model do not fit together, or no chain can start.
            OSError: if the file cannot be written; what it had is kept.
        """
        if self.finished:
            remove_lock(self.path)
            return
        plan, report = self.plan, progress or silent
        moves = plan.model_dump(include={"flow_moves", "hmc_moves", "md_steps", "time_step"})
        setup = (self.model, energy, moves)
        with only_writer(self.path), Team("knotflow.dynamics.chain_run:mover", setup) as team:
            if self.state is None:
                began = time.perf_counter()
                self.state = ChainState.of_groups(team.map(self._starts()))
                self.seconds = time.perf_counter() - began
                self._save(self.state)
                made = {"command": "exact", "plan": plan.fixed(), "source": self.source, "time": "cycles"}
                trajectory.create(self.path, self.system, made)
            report("burning in" if self.cycles < plan.burn_in else "sampling", self.cycles, plan.cycles)
            while not self.finished:
                self._run_block(team, self.state, energy, report)

    def _run_block(self, team: Team, now: ChainState, energy: MolecularEnergy, progress: Progress) -> None:
        """Cycles of the burn-in, or rows, up to a save; they count once frames and state are on disk."""
        began, plan = time.perf_counter(), self.plan
        burning = self.cycles < plan.burn_in
        doing, end, cycles = (
            ("burning in", plan.burn_in, 1) if burning else ("sampling", plan.cycles, plan.every)
        )
        moves = NO_MOVES if burning else self.moves
        kept: list[Tensor] = []
        rows, due = 0, False
        while int(now.cycles) < end and not due:
            found: list[Chains] = team.map([(group, cycles) for group in now.groups()])
            now = ChainState.of_groups([chains.state for chains in found])
            for chains in found:
                moves = {kind: some + moves[kind] for kind, some in chains.moves.items()}
            note = accepted_shares(moves)
            due = time.perf_counter() - began >= SAVE_SECONDS
            if not burning:
                kept.extend(chains.positions[0] for chains in found)
                rows += 1
                due = due or (rows + 1) * plan.chains > SAVE_FRAMES
                note = f"{(self.rows + rows) * plan.chains:,} samples, {note}"
            progress(doing, int(now.cycles), plan.cycles, note)
        if not burning:
            trajectory.append(self.path, self._frames(kept, rows, energy), at=self.samples)
            self.moves, self.rows = moves, self.rows + rows
        self.state = now
        self.seconds += time.perf_counter() - began
        self._save(now)

    def _starts(self) -> list[tuple[int, int]]:
        """Number of chains and seed of each group."""
        chains = self.plan.chains
        groups = np.array_split(np.arange(chains), -(-chains // TOGETHER))
        return [(len(group), piece_seed(self.plan.seed, number)) for number, group in enumerate(groups)]

    def _frames(self, kept: list[Tensor], rows: int, energy: MolecularEnergy) -> Frames:
        """Positions as frames of the file, row after row."""
        x = torch.cat(kept)
        u, force = energy.energy_and_force(x)
        kT, chains = self.system.kT, self.plan.chains
        row = np.repeat(np.arange(self.rows, self.rows + rows), chains)
        return Frames(
            x.cpu().numpy(),
            (force * kT).cpu().numpy(),
            u.double().cpu().numpy() * kT,
            np.tile(np.arange(chains, dtype=np.int32), rows),
            row,
            np.asarray((row + 1) * self.plan.every, dtype=np.float64),
        )

    def _save(self, state: ChainState) -> None:
        """Write the state, completely or not at all."""
        numbers = {
            "rows": torch.tensor(self.rows),
            "accepted": torch.tensor([moves.accepted for moves in self.moves.values()]),
            "seconds": torch.tensor(self.seconds, dtype=torch.float64),
        }
        chains = {f"chains.{name}": tensor for name, tensor in state.tensors().items()}
        write_tensors(self.state_path, {**chains, **numbers}, {})

    def _load(self, device: str) -> None:
        """Read the state.

        Raises:
            OSError: if it is missing or damaged.
        """
        try:
            found, _ = read_tensors(self.state_path, note=True)
            self.rows, self.seconds = int(found.pop("rows")), float(found.pop("seconds"))
            cycles = self.samples * self.plan.every
            tried = (cycles * self.plan.flow_moves, cycles * self.plan.hmc_moves)
            accepted = found.pop("accepted").tolist()
            self.moves = dict(zip(NO_MOVES, map(Moves, tried, accepted), strict=True))
            chains = {name.removeprefix("chains."): tensor for name, tensor in found.items()}
            self.state = ChainState.of(chains, device)
        except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise OSError(
                f"the state of the chains, {self.state_path}, is missing or damaged ({error}), so they "
                "cannot be continued; the samples made so far are fine, choose another file for new ones."
            ) from None


def mover(setup: tuple[BoltzmannGenerator, MolecularEnergy, dict[str, Any]]) -> OneByOne:
    """Target of a `Team`: starts groups of chains, by number and seed, and moves them for some cycles."""
    model, energy, moves = setup
    sampler = FlowMonteCarlo(model, energy, **moves)

    def work(task: tuple[Any, int]) -> ChainState | Chains:
        group, number = task
        if isinstance(group, ChainState):
            return sampler.run(group, number, every=number)
        return sampler.start(group, number)

    return OneByOne(work)


def open_run(path: str | Path, model: str | Path, plan: ExactPlan, *, double: bool = False) -> ExactRun:
    """Start a run of a model file, or open it to be continued.

    Args:
        path: The file of the chains.
        model: The model file; chains are continued only if its content is the same.
        plan: Length and moves.
        double: Whether the model computes in double precision.
    """
    generator = BoltzmannGenerator.load(model).requires_grad_(False)
    source = {"model": Path(model).name, "fingerprint": file_fingerprint(model)}
    return ExactRun(path, generator.double() if double else generator, plan, source)
