r"""Checks of a trained model against what its maths promises, each measured against a limit.

Points are samples of the model itself. In both precisions they must survive the flow in both directions, with
the same log-density each way. All else is checked in double precision by independent means: log-determinants
by Jacobians, forces by finite differences, continuity by bisection.

**Mass.** A density of 60 coordinates cannot be integrated on a grid. But if samples $x$ come from $p$, then
$\mathrm E[g(x)/p(x)] = \int g = 1$ for any second density $g$ that $p$ covers. Here $g$ is the same flow with
its weights disturbed, so little that the standard deviation of $\log g/p$ is 0.3. Samples carry the $p$ of
the direction from base to data and $g$ is computed in the other: densities that disagree by a factor show as
a mean other than one.

**Distribution.** With $g$ so close, it hardly matters which samples are drawn. So their base points must also
be distributed as the base is. By the theorem of Dvoretzky, Kiefer, Wolfowitz and Massart the Kolmogorov
distance of n points, the largest of d coordinates, exceeds $\sqrt{\log(2d/\alpha) / 2n}$ with a probability
below $\alpha$.

**Limits.** On the way data - base - data the base point is rounded by $\epsilon$, which is divided by the
slope of the flow. Among n samples the smallest slope is about 1/n of the usual one, so single precision
leaves some $6 \cdot 10^{-8} \cdot 10^4$ of a domain; the limits leave room for ten times that.
"""

from __future__ import annotations

import copy
import math
from typing import Final

import torch
from torch import Tensor

from knotflow.analysis.check import (
    Check,
    Worst,
    chiral_centres,
    chunks,
    coordinate_log_volume,
    displacements,
    log_volume,
)
from knotflow.analysis.continuity import largest_jump
from knotflow.analysis.frame_table import inside
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import Flow, dtype_name, standard
from knotflow.progress import Progress, silent
from knotflow.transforms import Domain, Line
from knotflow.transforms.base import check_count

TRIP_LIMITS: Final = {torch.float32: 1e-2, torch.float64: 1e-8}
"""Errors of coordinates, as fractions of their domains, or of positions, in nm."""
DENSITY_LIMITS: Final = {torch.float32: 0.1, torch.float64: 1e-8}
"""Errors of log-densities: log sin θ of an angle loses digits near π."""
WOUND_LIMIT: Final = 1e-3
"""Largest share of samples with a torsion on a line more than half a turn from its middle."""
JACOBIAN_LIMIT: Final = 1e-8
FORCE_LIMIT: Final = 1e-5
"""As a fraction of the force: finite differences are no better."""
JUMP_LIMIT: Final = 1e-3
"""As a fraction of the typical force: far above rounding, far below the jumps of a spline of order 3."""
SIGMAS: Final = 5
"""Standard errors by which an average may be off."""
ALARM: Final = 1e-6
"""Probability of a false alarm about the distribution of samples."""

CHUNK: Final = 500
"""Points at a time: forces take much memory."""
FORCES: Final = 10
"""The force is computed for one sample in this many."""
JACOBIANS: Final = 4
DIFFERENCES: Final = 50
STEP: Final = 1e-6
"""Step of finite differences, in nm."""
LINES: Final = 10
REACH: Final = 0.1
"""Length of a line, as a fraction of the way from one sample to another."""
SCATTER: Final = 0.3
"""Standard deviation of log g/p."""


def check_model(
    model: BoltzmannGenerator, samples: int = 10_000, seed: int = 0, progress: Progress = silent
) -> list[Check]:
    """Check a generator, and the flow in it, on its own samples.

    Args:
        model: The generator; it is not changed.
        samples: Number of samples for round trips and densities; forces are computed for a tenth of them.
        seed: Seed of all random numbers.
        progress: Called with the progress.
    """
    checks = check_flow(model.flow, samples, seed, progress)
    for dtype in TRIP_LIMITS:
        checks += _check_positions(model, dtype, samples, seed, progress)
    model = copy.deepcopy(model).double()
    generator = torch.Generator().manual_seed(seed + 1)
    return [
        *checks,
        _check_volume(model, generator),
        _check_forces(model, generator),
        _check_handedness(model, samples, generator),
    ]


def check_flow(flow: Flow, samples: int = 10_000, seed: int = 0, progress: Progress = silent) -> list[Check]:
    """Make those checks of `check_model` that need no molecule.

    Raises:
        ValueError: if the flow needs a context.
    """
    check_count("samples", samples, 2)
    if flow.context:
        raise ValueError(f"this flow needs a context of {flow.context} numbers and cannot be checked alone.")
    checks = []
    for dtype in TRIP_LIMITS:
        checks += _check_trips(flow, dtype, samples, seed, progress)
    flow = copy.deepcopy(flow).double()
    generator = torch.Generator().manual_seed(seed + 1)
    parts = [
        lambda: [_check_jacobian(flow, generator)],
        lambda: [_check_mass(flow, samples, generator)],
        lambda: [_check_distribution(flow, samples, generator)],
        lambda: [_check_continuity(flow, generator)],
        lambda: _check_slopes(flow, samples, generator),
    ]
    for (number,) in chunks("flow, more closely", len(parts), 1, progress):
        checks += parts[number]()
    return checks


