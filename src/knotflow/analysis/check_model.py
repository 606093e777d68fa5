r"""Does a trained model keep what its maths promises? Each answer is a number beside a promise.

Points are samples of the model itself. In both precisions they must survive the ways there and back, with the
same log-density on either way. The rest is judged in double precision, by other means than those of the
model: log-determinants by those of Jacobians, forces by differences, continuity by bisection.

**Mass.** A density of 60 coordinates cannot be summed up on a grid. But if samples $x$ come from $p$, then
for any second density $g$ that $p$ covers, $\mathrm E[g(x)/p(x)] = \int g = 1$. Here $g$ is the same flow
with its weights disturbed, so little that $\log g/p$ scatters by 0.3. Samples carry the $p$ of the way from
base to data, $g$ is taken the other way: densities that disagree by a factor show as a mean other than one.
With $g$ so near, it hardly matters which samples come; so, besides, their base points must be distributed as
the base is. By the theorem of Dvoretzky, Kiefer, Wolfowitz and Massart the distance of n of them
from it, the largest of d coordinates, is above $\sqrt{\log(2d/\alpha) / 2n}$ with a probability below
$\alpha$.

**Promises.** On the way data - base - data the base point is rounded by $\epsilon$, which is divided by the
slope of the flow. Among n samples the smallest slope is about 1/n of the usual, so single precision leaves
some $6 \cdot 10^{-8} \cdot 10^4$ of a domain; promises leave room for ten times that.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from knotflow.analysis.check import Check, Worst, chiral_centres, log_determinant
from knotflow.analysis.continuity import largest_jump
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import Flow, standard
from knotflow.geometry.superpose import superposed
from knotflow.progress import Progress, silent
from knotflow.transforms import Domain, Line
from knotflow.transforms.base import check_count
from knotflow.transforms.domains import Limits

TRIP_LIMITS: Final = {torch.float32: 1e-2, torch.float64: 1e-8}
"""Of the length of a coordinate's domain; for positions, in nm."""
DENSITY_LIMITS: Final = {torch.float32: 0.1, torch.float64: 1e-8}
"""Of a log-density: that of an angle, log sin θ, loses digits near π."""
JACOBIAN_LIMIT: Final = 1e-8
FORCE_LIMIT: Final = 1e-5
"""Of the force: differences over a finite step are no better."""
JUMP_LIMIT: Final = 1e-3
"""Of the typical force: far above rounding, far below the jumps of a spline of order 3."""
SIGMAS: Final = 5
"""Standard errors by which an average may be off."""
ALARM: Final = 1e-6
"""Probability of a false alarm about the distribution of samples."""

CHUNK: Final = 500
"""Points at once: forces take much memory."""
FORCES: Final = 10
"""The force is computed for one in so many samples."""
JACOBIANS: Final = 4
DIFFERENCES: Final = 50
STEP: Final = 1e-6
"""In nm, for differences."""
LINES: Final = 10
REACH: Final = 0.1
"""How far a line runs from one sample towards another."""
SCATTER: Final = 0.3
"""Standard deviation of log g/p."""


def check_model(
    model: BoltzmannGenerator, samples: int = 10_000, seed: int = 0, progress: Progress = silent
) -> list[Check]:
    """Measure how well a generator, and the flow in it, keeps its promises on samples of its own.

    Args:
        model: The generator; it is not changed.
        samples: For round trips and densities; forces are computed for a tenth of them.
        seed: Of all random numbers.
        progress: Called with the progress.
    """
    checks = check_flow(model.flow, samples, seed, progress)
    for dtype in TRIP_LIMITS:
        checks += _check_positions(copy.deepcopy(model).to(dtype), samples, seed, progress)
    model = copy.deepcopy(model).double()
    generator = torch.Generator().manual_seed(seed + 1)
    return [
        *checks,
        _check_volume(model, generator),
        _check_forces(model, generator),
        _check_handedness(model, samples, generator),
    ]


def check_flow(flow: Flow, samples: int = 10_000, seed: int = 0, progress: Progress = silent) -> list[Check]:
    """The checks of `check_model` that need no molecule.

    Raises:
        ValueError: if the flow needs a context.
    """
    check_count("samples", samples, 2)
    if flow.context:
        raise ValueError(f"this flow needs a context of {flow.context} numbers and cannot be checked alone.")
    checks = []
    for dtype in TRIP_LIMITS:
        checks += _check_trips(copy.deepcopy(flow).to(dtype), samples, seed, progress)
    flow = copy.deepcopy(flow).double()
    generator = torch.Generator().manual_seed(seed + 1)
    parts: list[Callable[[], list[Check]]] = [
        lambda: [_check_jacobian(flow, generator)],
        lambda: [_check_mass(flow, samples, generator)],
        lambda: [_check_distribution(flow, samples, generator)],
        lambda: [_check_continuity(flow, generator)],
        lambda: _check_slopes(flow, samples, generator),
    ]
    for number, part in enumerate(parts):
        progress("flow, more closely", number, len(parts))
        checks += part()
    progress("flow, more closely", len(parts), len(parts))
    return checks


