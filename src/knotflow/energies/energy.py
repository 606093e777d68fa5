"""Base classes of all target densities: a reduced energy and its force.

`Energy` is a function of coordinates with domains, `MolecularEnergy` of the positions of atoms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Self, SupportsIndex

import torch
from torch import Tensor

from knotflow.transforms import Domain

CUT_OFF: Final = 1e3
"""In kT: energies above this value may be cut."""


def cut(u: Tensor, cut_off: float = CUT_OFF) -> Tensor:
    r"""$u' = c + \log(1 + u - c)$ above the cut-off $c$, $u$ below: continuous, with a continuous slope.

    Atoms on top of each other then do not ruin an average. The KLD in Table 1 of Hong and Chun (AAAI 2023)
    is computed this way.
    """
    return torch.where(u > cut_off, cut_off + torch.log1p((u - cut_off).clamp(min=0)), u)


class Energy(ABC):
    r"""A density $p(x) \propto e^{-u(x)}$ on a product of one-dimensional domains.

    The reduced energy $u = U / kT$ has no unit, so forces are in $kT$ per unit of ``x``.
    Results follow the dtype and the device of ``x``.

    **To add an energy**, derive from this class, set `domains` and write `energy` with torch
    functions that act on the last axis; the force follows.
    """

    domains: tuple[Domain, ...]
    """Domain of each coordinate."""

    @abstractmethod
    def energy(self, x: Tensor) -> Tensor:
        """Reduced energy $u(x)$: shape ``(..., d)`` to ``(...)``."""

    def force(self, x: Tensor) -> Tensor:
        r"""Reduced force $-\partial u / \partial x$, which is also the score $\partial \log p / \partial x$.

        Shape ``(..., d)`` to ``(..., d)``. The result can be differentiated again, and the call works
        under ``torch.vmap`` and inside ``torch.compile``.
        """
        # Points do not interact, so the gradient of the summed energy contains the force on each of them.
        force: Tensor = torch.func.grad(lambda x: -self.energy(x).sum())(x)
        return force


class MolecularEnergy(ABC):
    r"""The reduced energy $u = U / kT$ of atoms at positions ``x`` of shape ``(..., atoms, 3)`` in nm.

    Forces are in kT/nm. Results follow the dtype and the device of ``x``. The energy can be differentiated by
    autograd, with the gradient $-f$.
    """

    n_atoms: int
    temperature: float
    """In K; sets $kT$."""
    recipe: Callable[[], MolecularEnergy] | None = None
    """Makes it again in another process; None: it is sent there as it is."""
    failure: str | None = None
    """Which frame has no energy, and why: the last on which a program failed."""

    @abstractmethod
    def energy(self, x: Tensor) -> Tensor:
        """Reduced energy: shape ``(..., atoms, 3)`` to ``(...)``."""

    @abstractmethod
    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Reduced energy, shape ``(...)``, and force, shape ``(..., atoms, 3)``; no graph is recorded."""

    def force(self, x: Tensor) -> Tensor:
        """Reduced force in kT/nm, shape of ``x``; no graph is recorded."""
        return self.energy_and_force(x)[1]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return super().__reduce_ex__(protocol) if self.recipe is None else (self.recipe, ())

    def expect(self, evaluations: float) -> None:  # noqa: B027  (most have nothing to prepare)
        """Prepare for so many evaluations: what pays off for many, such as compiling, may be done now."""

    def close(self) -> None:  # noqa: B027  (most have nothing to free)
        """Free what the energy holds, such as worker processes; it can be used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_positions(self, x: Tensor) -> None:
        """Raise a ValueError if the shape or the dtype cannot be that of positions of these atoms."""
        if not torch.is_floating_point(x) or x.ndim < 2 or x.shape[-2:] != (self.n_atoms, 3):
            raise ValueError(
                f"positions must be a floating-point tensor of shape (..., {self.n_atoms}, 3) in nm, got "
                f"{x.dtype} of shape {tuple(x.shape)}; give all atoms in the order of the topology."
            )
