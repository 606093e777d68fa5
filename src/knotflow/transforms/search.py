"""Prefix sums of bin widths, and the bin in which a point lies.

They come in two schedules that agree up to rounding. Eager PyTorch is fastest with one ``cumsum`` and a
binary search. A compiled graph is fastest if nothing as wide as the bins is written to memory: the bins
are cut into blocks, block sums locate the block, and only the bins of that block are loaded, so about
2 sqrt(n) numbers are touched for n bins.

Within one schedule a knot always has the same bits, wherever it is asked for. The inverse of a steep
transform relies on that: an ulp between the knot of the forward map and that of the inverse would be
multiplied by the slope.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy

import torch
from torch import Tensor


class PrefixSums(ABC):
    """Knots ``start + widths[:j].sum()`` of consecutive bins of positive widths, shape (..., n)."""

    def __init__(self, widths: Tensor, start: float) -> None:
        self.widths, self.start, self.n = widths, start, widths.shape[-1]

    @abstractmethod
    def detach(self) -> PrefixSums:
        """The same without derivatives."""

    @abstractmethod
    def at(self, j: Tensor) -> Tensor:
        """Knot number ``j`` in 0 .. n; shape of ``j``."""

    @abstractmethod
    def locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Bin ``j`` in 0 .. n-1 with ``at(j) <= x < at(j + 1)``, and ``at(j)``.

        The outer bins take what lies outside.
        """


def prefix_sums(widths: Tensor, start: float) -> PrefixSums:
    """Prefix sums in the schedule that suits how the code is run."""
    return (_Blocks if torch.compiler.is_compiling() else _Cumulative)(widths, start)


class _Cumulative(PrefixSums):
    def __init__(self, widths: Tensor, start: float) -> None:
        super().__init__(widths, start)
        self.right_knots = widths.cumsum(-1).add_(start)

    def detach(self) -> PrefixSums:
        other = copy(self)
        other.widths, other.right_knots = self.widths.detach(), self.right_knots.detach()
        return other

    def at(self, j: Tensor) -> Tensor:
        knot = self.right_knots.gather(-1, (j - 1).clamp(0, self.n - 1).unsqueeze(-1)).squeeze(-1)
        return torch.where(j > 0, knot, self.start)

    def locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        knots, points = self.right_knots.detach().contiguous(), x.detach().unsqueeze(-1)
        j = torch.searchsorted(knots, points, right=True).squeeze(-1).clamp(max=self.n - 1)
        return j, self.at(j)


class _Blocks(PrefixSums):
    def __init__(self, widths: Tensor, start: float) -> None:
        super().__init__(widths, start)
        self.size = max(1, round(math.sqrt(2 * self.n)))
        blocks = (self.n - 1) // self.size  # all full blocks that have a successor
        head = widths[..., : blocks * self.size].unflatten(-1, (blocks, self.size))
        self.sums = head.sum(-1).unbind(-1)

    def detach(self) -> PrefixSums:
        return _Blocks(self.widths.detach(), self.start)

    def at(self, j: Tensor) -> Tensor:
        knot = torch.full_like(j, self.start, dtype=self.widths.dtype)
        block = torch.zeros_like(j)
        for i, total in enumerate(self.sums):
            passed = j >= (i + 1) * self.size
            knot = knot + torch.where(passed, total, 0.0)
            block = block + passed
        first = block * self.size
        for i, width in enumerate(self._members(first)):
            knot = knot + torch.where(j > first + i, width, 0.0)
        return knot

    def locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        knot = left = torch.full_like(x, self.start)
        block = torch.zeros_like(x, dtype=torch.long)
        for total in self.sums:
            knot = knot + total
            passed = x >= knot
            left = torch.where(passed, knot, left)
            block = block + passed
        knot, first = left, block * self.size
        j = first
        for i, width in enumerate(self._members(first)[: self.size - 1]):
            knot = knot + width
            passed = x >= knot
            if self.n % self.size:
                passed = passed & (first + (i + 1) < self.n)
            left = torch.where(passed, knot, left)
            j = j + passed
        return j, left

    def _members(self, first: Tensor) -> tuple[Tensor, ...]:
        """The bins of the block that begins with bin ``first``."""
        index = first.unsqueeze(-1) + torch.arange(self.size, device=first.device)
        return self.widths.gather(-1, index.clamp(max=self.n - 1)).unbind(-1)
