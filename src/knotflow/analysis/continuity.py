"""Does a force jump? Differences on a fine grid along lines, and what is left of the largest by bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from knotflow.transforms.base import check_count

CANDIDATES: Final = 3
"""Cells of each line that are looked at closely."""


@dataclass(frozen=True)
class Jump:
    """The largest discontinuity found, all sizes as Euclidean lengths."""

    size: float
    """Difference of the force over the last, tiny cell: near zero where the force is continuous."""
    step: float
    """Difference over the cell of the grid from which the search for it began."""
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

    The force is evaluated on a grid of each line. The cells whose difference sticks out most from those of
    their neighbours are halved ``depth`` times, each time towards the half that sticks out more: a slope
    loses half of its difference each time, a jump keeps it. With the defaults $2^{-30}$ of a slope is left.

    Args:
        force: Points (n, d) to vectors (n, d), in float64.
        start: Where the lines begin, (lines, d), in float64.
        end: Where they end.
        points: Points of the grid of a line, at least 4.
        depth: Number of halvings.
        counts: Which points of the grid (lines, points, d) count, (lines, points); by default all.
        candidates: Cells of each line that are halved.
        chunk: Points of the grid evaluated at a time; by default those of a line.

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
    # A steep but smooth force changes as much in the cells beside; a jump is in one cell only.
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
    cells = (x[line, cell + 1], x[line, cell + 2]), (f[line, cell + 1], f[line, cell + 2])
    size, worst = remaining_jumps(force, *cells, trend, depth).max(0)
    typical = f.square().sum(-1).mean().sqrt()
    return Jump(size.item(), first[worst].norm().item(), typical.item())


def remaining_jumps(
    force: Callable[[Tensor], Tensor],
    ends: tuple[Tensor, Tensor],
    forces: tuple[Tensor, Tensor],
    trend: Tensor,
    depth: int,
) -> Tensor:
    """By how much a force still changes over cells halved again and again, always where it jumps: (cells,).

    Args:
        force: maps points (cells, d) to forces (cells, d).
        ends: both ends of each cell, (cells, d).
        forces: there.
        trend: change of a smooth force over each cell, (cells, d).
        depth: number of halvings.
    """
    (left, right), (f_left, f_right) = ends, forces
    for _ in range(depth):
        middle = (left + right) / 2
        f_middle = force(middle)
        trend = trend / 2
        into_left = (f_middle - f_left - trend).norm(dim=-1) > (f_right - f_middle - trend).norm(dim=-1)
        into_left = into_left[:, None]
        left, f_left = torch.where(into_left, left, middle), torch.where(into_left, f_left, f_middle)
        right, f_right = torch.where(into_left, middle, right), torch.where(into_left, f_middle, f_right)
    left_over: Tensor = (f_right - f_left).norm(dim=-1)
    return left_over
