"""Bonds of a molecule, and when they count as broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from knotflow.molecules.system import MolecularSystem


@dataclass(frozen=True, eq=False)
class Bonds:
    """Bonds of a molecule, their lengths, and the strain at which they count as broken.

    Args:
        pairs: the two atoms of each bond.
        lengths: equilibrium lengths in nm, (bonds,).
        strain: a factor above 1. A bond is broken if it is longer than its length times this factor, or
            shorter than its length divided by it. With infinity, no bond breaks.
    """

    pairs: Sequence[tuple[int, int]]
    lengths: Tensor
    strain: float = 1.5

    @classmethod
    def of(cls, system: MolecularSystem, strain: float = 1.5) -> Self:
        """All chemical bonds, with their lengths in the energy-minimised structure."""
        i, j = torch.tensor(system.bonds).T
        x = torch.as_tensor(system.positions)
        return cls(tuple(system.bonds), (x[i] - x[j]).square().sum(-1).sqrt(), strain)

    def largest_strain(self, x: Tensor) -> Tensor:
        """Largest factor by which a bond is too long or too short: positions (..., atoms, 3) to (...)."""
        i, j = torch.tensor(self.pairs, device=x.device).T
        lengths = (x[..., i, :] - x[..., j, :]).square().sum(-1).sqrt()
        ratio = lengths / self.lengths.to(x)
        return torch.maximum(ratio, 1 / ratio).amax(-1)

    def broken(self, x: Tensor) -> Tensor:
        """Which molecules have a broken bond: positions (..., atoms, 3) to (...)."""
        return self.largest_strain(x) > self.strain
