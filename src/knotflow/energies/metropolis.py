"""Random-walk Metropolis sampling of an energy, many chains at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from knotflow.energies.energy import Energy
from knotflow.transforms import Circle
from knotflow.transforms.base import check_count
from knotflow.transforms.domains import Limits


@torch.no_grad()
def metropolis(
    energy: Energy,
    start: Tensor,
    *,
    steps: int,
    keep: int,
    step_size: float,
    generator: torch.Generator | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Tensor, float]:
    r"""Sample $p \propto e^{-u}$ with independent chains of random-walk Metropolis.

    A step proposes $x' = x + s\,\xi$, $\xi \sim \mathcal N(0, 1)$ in every coordinate, and accepts it with
    probability $\min(1, e^{u(x) - u(x')})$. Proposals are wrapped on a circle and rejected outside an
    interval (the old state of the chain then counts again); on a line every point is allowed.

    Args:
        energy: The energy $u$.
        start: First state of every chain, shape ``(chains, d)``; sets dtype and device.
        steps: Steps of each chain to discard first.
        keep: Steps of each chain to keep after them.
        step_size: Standard deviation $s$ of a proposal, in units of ``x``.
        generator: Source of randomness; default: torch's own.
        progress: Called with the number of finished steps after every step, ``steps + keep`` times.

    Returns:
        Samples of shape ``(keep * chains, d)``, ordered by step and then by chain, and the fraction of all
        proposals that were accepted.
    """
    _check(energy, start, steps, keep, step_size)
    limits = Limits.of(energy.domains, start)
    state = _wrapped(energy, start)
    u = energy.energy(state)
    if not bool(torch.isfinite(u).all()):
        raise ValueError("every chain must start where the energy is finite; move or drop the other chains.")
    accepted = torch.zeros((), dtype=torch.int64, device=start.device)
    kept = []
    for step in range(1, steps + keep + 1):
        noise = torch.randn(state.shape, generator=generator, dtype=state.dtype, device=state.device)
        proposal = _wrapped(energy, state + step_size * noise)
        inside = limits.hold(proposal)
        # The energy is defined only inside: a chain that would leave is evaluated at its old state.
        proposal = torch.where(inside[:, None], proposal, state)
        u_proposal = energy.energy(proposal)
        chance = torch.rand(u.shape, generator=generator, dtype=u.dtype, device=u.device)
        # Written so that a NaN energy is rejected.
        accept = inside & (chance.log() < u - u_proposal)
        state = torch.where(accept[:, None], proposal, state)
        u = torch.where(accept, u_proposal, u)
        accepted += accept.sum()
        if step > steps:
            kept.append(state)
        if progress is not None:
            progress(step)
    return torch.cat(kept), accepted.item() / (len(start) * (steps + keep))


def _wrapped(energy: Energy, x: Tensor) -> Tensor:
    """Points with their coordinates on circles wrapped into ``[low, high]``."""
    columns = zip(energy.domains, x.unbind(-1), strict=True)
    return torch.stack([d.enter(c) if isinstance(d, Circle) else c for d, c in columns], dim=-1)


def _check(energy: Energy, start: Tensor, steps: int, keep: int, step_size: float) -> None:
    check_count("steps", steps, 0)
    check_count("keep", keep, 1)
    if not 0 < step_size < math.inf:
        raise ValueError(f"step_size must be a positive number, got {step_size!r}.")
    d = len(energy.domains)
    if not torch.is_floating_point(start) or start.ndim != 2 or start.shape[1] != d or len(start) == 0:
        raise ValueError(
            f"start must be a floating-point tensor of shape (chains, {d}) with at least one chain, got "
            f"{start.dtype} of shape {tuple(start.shape)}; give one point per chain."
        )
    outside = (~Limits.of(energy.domains, start).hold(start)).sum().item()
    if outside:
        raise ValueError(
            f"every chain must start inside the intervals of the energy, {outside} of {len(start)} do not; "
            f"move them into the domains {energy.domains}."
        )
