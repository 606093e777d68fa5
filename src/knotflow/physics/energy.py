"""What every target density has in common: a reduced energy and the force that goes with it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from knotflow.transforms import Domain


class Energy(ABC):
    r"""A density $p(x) \propto e^{-u(x)}$ on a product of one-dimensional domains.

    The reduced energy $u = U / kT$ has no unit, so forces are in $kT$ per unit of ``x``.
    Results follow the dtype and the device of ``x``.

    **To add an energy**, derive from this class, set `domains` and write `energy` with torch
    functions that act on the last axis; the force follows.
    """

    domains: tuple[Domain, ...]
    """One per coordinate: where the density lives."""

    @abstractmethod
    def energy(self, x: Tensor) -> Tensor:
        """Reduced energy $u(x)$: shape ``(..., d)`` to ``(...)``."""

    def force(self, x: Tensor) -> Tensor:
        r"""Reduced force $-\partial u / \partial x$, which is also the score $\partial \log p / \partial x$.

        Shape ``(..., d)`` to ``(..., d)``. The result can be differentiated again, and the call works
        under ``torch.vmap`` and inside ``torch.compile``.
        """
        # Points do not interact, so the gradient of the summed energy holds the force on each of them.
        force: Tensor = torch.func.grad(lambda x: -self.energy(x).sum())(x)
        return force
