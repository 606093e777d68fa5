r"""Exact samples of an energy with the help of a flow: many Metropolis chains at once.

There are two kinds of moves. Each leaves $\pi \propto e^{-u}$ invariant, however good or bad the flow is:

**Flow.** The flow proposes a new molecule $x' \sim p$, independent of the chain's state $x$. It is accepted
with probability $\min(1, W(x')/W(x))$, $W = e^{-u}/p$ (independence Metropolis; Tierney 1994). One such move
can cross any barrier. But a state that the flow hardly ever proposes has a large $W$ and holds its chain for
long.

**Hybrid Monte Carlo.** A short piece of dynamics on $u$ itself, from fresh velocities (`HybridMove`). It
crosses no barrier, but moves every state.

A flow is good globally and rough locally; dynamics is the opposite. So cycles of both are better than either
alone. Both moves treat all poses of a molecule alike, so the chains sample its shape, as the generator does.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from knotflow.dynamics.chains import NO_MOVES, Chains, ChainState, Moves, accepted_shares
from knotflow.dynamics.flow_energy import FlowEnergy
from knotflow.dynamics.hybrid import HybridMove
from knotflow.dynamics.integrators import as_rows
from knotflow.dynamics.masses import Masses
from knotflow.energies.energy import Energy, MolecularEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import Flow, like
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress
from knotflow.transforms import Domain, Line
from knotflow.transforms.base import check_count

PATIENCE: Final = 100
"""Rounds of proposals in which every chain must find a state to start from."""


class FlowMonteCarlo:
    r"""Metropolis chains on an energy, with proposals by a flow.

    A cycle is ``flow_moves`` proposals of the flow, then ``hmc_moves`` trajectories of hybrid Monte Carlo;
    all chains make the same move at the same time. Averages over the chains are those of $e^{-u}$, up to
    rounding. A float32 model computes its density to about $10^{-4}$; if that is not enough, give
    ``model.double()``. The energy may have another temperature than the model.

    Molecules with a stereocentre of wrong handedness are not part of the target: moves to them are refused.

    Args:
        model: A Boltzmann generator; or a flow, for an `Energy` on the same domains, without dynamics.
        energy: The energy to sample.
        flow_moves: Flow proposals in a cycle.
        hmc_moves: Trajectories in a cycle.
        md_steps: Time steps of a trajectory.
        time_step: Length of a time step in ps. About three quarters of the trajectories should be accepted.
        masses: Masses of the atoms in amu, shape (atoms,); by default those of the molecule. Any positive
            ones give the same averages.

    Raises:
        ValueError: if model and energy do not fit together, or a number is out of range.
    """

    def __init__(
        self,
        model: BoltzmannGenerator | Flow,
        energy: MolecularEnergy | Energy,
        *,
        flow_moves: int = 1,
        hmc_moves: int = 0,
        md_steps: int = 20,
        time_step: float = 0.0005,
        masses: ArrayLike | None = None,
    ) -> None:
        check_count("flow_moves", flow_moves, 0)
        check_count("hmc_moves", hmc_moves, 0)
        check_count("flow_moves + hmc_moves", flow_moves + hmc_moves, 1)
        check_count("md_steps", md_steps, 1)
        if not (math.isfinite(time_step) and time_step > 0):
            raise ValueError(f"time_step must be a positive number of ps, got {time_step!r}.")
        _check_pair(model, energy)
        self.model, self.energy = model, energy
        self.flow_moves, self.hmc_moves = flow_moves, hmc_moves
        if hmc_moves:
            self._hybrid = _hybrid(model, energy, masses, md_steps, time_step)

    @property
    def evaluations(self) -> int:
        """Energy evaluations in a cycle of one chain; a trajectory needs one a step and one at its start."""
        return self.flow_moves + (self.hmc_moves * (self._hybrid.steps + 1) if self.hmc_moves else 0)

    def start(self, chains: int | Tensor, seed: int = 0) -> ChainState:
        """Make the first states: samples of the flow, or positions of your own.

        Chains have to forget where they started: discard the first part of what they give.

        Args:
            chains: Number of chains, or a state for each: (chains, atoms, 3) or (chains, d).
            seed: Seed of the random numbers, also of all cycles that follow.

        Raises:
            ValueError: if states have no finite energy or the wrong handedness, or the flow finds no others.
        """
        check_count("seed", seed, 0)
        own = like(self.model)
        random = torch.Generator(own.device).manual_seed(seed)
        if isinstance(chains, Tensor):
            x, u, log_prob = self._start_at(chains.to(own))
        else:
            check_count("chains", chains, 1)
            x, u, log_prob = self._draw_start(chains, random)
        return ChainState(x, u, log_prob, random.get_state(), torch.tensor(0))

    @torch.no_grad()
    def run(
        self, state: ChainState, cycles: int, *, every: int = 1, progress: Progress | None = None
    ) -> Chains:
        """Continue from a state. Two runs in succession equal one long run, bit for bit.

        Args:
            state: From `start`, or ``state`` of an earlier run.
            cycles: Number of cycles, a multiple of ``every``.
            every: Cycles from one kept state to the next.
            progress: Called with the number of cycles done, after each.
        """
        check_count("every", every, 1)
        check_count("cycles", cycles, 1)
        if cycles % every:
            raise ValueError(f"cycles must be a multiple of every, got {cycles} and {every}.")
        random = torch.Generator(state.x.device)
        random.set_state(state.random)
        x, u, log_prob = state.x, state.energy, state.log_prob
        moves, kept = dict(NO_MOVES), []
        for cycle in range(1, cycles + 1):
            for _ in range(self.flow_moves):
                x, u, log_prob, accept = self._flow_move(x, u, log_prob, random)
                moves["flow"] += Moves(len(x), int(accept.sum()))
            moved = torch.zeros_like(u, dtype=torch.bool)
            for _ in range(self.hmc_moves):
                x, u, accept = self._hmc_move(x, u, random)
                moves["hmc"] += Moves(len(x), int(accept.sum()))
                moved = moved | accept
            if bool(moved.any()):
                log_prob = torch.where(moved, self._log_prob(x), log_prob)
            if cycle % every == 0:
                kept.append((x, u, log_prob))
            if progress is not None:
                progress("sampling", cycle, cycles, accepted_shares(moves))
        positions, energy, density = (torch.stack(part) for part in zip(*kept, strict=True))
        end = ChainState(x, u, log_prob, random.get_state(), state.cycles + cycles)
        return Chains(positions, energy, density, moves, every, end)

    def _flow_move(
        self, x: Tensor, u: Tensor, log_prob: Tensor, random: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        new_x, new_u, new_log_prob, allowed = self._propose(len(x), random)
        # A state outside the flow's support has an infinite weight: only dynamics can move it.
        gain = (u + log_prob) - (new_u + new_log_prob)
        accept = allowed & (_log_uniform(u, random) < gain)
        return (
            torch.where(as_rows(accept, x), new_x, x),
            torch.where(accept, new_u, u),
            torch.where(accept, new_log_prob, log_prob),
            accept,
        )

    def _hmc_move(self, x: Tensor, u: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        new_x, new_u, gain = self._hybrid.propose(x, random)
        accept = self._right_handed(new_x) & (_log_uniform(u, random) < gain)
        return torch.where(as_rows(accept, x), new_x, x), torch.where(accept, new_u, u), accept

    @torch.no_grad()
    def _propose(self, n: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Samples of the flow, their energies and log-densities, and which of them the target contains."""
        if isinstance(self.model, BoltzmannGenerator):
            q, log_q = self.model.flow.sample_and_log_prob(n, generator=random)
            x, ladj = self.model.coordinates.inverse(q)
            log_prob = log_q - ladj
            # A stiff torsion beyond half a turn has the same x as one within, and log_prob(x) is of that one.
            allowed = self._right_handed(x) & (self.model.unwound(q) == q).all(-1)
        else:
            x, log_prob = self.model.sample_and_log_prob(n, generator=random)
            allowed = torch.ones_like(log_prob, dtype=torch.bool)
        u, log_prob = self._energy(x), log_prob.double()
        return x, u, log_prob, allowed & u.isfinite() & log_prob.isfinite()

    def _draw_start(self, chains: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        found, ready = [], 0
        for _ in range(PATIENCE):
            *parts, allowed = self._propose(chains, random)
            found.append([part[allowed] for part in parts])
            ready += int(allowed.sum())
            if ready >= chains:
                x, u, log_prob = (torch.cat(part)[:chains] for part in zip(*found, strict=True))
                return x, u, log_prob
        raise ValueError(
            f"of {PATIENCE * chains:,} samples of the flow only {ready:,} have the right handedness and a "
            f"finite energy, too few for {chains} chains; `knotflow sample` tells how many are mirror "
            "images. If most are, so were the data of the training; if not, train the model better, or give "
            "positions to start from."
        )

    @torch.no_grad()
    def _start_at(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (self.model.n_atoms, 3) if isinstance(self.model, BoltzmannGenerator) else (self.model.dim,)
        if x.ndim == 0 or len(x) == 0 or x.shape[1:] != shape:
            expected = ", ".join(map(str, shape))
            raise ValueError(
                f"states to start from must have shape (chains, {expected}), got {tuple(x.shape)}."
            )
        u = self._energy(x)
        if not bool((u.isfinite() & self._right_handed(x)).all()):
            raise ValueError(
                "every chain must start with a finite energy and the right handedness; remove the others."
            )
        return x, u, self._log_prob(x)

    def _energy(self, x: Tensor) -> Tensor:
        if isinstance(self.energy, MolecularEnergy):
            # The forces are not needed here, but this is the fast way: compiled, or on all cores.
            return self.energy.energy_and_force(x)[0].double()
        return self.energy.energy(x).double()

    def _log_prob(self, x: Tensor) -> Tensor:
        if isinstance(self.model, BoltzmannGenerator):
            return -FlowEnergy(self.model).energy(x).double()
        return self.model.log_prob(x).double()

    def _right_handed(self, x: Tensor) -> Tensor:
        if isinstance(self.model, BoltzmannGenerator):
            return self.model.chirality.matches(x)
        return torch.ones(len(x), dtype=torch.bool, device=x.device)


def _hybrid(
    model: BoltzmannGenerator | Flow,
    energy: MolecularEnergy | Energy,
    masses: ArrayLike | None,
    steps: int,
    time_step: float,
) -> HybridMove:
    if not (isinstance(model, BoltzmannGenerator) and isinstance(energy, MolecularEnergy)):
        raise ValueError("hmc_moves need a Boltzmann generator and the energy of a molecule; set them to 0.")
    if masses is None:
        masses = MolecularSystem.parse(model.molecule).masses
    atoms = Masses.molecule(masses, energy.temperature)
    if atoms.shape != (model.n_atoms, 3):
        raise ValueError(f"masses must be one for each of {model.n_atoms} atoms, got {atoms.shape[0]}.")
    return HybridMove(energy, atoms, steps, time_step)


def _log_uniform(u: Tensor, random: torch.Generator) -> Tensor:
    return torch.rand(u.shape, generator=random, dtype=u.dtype, device=u.device).log()


def _check_pair(model: BoltzmannGenerator | Flow, energy: MolecularEnergy | Energy) -> None:
    if isinstance(model, BoltzmannGenerator) and isinstance(energy, MolecularEnergy):
        if model.n_atoms != energy.n_atoms:
            raise ValueError(
                f"the model is for a molecule of {model.n_atoms} atoms, the energy for one of "
                f"{energy.n_atoms}; they must be the same molecule."
            )
    elif isinstance(model, Flow) and isinstance(energy, Energy):
        if [_place(d) for d in model.domains] != [_place(d) for d in energy.domains]:
            raise ValueError(
                f"flow and energy must live on the same domains, got {model.domains} and {energy.domains}."
            )
    else:
        raise ValueError(
            "expected a BoltzmannGenerator with a MolecularEnergy, or a Flow with an Energy, got "
            f"{type(model).__name__} with {type(energy).__name__}."
        )


def _place(domain: Domain) -> Domain | type[Line]:
    """The points of a domain: the limits of a line do not bound it."""
    return Line if isinstance(domain, Line) else domain
