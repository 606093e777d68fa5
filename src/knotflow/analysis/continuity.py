"""Search for jumps of a force: differences on a fine grid along lines, followed by bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from knotflow.transforms.base import check_count

CANDIDATES: Final = 3
"""Cells of each line that are bisected."""


@dataclass(frozen=True)
class Jump:
    """The largest discontinuity found; all sizes are Euclidean lengths."""

    size: float
    """Difference of the force over the last, tiny cell: near zero where the force is continuous."""
    step: float
    """Difference over the grid cell in which the search began."""
    typical: float
    """Root mean square of the force along the lines."""


def largest_jump(
    force: Callable[[Tensor], Tensor],
    start: Tensor,
    end: Tensor,
    points: int = 200,
    depth: int = 30,
    *,
    counts: Callable[[Tensor], Tensor] | None = None,
    candidates: int = CANDIDATES,
    chunk: int | None = None,
) -> Jump:
    r"""Look for discontinuities of a force along straight lines.

    The force is evaluated on a grid along each line. The cells whose difference deviates most from those of
    their neighbours are halved ``depth`` times, each time keeping the half that deviates more: a slope loses
    half of its difference each time, a jump keeps it. With the defaults $2^{-30}$ of a slope is left.

    Args:
        force: Maps points (n, d) to vectors (n, d), in float64.
        start: Where the lines begin, (lines, d), in float64.
        end: Where they end.
        points: Grid points on each line, at least 4.
        depth: Number of halvings.
        counts: Maps grid points (lines, points, d) to whether they count, (lines, points); by default all do.
        candidates: Cells of each line that are halved.
        chunk: Grid points evaluated at a time; by default those of a line.

    Raises:
        ValueError: if the force is not finite somewhere, or no cell counts.
    """
    check_count("the number of lines", len(start), 1)
    check_count("points", points, 4)
    check_count("depth", depth, 0)
    along = torch.linspace(0.0, 1.0, points, dtype=start.dtype, device=start.device)[:, None]
    x = start[:, None] + along * (end - start)[:, None]
    f = torch.cat([force(part) for part in x.flatten(0, 1).split(chunk or points)]).view_as(x)
    if not bool(f.isfinite().all()):
        raise ValueError("the force is not finite on a line, so it has no jump to measure; check the model.")
    step = f.diff(dim=1)
    # A steep but smooth force changes as much in the neighbouring cells; a jump is in one cell only.
    trend = (step[:, :-2] + step[:, 2:]) / 2
    excess = (step[:, 1:-1] - trend).norm(dim=-1)
    if counts is not None:
        usable = counts(x)
        excess = torch.where((usable[:, :-1] & usable[:, 1:])[:, 1:-1], excess, -1.0)
    best, cell = excess.topk(min(candidates, excess.shape[1]), dim=1)
    line, chosen = (best >= 0).nonzero(as_tuple=True)
    if len(line) == 0:
        raise ValueError(f"{points} points a line do not resolve the density; give more points or lines.")
    cell = cell[line, chosen]
    trend, first = trend[line, cell], step[line, cell + 1]
    (left, right), (f_left, f_right) = ((y[line, cell + 1], y[line, cell + 2]) for y in (x, f))
    for _ in range(depth):
        middle = (left + right) / 2
        f_middle = force(middle)
        trend = trend / 2
        into_left = (f_middle - f_left - trend).norm(dim=-1) > (f_right - f_middle - trend).norm(dim=-1)
        into_left = into_left[:, None]
        left, f_left = torch.where(into_left, left, middle), torch.where(into_left, f_left, f_middle)
        right, f_right = torch.where(into_left, middle, right), torch.where(into_left, f_middle, f_right)
    size, worst = (f_right - f_left).norm(dim=-1).max(0)
    typical = f.square().sum(-1).mean().sqrt()
    return Jump(size.item(), first[worst].norm().item(), typical.item())
