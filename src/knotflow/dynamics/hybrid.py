"""Proposals of hybrid Monte Carlo: a short piece of dynamics from fresh velocities (Duane et al. 1987)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from knotflow.dynamics.integrators import State, Verlet
from knotflow.dynamics.masses import Masses
from knotflow.energies.energy import MolecularEnergy

JITTER: Final = 0.2
"""Relative random change of the time step of a trajectory, so that none matches a vibration's period."""


@dataclass(frozen=True, eq=False)
class HybridMove:
    r"""A trajectory by velocity Verlet on $H = u + \sum m v^2/2kT$ from thermal velocities.

    Accepted with probability $\min(1, e^{-\Delta H})$, it is in detailed balance with $e^{-u}$, although the
    centre of mass does not move. Velocities are drawn given that their total momentum is zero. Forces sum to
    zero, since no translation changes $u$. So Verlet keeps the momentum at zero; among such velocities it is
    reversible and preserves volume, and $e^{-H}$ integrated over them is $e^{-u}$ up to a factor. Nothing is
    lost by a fixed centre, because nothing depends on it.

    Args:
        energy: The energy to sample.
        masses: The atoms, at the temperature of the energy.
        steps: Time steps of a trajectory.
        time_step: Length of a time step in ps.
    """

    energy: MolecularEnergy
    masses: Masses
    steps: int
    time_step: float

    def propose(self, x: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        r"""Ends of trajectories that begin at ``x``, (chains, atoms, 3).

        Returns:
            Positions, energies, and $-\Delta H$, the latter two (chains,) in float64. The last is $-\infty$
            for trajectories that blew up and stopped on the way; their reverse would stop as well.
        """
        stretch = 1 + JITTER * (2 * float(torch.rand((), generator=random, device=x.device)) - 1)
        verlet = Verlet(self.energy, self.masses, stretch * self.time_step)
        v = self.masses.thermal_velocities(len(x), generator=random, dtype=x.dtype)
        start = verlet.start(x, v)
        end = verlet.run(start, self.steps)
        gain = torch.where(end.moving, self._total(start) - self._total(end), -math.inf)
        return end.positions, end.energy.double(), gain

    def _total(self, state: State) -> Tensor:
        """$H$ in kT, (chains,) in float64."""
        return state.energy.double() + self.masses.kinetic_energy(state.velocities.double())
