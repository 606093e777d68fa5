"""Exact metrics of a density of two bounded coordinates, by the midpoint rule in float64.

For smooth densities that are periodic or vanish at the edges, the midpoint rule converges faster than any
power of the cell size; otherwise with its square. It never evaluates an edge or a seam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from knotflow.analysis.continuity import largest_jump
from knotflow.energies import Energy
from knotflow.progress import Progress, silent
from knotflow.transforms import Circle, Domain, Interval
from knotflow.transforms.base import check_count

CHUNK: Final = 100_000
"""Points evaluated at a time, which bounds the memory."""
NEGLIGIBLE: Final = 1e-6
"""`force_jump` leaves out points whose density is below this fraction of the largest density found."""
MARGIN: Final = 1e-3
"""`force_jump` stays this fraction of the length of a domain away from its edges or its seam."""
CANDIDATES: Final = 5
"""Cells that `force_jump` bisects on each line."""


@dataclass(frozen=True)
class Comparison:
    r"""A model $q$ against the target $p$, both on a two-dimensional domain.

    Forces are scores, $f_q = \nabla\log q$ and $f_p = \nabla\log p$; $|\cdot|$ is the Euclidean length of the
    vector (not a mean over its two components).
    """

    kl: float
    r"""$\int p \log(p / q)$, in nats."""
    mass: float
    r"""$\int q$, which is 1 for a normalised model."""
    force_rms: float
    r"""$\sqrt{\int p\, |f_q - f_p|^2}$."""
    force_median: float
    r"""Median of $|f_q - f_p|$ under $p$."""
    largest_force: float
    r"""Largest $|f_q|$ on the whole grid, also where $p$ is small."""
    true_force_rms: float
    r"""$\sqrt{\int p\, |f_p|^2}$, the scale of `force_rms`."""


def log_normaliser(energy: Energy, points: int = 2000, chunk: int = CHUNK) -> float:
    r"""Return $\log\int e^{-u(x)}\,dx$ over the domain of ``energy``.

    Args:
        energy: An energy on two intervals or circles.
        points: Cells along each axis; must resolve the density.
        chunk: Points evaluated at a time.
    """
    domains = _plane(energy)
    parts = [torch.logsumexp(-energy.energy(x), dim=0) for x in _midpoints(domains, points, chunk)]
    return torch.stack(parts).logsumexp(dim=0).item() + math.log(_cell(domains, points))


@torch.no_grad()
def compare(
    log_prob: Callable[[Tensor], Tensor],
    score: Callable[[Tensor], Tensor],
    energy: Energy,
    points: int = 2000,
    chunk: int = CHUNK,
    progress: Progress = silent,
) -> Comparison:
    r"""Compare a model with the density $p \propto e^{-u}$, see [`Comparison`][knotflow.analysis.Comparison].

    Args:
        log_prob: Log density of the model; maps float64 points of shape ``(n, 2)`` to ``(n,)``.
        score: Its gradient, ``(n, 2)`` to ``(n, 2)``. Called without autograd, so it must use
            ``torch.func.grad`` or ``torch.enable_grad``.
        energy: The target, on two intervals or circles.
        points: Cells along each axis; must resolve the target and the model.
        chunk: Points evaluated at a time. Two more numbers are kept for each of the ``points²`` cells.
        progress: Called with the number of finished points after every chunk.
    """
    domains = _plane(energy)
    log_z = log_normaliser(energy, points, chunk)
    cell = _cell(domains, points)
    kl = mass = true_square = largest = 0.0
    weights, errors = [], []
    done = 0
    for x in _midpoints(domains, points, chunk):
        log_p, log_q = -energy.energy(x) - log_z, log_prob(x)
        true, model = energy.force(x), score(x)
        weight = cell * log_p.exp()
        # Where p underflows to 0 it contributes 0, even if the log density of the model is -inf there.
        kl += torch.where(weight > 0, weight * (log_p - log_q), 0.0).sum().item()
        mass += cell * log_q.exp().sum().item()
        true_square += (weight * true.square().sum(-1)).sum().item()
        # Torch's maximum keeps NaN, which must show; Python's may lose it.
        largest = model.norm(dim=-1).max().maximum(model.new_tensor(largest)).item()
        weights.append(weight)
        errors.append((model - true).norm(dim=-1))
        done += len(x)
        progress("quadrature", done, points**2)
    weight, error = torch.cat(weights), torch.cat(errors)
    return Comparison(
        kl=kl,
        mass=mass,
        force_rms=(weight * error.square()).sum().sqrt().item(),
        force_median=_median(error, weight),
        largest_force=largest,
        true_force_rms=math.sqrt(true_square),
    )


@torch.no_grad()
def force_jump(
    score: Callable[[Tensor], Tensor],
    energy: Energy,
    lines: int = 200,
    points: int = 2000,
    depth: int = 30,
    generator: torch.Generator | None = None,
) -> float:
    r"""Return the largest discontinuity of a force, found by bisection along lines.

    Half of the lines run along each axis, at random places; `knotflow.analysis.continuity.largest_jump`
    searches them. The difference that is left (its Euclidean length) is the jump: for a continuous force it
    vanishes with the width of the cell, for a model that is only $C^1$ it is the jump at a knot. With the
    defaults the last width is $5 \cdot 10^{-13}$ of the domain: a continuous force of slope $10^5$ leaves
    $5 \cdot 10^{-8}$.

    Only cells count where the target's density is at least `NEGLIGIBLE` times its largest value on all lines.
    Lines end a fraction `MARGIN` before the edges: the seam of a circle is left out, because the force of the
    target itself may jump there.

    Args:
        score: Force of the model; maps float64 points of shape ``(n, 2)`` to ``(n, 2)``.
        energy: The target, on two intervals or circles; only used to find where its density is negligible.
        lines: Number of lines.
        points: Points on each line, at least 4.
        depth: Number of halvings.
        generator: Random generator on the CPU; torch's own by default.
    """
    check_count("lines", lines, 1)

    def counts(x: Tensor) -> Tensor:
        u = torch.cat([energy.energy(part) for part in x.flatten(0, 1).split(CHUNK)]).view(x.shape[:2])
        return u - u.min() <= -math.log(NEGLIGIBLE)

    ends = _lines(_plane(energy), lines, generator)
    return largest_jump(score, *ends, points, depth, counts=counts, candidates=CANDIDATES, chunk=CHUNK).size


def _plane(energy: Energy) -> tuple[Domain, Domain]:
    domains = energy.domains
    if len(domains) != 2 or not all(isinstance(d, Interval | Circle) for d in domains):
        raise ValueError(
            f"quadrature takes an energy on two intervals or circles, got the domains {domains}; "
            "use estimates from samples instead."
        )
    return domains[0], domains[1]


def _cell(domains: tuple[Domain, Domain], points: int) -> float:
    return domains[0].length * domains[1].length / points**2


def _midpoints(domains: tuple[Domain, Domain], points: int, chunk: int) -> Iterator[Tensor]:
    """Midpoints of all cells in pieces of at most ``chunk``, shape ``(n, 2)``."""
    check_count("points", points, 1)
    check_count("chunk", chunk, 1)
    for start in range(0, points**2, chunk):
        index = torch.arange(start, min(start + chunk, points**2))
        axes = zip(domains, (index // points, index % points), strict=True)
        yield torch.stack([d.low + (i.double() + 0.5) * (d.length / points) for d, i in axes], dim=-1)


def _lines(
    domains: tuple[Domain, Domain], lines: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Both ends (lines, 2) of lines along the first axis, then along the second."""
    place = torch.rand(lines, 1, generator=generator, dtype=torch.float64)
    unit = torch.stack([torch.cat([torch.full_like(place, end), place], -1) for end in (0.0, 1.0)])
    unit[:, lines // 2 :] = unit[:, lines // 2 :].flip(-1)
    unit = MARGIN + (1 - 2 * MARGIN) * unit
    low, length = unit.new_tensor([[d.low, d.length] for d in domains]).T
    start, end = low + unit * length
    return start, end


def _median(values: Tensor, weights: Tensor) -> float:
    """The value below which half of the weight lies."""
    values, order = values.sort()
    total = weights[order].cumsum(0)
    at = torch.searchsorted(total, total[-1:] / 2)
    return values[at].item()