def _chunks(doing: str, total: int, progress: Progress) -> Iterator[int]:
    """Sizes of the pieces of so many samples, reported as they are taken."""
    for start in range(0, total, CHUNK):
        progress(doing, start, total)
        yield min(CHUNK, total - start)
    progress(doing, total, total)


def _label(flow: Flow) -> tuple[torch.dtype, str]:
    dtype = next(flow.parameters(), torch.empty(0)).dtype
    return dtype, str(dtype).removeprefix("torch.")


def _gaps(domains: list[Domain], a: Tensor, b: Tensor) -> Tensor:
    """Distances of coordinates as fractions of their domains, around circles."""
    return torch.stack([d.distance(a[:, i], b[:, i]) / d.length for i, d in enumerate(domains)], -1)


def _finite(*tensors: Tensor) -> Tensor:
    """Which rows have nothing but finite numbers."""
    return torch.stack([t[..., None].isfinite().flatten(1).all(-1) for t in tensors]).all(0)


@torch.no_grad()
def _check_trips(flow: Flow, samples: int, seed: int, progress: Progress) -> list[Check]:
    """Base to data and back, data to base and back, log-determinants, numbers that are not finite."""
    dtype, name = _label(flow)
    generator = torch.Generator().manual_seed(seed)
    inner = [standard(d) for d in flow.domains]
    base, data, volume, broken = Worst(), Worst(), Worst(), 0
    for n in _chunks(f"flow, {name}", samples, progress):
        z = flow.sample_base(n, generator=generator)
        q, ladj = flow.inverse(z)
        fine = _finite(q, ladj)
        broken += int((~fine).sum())
        z, q, ladj = z[fine], q[fine], ladj[fine]
        again, ladj_back = flow(q)
        base.add(_gaps(inner, again, z))
        data.add(_gaps(list(flow.domains), flow.inverse(again)[0], q))
        volume.add((ladj + ladj_back).abs())
        broken += int((~_finite(flow.score(q[: math.ceil(n / FORCES)]))).sum())
    return [
        Check(f"flow: base there and back, {name}", base.value, TRIP_LIMITS[dtype], "of domain"),
        Check(f"flow: data there and back, {name}", data.value, TRIP_LIMITS[dtype], "of domain"),
        Check(f"flow: volume both ways, {name}", volume.value, DENSITY_LIMITS[dtype]),
        Check(f"flow: not finite, {name}", broken, 0),
        Check(f"flow: not finite at edges, {name}", _broken_at_edges(flow, generator), 0),
    ]


def _broken_at_edges(flow: Flow, generator: torch.Generator) -> int:
    """Points at and, on lines, beyond the limits of the domains that are not finite on one of the ways."""
    broken = 0
    z = _edges(flow.sample_base(1, generator=generator)[0], [standard(d) for d in flow.domains])
    for part in z.split(CHUNK):
        broken += int((~_finite(*flow.inverse(part))).sum())
    q = flow.sample(1, generator=generator)[0]
    if not q.isfinite().all():
        return broken + 1
    for part in _edges(q, list(flow.domains)).split(CHUNK):
        broken += int((~_finite(flow.log_prob(part), flow.score(part))).sum())
    return broken


def _edges(x: Tensor, domains: list[Domain]) -> Tensor:
    """A point (d,) with all coordinates at an edge, and with one of them: (n, d)."""
    edges = []
    for end in (0.0, 1.0, -1.0, 2.0):
        value = x.new_tensor(
            [d.low + (end if isinstance(d, Line) else min(max(end, 0.0), 1.0)) * d.length for d in domains]
        )
        # The limits rounded to float32 may lie outside by rounding, which is forgiven.
        alone = torch.eye(len(x), dtype=torch.bool, device=x.device)
        edges += [value[None], torch.where(alone, value, x)]
    return torch.cat(edges)