def _gaps(domains: list[Domain], a: Tensor, b: Tensor) -> Tensor:
    """Distances of coordinates as fractions of their domains, around circles."""
    return torch.stack([d.distance(a[:, i], b[:, i]) / d.length for i, d in enumerate(domains)], -1)


def _finite(*tensors: Tensor) -> Tensor:
    """Which rows contain only finite numbers."""
    return torch.stack([t[..., None].isfinite().flatten(1).all(-1) for t in tensors]).all(0)


@torch.no_grad()
def _check_trips(flow: Flow, dtype: torch.dtype, samples: int, seed: int, progress: Progress) -> list[Check]:
    """Base to data and back, data to base and back, log-determinants, numbers that are not finite."""
    flow, name = copy.deepcopy(flow).to(dtype), dtype_name(dtype)
    generator = torch.Generator().manual_seed(seed)
    inner = [standard(d) for d in flow.domains]
    base, data, volume, broken = Worst(), Worst(), Worst(), 0
    for rows in chunks(f"flow, {name}", samples, CHUNK, progress):
        z = flow.sample_base(len(rows), generator=generator)
        q, ladj = flow.inverse(z)
        fine = _finite(q, ladj)
        broken += int((~fine).sum())
        z, q, ladj = z[fine], q[fine], ladj[fine]
        again, ladj_back = flow(q)
        base.add(_gaps(inner, again, z))
        data.add(_gaps(list(flow.domains), flow.inverse(again)[0], q))
        volume.add((ladj + ladj_back).abs())
        broken += int((~_finite(flow.score(q[: math.ceil(len(rows) / FORCES)]))).sum())
    return [
        Check(f"flow: base there and back, {name}", base.value, TRIP_LIMITS[dtype], "of domain"),
        Check(f"flow: data there and back, {name}", data.value, TRIP_LIMITS[dtype], "of domain"),
        Check(f"flow: volume both ways, {name}", volume.value, DENSITY_LIMITS[dtype]),
        Check(f"flow: not finite, {name}", broken, 0),
        Check(f"flow: not finite at edges, {name}", _broken_at_edges(flow, generator), 0),
    ]


def _broken_at_edges(flow: Flow, generator: torch.Generator) -> int:
    """Number of points at the limits of the domains, and on lines beyond them, that are not finite."""
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
    """Copies (n, d) of a point (d,) with all coordinates at an edge, or a single one."""
    edges = []
    alone = torch.eye(len(x), dtype=torch.bool, device=x.device)
    for end in (0.0, 1.0, -1.0, 2.0):
        value = x.new_tensor(
            [d.low + (end if isinstance(d, Line) else min(max(end, 0.0), 1.0)) * d.length for d in domains]
        )
        # Rounded to float32 the limits may lie just outside, which flows tolerate.
        edges += [value[None], torch.where(alone, value, x)]
    return torch.cat(edges)


