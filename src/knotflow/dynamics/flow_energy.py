"""The energy of a flow, to be used like a force field."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from knotflow.energies.energy import MolecularEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import like
from knotflow.transforms.domains import Limits

_UNITS: Final = {2: "nm", 3: "rad", 4: "rad"}
"""Unit of a coordinate, by its number of atoms."""


class FlowEnergy(MolecularEnergy):
    r"""The reduced energy $u = -\log p$ of a Boltzmann generator, usable wherever a `MolecularEnergy` is.

    Bonds, angles or torsions on an `Interval` must stay on it. Outside the density is zero: such a frame, or
    one that is not finite, has the energy $+\infty$ and the force NaN. Other frames of a batch are not
    affected. `why_outside` names the coordinate.

    Numbers are computed in the dtype of the model and returned in that of ``x``; use ``model.double()`` for
    more digits.

    Args:
        model: The generator. It is not copied.
    """

    def __init__(self, model: BoltzmannGenerator) -> None:
        self.model = model
        self.n_atoms, self.temperature = model.n_atoms, model.temperature
        self._known_limits: dict[tuple[torch.dtype, torch.device], Limits] = {}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the model computes."""
        return like(self.model).dtype

    def energy(self, x: Tensor) -> Tensor:
        own, inside = self._enter(x)
        u = own.new_full(inside.shape, math.inf)
        u[inside] = self.model.energy(own[inside])
        return u.to(x).reshape(x.shape[:-2])

    @torch.no_grad()
    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        own = self._own(x)
        limits = self._limits(own)
        with torch.enable_grad():
            own = own.detach().requires_grad_()
            q, ladj = self.model.internal(own)
        inside = limits.hold(q) & ladj.isfinite()
        # Frames outside are replaced by the middle of the domains: the batch keeps its shape, and so the
        # other frames their bits.
        points = torch.where(inside[:, None], q, limits.middle)
        log_prob, score = self.model.flow.log_prob_and_score(points)
        (force,) = torch.autograd.grad((q, ladj), own, (score, torch.ones_like(ladj)))
        u = torch.where(inside, -(log_prob + ladj), math.inf)
        force = torch.where(inside[:, None, None], force, math.nan)
        return u.to(x).reshape(x.shape[:-2]), force.to(x).reshape(x.shape)

    def inside(self, x: Tensor) -> Tensor:
        """Which of the frames ``(..., atoms, 3)`` have a density."""
        return self._enter(x)[1].reshape(x.shape[:-2])

    def why_outside(self, x: Tensor) -> str:
        """A sentence that says why one frame ``(atoms, 3)`` has no density; empty if it has one."""
        own, inside = self._enter(x[None])
        if bool(inside):
            return ""
        if not bool(own.isfinite().all()):
            return "positions are not finite."
        q = self.model.internal(own)[0][0]
        limits = self._limits(q)
        place = int(torch.nonzero(~limits.within(q))[0])
        domain, names = self.model.flow.domains[place], self.model.coordinates.names
        unit = _UNITS[len(self.model.coordinates.atoms[place])]
        return (
            f"{names[place]} is {float(q[place]):.4g} {unit}, but the flow has a density only from "
            f"{domain.low:.4g} to {domain.high:.4g}."
        )

    def _own(self, x: Tensor) -> Tensor:
        """All frames as (n, atoms, 3) in the model's dtype."""
        self.check_positions(x)
        return x.reshape(-1, self.n_atoms, 3).to(self.dtype)

    def _enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """All frames as (n, atoms, 3) in the model's dtype, and whether each is inside."""
        own = self._own(x)
        with torch.no_grad():
            q, ladj = self.model.internal(own)
            return own, self._limits(own).hold(q) & ladj.isfinite()

    def _limits(self, like: Tensor) -> Limits:
        key = like.dtype, like.device
        if key not in self._known_limits:
            self._known_limits[key] = Limits.of(self.model.flow.domains, like, rounded=True)
        return self._known_limits[key]
