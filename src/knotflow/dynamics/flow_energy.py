"""A flow in the place of a force field."""

from __future__ import annotations

import math
from typing import Final, Literal

import torch
from torch import Tensor

from knotflow.compiled import Compiled
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.layerwise import Layerwise
from knotflow.physics.energy import MolecularEnergy
from knotflow.transforms import Interval
from knotflow.transforms.domains import rounding

_UNITS: Final = {2: "nm", 3: "rad", 4: "rad"}
"""Of a coordinate, by the number of its atoms."""


class FlowEnergy(MolecularEnergy):
    r"""The reduced energy $u = -\log p$ of a Boltzmann generator, for all that takes a `MolecularEnergy`.

    Bonds, angles or torsions on an `Interval` must stay on it. Outside the density is zero: the energy of
    such a frame, or of one that is not finite, is $+\infty$ and its force NaN. Other frames of a batch are
    not touched by it. `why_outside` says which coordinate it was.

    Numbers are computed in the dtype of the model and given in that of ``x``: take ``model.double()`` where
    digits count.

    Args:
        model: The generator. It is used as it is, not copied.
        compiled: Whether `energy_and_force` runs compiled layers (`knotflow.flows.layerwise.Layerwise`): tens
            of seconds at the first call. Or ``"whole"``, one compiled graph: minutes at the first call for
            each number of frames, which pays for 100,000 calls.
    """

    def __init__(self, model: BoltzmannGenerator, *, compiled: bool | Literal["whole"] = False) -> None:
        self.model = model
        self.n_atoms, self.temperature = model.n_atoms, model.temperature
        self._layers = Layerwise(task="the dynamics") if compiled is True else None
        self._whole = Compiled(model.log_prob_and_force, task="the dynamics", enabled=compiled == "whole")

    @property
    def dtype(self) -> torch.dtype:
        """In which the model computes."""
        return next(self.model.parameters(), torch.empty(0)).dtype

    def energy(self, x: Tensor) -> Tensor:
        own, inside = self._enter(x)
        u = own.new_full(inside.shape, math.inf)
        u[inside] = self.model.energy(own[inside])
        return u.to(x).reshape(x.shape[:-2])

    @torch.no_grad()
    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        own, inside = self._enter(x)
        u, force = own.new_full(inside.shape, math.inf), torch.full_like(own, math.nan)
        if bool(inside.any()):
            # One of those inside stands in for each outside: the others are computed in a batch of the same
            # shape as ever, and so to the same bits.
            rows = inside[:, None, None]
            log_prob, found = self._log_prob_and_force(torch.where(rows, own, own[inside.int().argmax()]))
            u, force = torch.where(inside, -log_prob, u), torch.where(rows, found, force)
        return u.to(x).reshape(x.shape[:-2]), force.to(x).reshape(x.shape)

    def inside(self, x: Tensor) -> Tensor:
        """Whether the flow has a density at each of the frames ``(..., atoms, 3)``."""
        return self._enter(x)[1].reshape(x.shape[:-2])

    def why_outside(self, x: Tensor) -> str:
        """What is wrong with one frame ``(atoms, 3)`` outside, as a sentence; empty for one inside."""
        own, inside = self._enter(x[None])
        if bool(inside):
            return ""
        if not bool(own.isfinite().all()):
            return "positions are not finite."
        q = self.model.internal(own)[0][0]
        low, high = self._limits(q)
        place = int(torch.nonzero(~((q >= low) & (q <= high)))[0])
        domain, names = self.model.flow.domains[place], self.model.coordinates.names
        unit = _UNITS[len(self.model.coordinates.atoms[place])]
        return (
            f"{names[place]} is {float(q[place]):.4g} {unit}, and the flow has a density from "
            f"{domain.low:.4g} to {domain.high:.4g} only."
        )

    def _log_prob_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of frames (n, atoms, 3) inside; no graph is recorded."""
        if self._layers is None:
            log_prob, force = self._whole(x)
            return log_prob.detach(), force.detach()
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            q, ladj = self.model.internal(x)
            log_prob, score = self._layers.log_prob_and_score(self.model.flow, q)
            (force,) = torch.autograd.grad((q, ladj), x, (score, torch.ones_like(ladj)))
        return log_prob + ladj.detach(), force

    def _enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """All frames as (n, atoms, 3) in the model's dtype, and whether each is inside."""
        self.check_positions(x)
        own = x.reshape(-1, self.n_atoms, 3).to(self.dtype)
        with torch.no_grad():
            q, ladj = self.model.internal(own)
            low, high = self._limits(q)
            return own, ((q >= low) & (q <= high)).all(-1) & ladj.isfinite()

    def _limits(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Between which coordinates lie, as far as they are bounded; the flow forgives rounding, too."""
        ends = [
            (d.low - rounding(d, q.dtype), d.high + rounding(d, q.dtype))
            if isinstance(d, Interval)
            else (-math.inf, math.inf)
            for d in self.model.flow.domains
        ]
        low, high = q.new_tensor(ends).unbind(-1)
        return low, high
