"""Knots as prefix sums of bin widths, and the search for the bin of a point."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor


class PrefixSums:
    """Knots ``start + widths[:j].sum()`` of consecutive bins of positive widths, shape (..., n).

    A knot has the same bits wherever it is used. The inverse of a steep transform relies on that: a
    difference of one ulp between the knots of forward map and inverse would be multiplied by the slope.
    """

    def __init__(self, widths: Tensor, start: float) -> None:
        self.widths, self.start, self.n = widths, start, widths.shape[-1]
        self.right_knots = widths.cumsum(-1).add_(start)

    def detach(self) -> PrefixSums:
        """The same knots without derivatives."""
        other = copy(self)
        other.widths, other.right_knots = self.widths.detach(), self.right_knots.detach()
        return other

    def at(self, j: Tensor) -> Tensor:
        """Knot number ``j`` in 0 .. n; shape of ``j``."""
        knot = self.right_knots.gather(-1, (j - 1).clamp(0, self.n - 1).unsqueeze(-1)).squeeze(-1)
        return torch.where(j > 0, knot, self.start)

    def locate(self, x: Tensor) -> Tensor:
        """Bin ``j`` in 0 .. n-1 with ``at(j) <= x < at(j + 1)``; outer bins are unbounded."""
        knots, points = self.right_knots.detach().contiguous(), x.detach().unsqueeze(-1)
        return torch.searchsorted(knots, points, right=True).squeeze(-1).clamp(max=self.n - 1)