def _samples(flow: Flow, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The finite ones of n samples (m, d), and the log-densities (m,) they were drawn with."""
    q, log_p = flow.sample_and_log_prob(n, generator=generator)
    fine = _finite(q, log_p)
    return q[fine], log_p[fine]


def _check_jacobian(flow: Flow, generator: torch.Generator) -> Check:
    """Log-determinants of the flow against those of its Jacobian."""
    worst = Worst()
    for q in _samples(flow, JACOBIANS, generator)[0]:
        worst.add((flow(q)[1].detach() - log_volume(lambda x: flow(x)[0], q)).abs())
    return Check("flow: log-determinant", worst.value, JACOBIAN_LIMIT)


@torch.no_grad()
def _check_mass(flow: Flow, samples: int, generator: torch.Generator) -> Check:
    """The mean of g/p over samples of p, see the top of this file."""
    q, log_p = _samples(flow, samples, generator)
    if len(q) < 2:
        return Check("flow: mass - 1", math.nan, 0.0)
    # In units of the root mean square of each weight tensor, or of one if it is zero.
    direction = [
        (weight.square().mean().sqrt() or 1.0)
        * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        for weight in flow.parameters()
    ]
    disturbed, scale = copy.deepcopy(flow), 1e-3

    def log_ratio(n: int) -> Tensor:
        for own, weight, along in zip(disturbed.parameters(), flow.parameters(), direction, strict=True):
            own.copy_(weight + scale * along)
        return disturbed.log_prob(q[:n]) - log_p[:n]

    for _ in range(3):  # the scatter is nearly proportional to the disturbance
        scale *= SCATTER / max(log_ratio(CHUNK).std().item(), 1e-3)
    ratio = log_ratio(len(q)).exp()
    mean, error = ratio.mean().item(), ratio.std().item() / math.sqrt(len(q))
    note = f"mass: for a density g near that of the flow, p, the mean of g/p is {mean:.4f} ± {error:.4f}"
    return Check("flow: mass - 1", abs(mean - 1), SIGMAS * error + JACOBIAN_LIMIT, "", note)


@torch.no_grad()
def _check_distribution(flow: Flow, samples: int, generator: torch.Generator) -> Check:
    """Kolmogorov distance of the base points of samples from the base, the largest of all coordinates."""
    q, _ = _samples(flow, samples, generator)
    n, worst = len(q), Worst()
    if n:
        z = torch.cat([flow(part)[0] for part in q.split(CHUNK)])
        expected = flow.base_cdf(z).sort(0).values
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
    # At least one per domain length: a flat density has no force to compare with.
    typical = max(found.typical, 1.0)
    size = found.size / typical
    word = "continuous" if size <= JUMP_LIMIT else "DISCONTINUOUS"
    note = (
        f"the force is {word}: at its most sudden change, by {found.step / typical:.2g} of its typical size "
        f"in one step, {size:.2g} is left over 2^-30 of that step"
    )
    if limit is None:
        note += f"; transforms that are {smooth:g} times continuously differentiable promise no more"
    return Check("flow: jump of the force", size, limit, "of force", note)


@torch.no_grad()
def _check_slopes(flow: Flow, samples: int, generator: torch.Generator) -> list[Check]:
    """The least and the largest slope found; a note lists those of each layer."""
    q, _ = _samples(flow, min(samples, CHUNK), generator)
    ranges = [torch.aminmax(slopes.exp()) for _, _, slopes in flow.layers(q)] if len(q) else []
    if not ranges:
        return []
    note = "slopes of the layers: " + ", ".join(f"{low:.2g} to {high:.2g}" for low, high in ranges)
    return [
        Check("flow: least slope", min(low.item() for low, _ in ranges), None, "", note),
        Check("flow: largest slope", max(high.item() for _, high in ranges), None),
    ]


@torch.no_grad()
def _check_positions(
    model: BoltzmannGenerator, dtype: torch.dtype, samples: int, seed: int, progress: Progress
) -> list[Check]:
    """Positions to base and back, log-densities both ways, numbers that are not finite.

    A torsion on a line more than half a turn from its middle is another number after a trip to positions and
    back: such samples are counted, and left out.
    """
    model, name = copy.deepcopy(model).to(dtype), dtype_name(dtype)
    generator = torch.Generator().manual_seed(seed)
    trip, density, broken, wound = Worst(), Worst(), 0, 0
    for rows in chunks(f"positions, {name}", samples, CHUNK, progress):
        q, log_q = model.flow.sample_and_log_prob(len(rows), generator=generator)
        x, ladj = model.coordinates.inverse(q)
        log_p = log_q - ladj
        fine = _finite(x, log_p)
        broken += int((~fine).sum())
        unwound = (model.unwound(q) == q).all(-1)
        wound += int((fine & ~unwound).sum())
        # Rounding of positions can move a coordinate out of its interval.
        usable = fine & unwound & inside(model.flow, model.internal(x)[0])
        x, log_p = x[usable], log_p[usable]
        if len(x) == 0:
            continue
        density.add((model.log_prob(x) - log_p).abs())
        back, _ = model.coordinates.inverse(model.flow.inverse(model.flow(model.internal(x)[0])[0])[0])
        trip.add(displacements(back, x))
        broken += int((~_finite(model.force(x[: math.ceil(len(rows) / FORCES)]))).sum())
    share = wound / (samples - broken) if broken < samples else math.nan
    return [
        Check(f"positions there and back, {name}", trip.value, TRIP_LIMITS[dtype], "nm"),
        Check(f"log-density both ways, {name}", density.value, DENSITY_LIMITS[dtype]),
        Check(f"samples not finite, {name}", broken, 0),
        Check(f"samples beyond half a turn, {name}", share, WOUND_LIMIT),
    ]


def _check_volume(model: BoltzmannGenerator, generator: torch.Generator) -> Check:
    """Log-densities of positions against determinants: from base to data, and from there to positions."""
    worst = Worst()
    for q in _samples(model.flow, JACOBIANS, generator)[0]:
        x, _ = model.coordinates.inverse(q)
        if not inside(model.flow, model.internal(x)[0][None]):
            continue
        base = model.flow.base_log_prob(model.flow(q)[0])
        volume = log_volume(lambda x: model.flow(x)[0], q)
        oracle = base + volume - coordinate_log_volume(model.coordinates, q)
        worst.add((model.log_prob(x) - oracle).abs().detach())
    return Check("log-density, by determinants", worst.value, JACOBIAN_LIMIT)


@torch.no_grad()
def _check_forces(model: BoltzmannGenerator, generator: torch.Generator) -> Check:
    """Forces along random directions against finite differences of log-densities."""
    x, _ = model.sample_and_log_prob(2 * DIFFERENCES, generator=generator)
    # A step must not move a bond or angle out of its interval.
    x = x[inside(model.flow, model.internal(x)[0], margin=1e-3)][:DIFFERENCES]
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
