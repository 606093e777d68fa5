r"""Potentials for integrators: anything that gives energies and forces of many points at once.

Force fields (`knotflow.energies.OpenMMEnergy`, `knotflow.energies.TorchForceField`) and
`knotflow.dynamics.FlowEnergy` are potentials. `CoordinateEnergy` makes one of a density of coordinates.

Outside of its domains a density is zero. There the energy is $+\infty$ and the force is NaN, for these points
only. Integrators take an infinite energy as the sign that a replica has left.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from knotflow.transforms import Domain
from knotflow.transforms.domains import Limits


class Potential(Protocol):
    """Reduced energies and forces of points, one row for each replica."""

    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (replicas,) in kT, +∞ outside of the support; forces -du/dx of the shape of ``x``."""


class Density(Protocol):
    """A density on domains: a `knotflow.energies.Energy`, or a `knotflow.Flow` without context."""

    domains: tuple[Domain, ...]

    def energy(self, x: Tensor) -> Tensor:
        r"""$u = -\log p$ up to a constant, shape (..., d) to (...)."""


class CoordinateEnergy:
    r"""A density of coordinates as a potential: rings, mixtures, a flow over a few coordinates.

    On circles any number is allowed. Points outside of an interval have $u = +\infty$, even if the formula of
    the energy continues there.

    Args:
        density: energies, made of torch functions, and domains.
    """

    def __init__(self, density: Density) -> None:
        self.density = density

    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (...) and forces (..., d) of points (..., d)."""
        limits = Limits.of(self.density.domains, x)
        inside = limits.hold(x)

        def total(x: Tensor) -> tuple[Tensor, Tensor]:
            # Points outside are evaluated in the middle, where everything is finite.
            u = self.density.energy(torch.where(inside[..., None], x, limits.middle))
            return u.sum(), u

        gradient, u = torch.func.grad(total, has_aux=True)(x)
        return torch.where(inside, u, math.inf), torch.where(inside[..., None], -gradient, math.nan)