def _samples(flow: Flow, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Those of n samples (m, d) that are finite, and their log-densities (m,) by the way of sampling."""
    q, log_p = flow.sample_and_log_prob(n, generator=generator)
    fine = _finite(q, log_p)
    return q[fine], log_p[fine]


def _check_jacobian(flow: Flow, generator: torch.Generator) -> Check:
    """Log-determinants of the flow against those of its Jacobian."""
    worst = Worst()
    for q in _samples(flow, JACOBIANS, generator)[0]:
        worst.add((flow(q)[1].detach() - _log_volume(flow, q)).abs())
    return Check("flow: log-determinant", worst.value, JACOBIAN_LIMIT)


def _log_volume(flow: Flow, q: Tensor) -> Tensor:
    """Logarithm of the determinant of the Jacobian from data to base, by autograd."""
    jacobian = torch.func.jacrev(lambda x: flow(x)[0], chunk_size=64)(q)
    logarithm: Tensor = torch.linalg.slogdet(jacobian.detach()).logabsdet
    return logarithm


@torch.no_grad()
def _check_mass(flow: Flow, samples: int, generator: torch.Generator) -> Check:
    """The mean of g/p over samples of p, see above."""
    q, log_p = _samples(flow, samples, generator)
    if len(q) < 2:
        return Check("flow: mass - 1", math.nan, 0.0)
    direction = [
        _size(weight) * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        for weight in flow.parameters()
    ]
    disturbed, scale = copy.deepcopy(flow), 1e-3
    for _ in range(3):  # the scatter is nearly proportional to the disturbance
        _disturb(disturbed, flow, direction, scale)
        scatter = (disturbed.log_prob(q[:CHUNK]) - log_p[:CHUNK]).std().item()
        scale *= SCATTER / max(scatter, 1e-3)
    _disturb(disturbed, flow, direction, scale)
    ratio = (disturbed.log_prob(q) - log_p).exp()
    mean, error = ratio.mean().item(), ratio.std().item() / math.sqrt(len(q))
    note = f"mass: for a density g near that of the flow, p, the mean of g/p is {mean:.4f} ± {error:.4f}"
    return Check("flow: mass - 1", abs(mean - 1), SIGMAS * error + JACOBIAN_LIMIT, "", note)


def _size(parameter: Tensor) -> Tensor:
    """Root mean square of weights; one if they are zero."""
    size = parameter.square().mean().sqrt()
    return torch.where(size > 0, size, 1.0)


def _disturb(flow: Flow, origin: Flow, direction: list[Tensor], scale: float) -> None:
    for own, weight, along in zip(flow.parameters(), origin.parameters(), direction, strict=True):
        own.copy_(weight + scale * along)


@torch.no_grad()
def _check_distribution(flow: Flow, samples: int, generator: torch.Generator) -> Check:
    """Kolmogorov's distance of the base points of samples from the base, the largest of all coordinates."""
    q, _ = _samples(flow, samples, generator)
    n, worst = len(q), Worst()
    if n:
        z = torch.cat([flow(part)[0] for part in q.split(CHUNK)])
        lines = torch.tensor([isinstance(d, Line) for d in flow.domains])
        expected = torch.where(lines, torch.special.ndtr(z), z).sort(0).values
        rank = torch.arange(n, dtype=z.dtype)[:, None] / n
        worst.add(torch.maximum((expected - rank).abs(), (expected - rank - 1 / n).abs()))
    limit = math.sqrt(math.log(2 * flow.dim / ALARM) / (2 * max(n, 1)))
    return Check("flow: distribution of samples", worst.value, limit)


@torch.no_grad()
def _check_continuity(flow: Flow, generator: torch.Generator) -> Check:
    """The largest jump of the score, each coordinate in units of its domain."""
    q, _ = _samples(flow, 2 * LINES, generator)
    unit = q.new_tensor([d.length for d in flow.domains])
    start, other = q[: len(q) // 2], q[len(q) // 2 : len(q) // 2 * 2]
    smooth = min((f.smoothness for coupling in flow.couplings for f in coupling.transforms), default=math.inf)
    limit = JUMP_LIMIT if smooth >= 2 else None
    try:
        found = largest_jump(
            lambda x: flow.score(x * unit) * unit, start / unit, (start + REACH * (other - start)) / unit
        )
    except ValueError as error:
        return Check("flow: jump of the force", math.nan, JUMP_LIMIT, "of force", str(error))
    # At least one per length of a domain: a flat density has no force to compare with.
    typical = max(found.typical, 1.0)
    size = found.size / typical
    word = "continuous" if size <= JUMP_LIMIT else "DISCONTINUOUS"
    note = (
        f"the force is {word}: where it changes most suddenly, by {found.step / typical:.2g} of its "
        f"typical size in one step, {size:.2g} are left over 2^-30 of that step"
    )
    if limit is None:
        note += f"; no more is promised by transforms that are {smooth:g} times continuously differentiable"
    return Check("flow: jump of the force", size, limit, "of force", note)


@torch.no_grad()
def _check_slopes(flow: Flow, samples: int, generator: torch.Generator) -> list[Check]:
    """The least and the largest slope met, and those of each layer in a note."""
    q, _ = _samples(flow, min(samples, CHUNK), generator)
    ranges = [torch.aminmax(slopes.exp()) for _, _, slopes in flow.layers(q)] if len(q) else []
    if not ranges:
        return []
    note = "slopes of the layers: " + ", ".join(f"{low:.2g} to {high:.2g}" for low, high in ranges)
    return [
        Check("flow: least slope", min(low.item() for low, _ in ranges), None, "", note),
        Check("flow: largest slope", max(high.item() for _, high in ranges), None),
    ]


def _inside(flow: Flow, q: Tensor, margin: float = 0.0) -> Tensor:
    """Which points are finite and inside all intervals: rounding of positions can move one out of them."""
    return Limits.of(flow.domains, q, margin=margin).hold(q)


@torch.no_grad()
def _check_positions(model: BoltzmannGenerator, samples: int, seed: int, progress: Progress) -> list[Check]:
    """Positions to base and back, log-densities both ways, numbers that are not finite."""
    dtype, name = _label(model.flow)
    generator = torch.Generator().manual_seed(seed)
    trip, density, broken = Worst(), Worst(), 0
    for n in _chunks(f"positions, {name}", samples, progress):
        x, log_p = model.sample_and_log_prob(n, generator=generator)
        fine = _finite(x, log_p)
        broken += int((~fine).sum())
        inside = fine & _inside(model.flow, model.internal(x)[0])
        x, log_p = x[inside], log_p[inside]
        if len(x) == 0:
            continue
        density.add((model.log_prob(x) - log_p).abs())
        back, _ = model.coordinates.inverse(model.flow.inverse(model.flow(model.internal(x)[0])[0])[0])
        trip.add((superposed(back.double(), x.double()) - x.double()).norm(dim=-1))
        broken += int((~_finite(model.force(x[: math.ceil(n / FORCES)]))).sum())
    return [
        Check(f"positions there and back, {name}", trip.value, TRIP_LIMITS[dtype], "nm"),
        Check(f"log-density both ways, {name}", density.value, DENSITY_LIMITS[dtype]),
        Check(f"samples not finite, {name}", broken, 0),
    ]


def _check_volume(model: BoltzmannGenerator, generator: torch.Generator) -> Check:
    """Log-densities of positions against determinants: from base to data, and on to positions."""
    worst = Worst()
    for q in _samples(model.flow, JACOBIANS, generator)[0]:
        x, _ = model.coordinates.inverse(q)
        if not _inside(model.flow, model.internal(x)[0][None]):
            continue
        base = model.flow.base_log_prob(model.flow(q)[0])
        oracle = base + _log_volume(model.flow, q) - log_determinant(model.coordinates, q)
        worst.add((model.log_prob(x) - oracle).abs().detach())
    return Check("log-density, by determinants", worst.value, JACOBIAN_LIMIT)


@torch.no_grad()
def _check_forces(model: BoltzmannGenerator, generator: torch.Generator) -> Check:
    """Forces along random directions against differences of log-densities."""
    x, _ = model.sample_and_log_prob(2 * DIFFERENCES, generator=generator)
    # A bond or angle must not leave its interval on a step.
    x = x[_inside(model.flow, model.internal(x)[0], margin=1e-3)][:DIFFERENCES]
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    direction /= direction.square().sum((-1, -2), keepdim=True).sqrt()
    worst = Worst()
    if len(x):
        force = model.force(x)
        step = STEP * direction
        difference = (model.log_prob(x + step) - model.log_prob(x - step)) / (2 * STEP)
        error = ((force * direction).sum((-1, -2)) - difference).abs()
        worst.add(error / force.square().sum((-1, -2)).sqrt())
    return Check("force, by differences", worst.value, FORCE_LIMIT, "of force")


@torch.no_grad()
def _check_handedness(model: BoltzmannGenerator, samples: int, generator: torch.Generator) -> Check:
    x = model.sample(samples, generator=generator)
    share = 1 - model.chirality.matches(x).double().mean().item()
    return Check("samples of other handedness", 100 * share, None, "%", chiral_centres(model.chirality))
