"""Bonds that hold a molecule together, and when they count as broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from knotflow.molecules.system import MolecularSystem


@dataclass(frozen=True, eq=False)
class Bonds:
    r"""Bonds of a molecule, and how far from their lengths they may get before they count as broken.

    Args:
        pairs: the two atoms of each bond.
        lengths: in nm, (bonds,).
        strain: a bond longer than so many times its length, or shorter than its length divided by that, is
            broken; a factor above 1, infinity: never.
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
        """The largest factor between a bond and its length, for positions (..., atoms, 3): shape (...)."""
        i, j = torch.tensor(self.pairs, device=x.device).T
        lengths = (x[..., i, :] - x[..., j, :]).square().sum(-1).sqrt()
        ratio = lengths / self.lengths.to(x)
        return torch.maximum(ratio, 1 / ratio).amax(-1)

    def broken(self, x: Tensor) -> Tensor:
        """Where a bond is broken, shape (...)."""
        return self.largest_strain(x) > self.strain
