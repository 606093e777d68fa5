r"""Velocity Verlet and Langevin dynamics of many replicas at once, on any potential.

An integrator is a step from one `State` to the next. A replica whose step fails stops for good where it was
before that step; its state says when and why. The other replicas do not change by a bit: the stopped one
stays in the batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from knotflow.compiled import Compiled
from knotflow.dynamics.masses import Masses
from knotflow.dynamics.potentials import Potential
from knotflow.simulation.splitting import Field, baoab, verlet

Advance = tuple[Tensor, Tensor, Tensor, Tensor]
"""Positions, velocities, forces and energies after a step."""


class Status(IntEnum):
    """Whether a replica moves, or why it stopped."""

    MOVING = 0
    NOT_FINITE = 1
    """A position, an energy or a force was not a finite number."""
    OUTSIDE = 2
    """It left the support of the density: its energy became infinite."""
    BROKEN = 3
    """A bond became too long or too short."""

    @property
    def text(self) -> str:
        """The status in words."""
        return ("moving", "not a finite number", "outside of the support", "a broken bond")[self]


@dataclass(frozen=True, eq=False)
class State:
    """Replicas at one moment; shapes begin with the number of replicas."""

    positions: Tensor
    """(replicas, atoms, 3) in nm, or (replicas, d)."""
    velocities: Tensor
    """Velocities in nm/ps."""
    force: Tensor
    """Forces at the positions, in kT/nm."""
    energy: Tensor
    """Potential energy in kT, (replicas,)."""
    status: Tensor
    """`Status` as whole numbers, (replicas,)."""
    stopped: Tensor
    """The step that failed, (replicas,); -1 while a replica moves."""
    step: int = 0
    """Number of steps done."""
    time: float = 0.0
    """Time in ps."""

    @property
    def moving(self) -> Tensor:
        """Which replicas still move, (replicas,)."""
        return self.status == Status.MOVING


class Integrator(ABC):
    """Moves replicas by steps of equal length, with one evaluation of the force a step.

    Args:
        potential: energies and forces.
        masses: the masses that move.
        dt: length of a step in ps.
        broken: maps positions to a mask of the replicas that have come apart and must stop: `Bonds.broken`.
        compiled: whether to compile a step, force included, as one graph. This is for potentials made of
            torch functions only, such as `CoordinateEnergy`. `TorchForceField` compiles itself.
    """

    def __init__(
        self,
        potential: Potential,
        masses: Masses,
        dt: float,
        *,
        broken: Callable[[Tensor], Tensor] | None = None,
        compiled: bool = False,
    ) -> None:
        if not (math.isfinite(dt) and dt > 0):
            raise ValueError(f"a step must have a positive length in ps, got {dt!r}.")
        self.potential, self.masses, self.dt, self.broken = potential, masses, dt, broken
        self._advance = Compiled(self._moved, task="the dynamics", enabled=compiled)

    def start(self, positions: Tensor, velocities: Tensor) -> State:
        """The state before the first step; replicas that cannot move are stopped from the beginning.

        Args:
            positions: (replicas, ...), where ... is the shape of ``masses``.
            velocities: of the same shape; see `Masses.thermal_velocities`.
        """
        for name, value in (("positions", positions), ("velocities", velocities)):
            if value.ndim == 0 or value.shape[1:] != self.masses.shape or len(value) != len(positions):
                shape = ", ".join(map(str, self.masses.shape))
                raise ValueError(
                    f"{name} must have shape (replicas, {shape}), with as many replicas as there are "
                    f"positions, got {tuple(value.shape)}."
                )
        x, v = positions.detach(), velocities.detach().to(positions)
        with torch.no_grad():
            u, f = self.potential.energy_and_force(x)
            reason = self._reason(x, v, u, f)
        ok = reason == Status.MOVING
        return State(x, v, torch.where(as_rows(ok, f), f, 0.0), u, reason, torch.where(ok, -1, 0))

    @torch.no_grad()
    def step(self, state: State) -> State:
        """The state one step later."""
        x, v, f, u, reason = self._advance(
            state.positions, state.velocities, state.force, state.energy, state.status, *self._extra(state)
        )
        failed = (reason != Status.MOVING) & state.moving
        return State(
            positions=x,
            velocities=v,
            force=f,
            energy=u,
            status=torch.where(failed, reason, state.status),
            stopped=torch.where(failed, state.step + 1, state.stopped),
            step=state.step + 1,
            time=state.time + self.dt,
        )

    def run(self, state: State, steps: int) -> State:
        """The state after this many steps; once no replica moves, only the time advances."""
        for done in range(steps):
            if done % 100 == 0 and not bool(state.moving.any()):
                left = steps - done
                return replace(state, step=state.step + left, time=state.time + left * self.dt)
            state = self.step(state)
        return state

    @abstractmethod
    def _extra(self, state: State) -> tuple[Tensor, ...]:
        """Tensors that a step needs in addition to the state."""

    @abstractmethod
    def _splitting(self, field: Field, x: Tensor, v: Tensor, f: Tensor, *extra: Tensor) -> Advance:
        """One step of all replicas."""

    def _moved(
        self, x: Tensor, v: Tensor, f: Tensor, u: Tensor, status: Tensor, *extra: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """A step of the replicas that move and stay intact, and a `Status` that says why others do not."""
        moving = status == int(Status.MOVING)  # to Dynamo, a Status is not a number

        def field(there: Tensor) -> tuple[Tensor, Tensor]:
            # Replicas that stopped, or are not finite, are evaluated where they were: a potential sees only
            # finite numbers, and always the same number of rows.
            return self.potential.energy_and_force(torch.where(as_rows(moving & _finite(there), x), there, x))

        new_x, new_v, new_f, new_u = self._splitting(field, x, v, f, *extra)
        reason = self._reason(new_x, new_v, new_u, new_f)
        ok = moving & (reason == int(Status.MOVING))
        rows = as_rows(ok, x)
        return (
            torch.where(rows, new_x, x),
            torch.where(rows, new_v, v),
            torch.where(rows, new_f, f),
            torch.where(ok, new_u, u),
            reason,
        )

    def _reason(self, x: Tensor, v: Tensor, u: Tensor, f: Tensor) -> Tensor:
        """Why replicas cannot move on from here, as a `Status`."""
        reason = torch.full_like(u, int(Status.MOVING), dtype=torch.int64)
        if self.broken is not None:
            reason = torch.where(self.broken(x), int(Status.BROKEN), reason)
        finite = u.isfinite() & _finite(f) & _finite(v) & _finite(x)
        reason = torch.where(finite, reason, int(Status.NOT_FINITE))
        # Checked last: outside there is no force, so velocities are not finite either.
        return torch.where(_finite(x) & (u == math.inf), int(Status.OUTSIDE), reason)

    def _half_kick(self, like: Tensor) -> Tensor:
        return (0.5 * self.dt * self.masses.kT / self.masses.values).to(like)


class Verlet(Integrator):
    r"""Velocity Verlet (`knotflow.simulation.splitting.verlet`): Newton's equations.

    On an energy with two continuous derivatives the total energy stays within $O(dt^2)$ of its first value
    for very long times. Where the force jumps, every crossing adds a first-order error.
    """

    def _extra(self, state: State) -> tuple[Tensor, ...]:
        return (self._half_kick(state.positions),)

    def _splitting(self, field: Field, x: Tensor, v: Tensor, f: Tensor, *extra: Tensor) -> Advance:
        (kick,) = extra
        x, v, f, u = verlet(field, x, v, f, dt=self.dt, kick=kick)
        return x, v, f, u


class Langevin(Integrator):
    r"""Langevin dynamics at the temperature of the masses (`knotflow.simulation.splitting.baoab`).

    The random numbers of a step depend only on the seed and the number of the step, so a run can be continued
    from a state with the same bits. Free masses get no momentum from the noise, and keep none. Arguments not
    listed here are those of `Integrator`.

    Args:
        friction: in 1/ps.
        seed: seed of the random numbers.
    """

    def __init__(
        self,
        potential: Potential,
        masses: Masses,
        dt: float,
        friction: float,
        *,
        seed: int = 0,
        broken: Callable[[Tensor], Tensor] | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__(potential, masses, dt, broken=broken, compiled=compiled)
        if not (math.isfinite(friction) and friction > 0):
            raise ValueError(f"the friction must be a positive number per ps, got {friction!r}; use Verlet.")
        self.friction, self.seed = friction, seed

    def _extra(self, state: State) -> tuple[Tensor, ...]:
        x = state.positions
        seed = int(np.random.SeedSequence([self.seed, state.step]).generate_state(1, np.uint64)[0])
        generator = torch.Generator(x.device).manual_seed(seed)
        spread = math.sqrt(-math.expm1(-2 * self.friction * self.dt) * self.masses.kT)
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return self._half_kick(x), spread / self.masses.values.sqrt().to(x) * noise

    def _splitting(self, field: Field, x: Tensor, v: Tensor, f: Tensor, *extra: Tensor) -> Advance:
        kick, noise = extra

        def thermostat(v: Tensor) -> Tensor:
            return self.masses.at_rest(math.exp(-self.friction * self.dt) * v + noise)

        x, v, f, u, _ = baoab(field, x, v, f, thermostat, dt=self.dt, kick=kick)
        return x, v, f, u


def _finite(x: Tensor) -> Tensor:
    return x.isfinite().flatten(1).all(1)


def as_rows(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of replicas in a shape that broadcasts against ``like``, whose first axis is the replicas."""
    return mask.reshape(-1, *[1] * (like.ndim - 1))
