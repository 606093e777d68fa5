"""All candidates behind one interface: knotflow's transforms and those of zuko, nflows and normflows.

Each takes points of shape (N,) in ``[low, high]`` and raw parameters of shape (N, n_parameters), which are
standard normal unless a benchmark scales them, and is called the way its own library's layers call it, with
the floors that are its defaults. All run in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from nflows.transforms.splines.cubic import cubic_spline
from nflows.transforms.splines.rational_quadratic import rational_quadratic_spline
from normflows.utils.splines import unconstrained_rational_quadratic_spline as normflows_spline
from torch import Tensor
from zuko.transforms import MonotonicRQSTransform

import knotflow as kf

DTYPE = torch.float32
Map = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""``(x, raw) -> (y, log |dy/dx|)``"""


@dataclass(frozen=True)
class Candidate:
    """A family of increasing maps of ``[low, high]`` onto itself."""

    name: str
    forward: Map
    inverse: Map
    n_parameters: int
    low: float
    high: float
    circular: bool = False
    transform: kf.Transform | None = None
    """knotflow's own object; None for a peer."""

    @property
    def ours(self) -> bool:
        return self.transform is not None

    @property
    def length(self) -> float:
        return self.high - self.low

    def sample_raw(self, n: int, generator: torch.Generator, scale: float = 1.0) -> Tensor:
        return torch.randn(n, self.n_parameters, generator=generator, dtype=DTYPE) * scale

    def sample_points(self, n: int, generator: torch.Generator) -> Tensor:
        """Uniform points of the domain."""
        points = torch.rand(n, generator=generator, dtype=DTYPE) * self.length + self.low
        return points.clamp(self.low, self.high)


DOMAINS: dict[str, Callable[[], kf.Domain]] = {
    "Interval": lambda: kf.Interval(0.0, 1.0),
    "Circle": lambda: kf.Circle(-math.pi, math.pi),
    "Line": lambda: kf.Line(-5.0, 5.0),
}


def ours(transform: kf.Transform, label: str) -> Candidate:
    """A transform of knotflow as a candidate."""
    domain = transform.domain
    return Candidate(
        name=f"knotflow {label}",
        forward=transform.forward,
        inverse=transform.inverse,
        n_parameters=transform.n_parameters,
        low=domain.low,
        high=domain.high,
        circular=isinstance(domain, kf.Circle),
        transform=transform,
    )


def bsplines(bins: int = 32, order: int = 4) -> list[Candidate]:
    """B-splines on every domain, in both parametrisations."""
    return [
        ours(
            kf.BSpline(bins, order, domain(), parametrisation=parametrisation),
            f"BSpline k={order} {name} {parametrisation}",
        )
        for name, domain in DOMAINS.items()
        for parametrisation in ("slopes", "paper")
    ]


def definition(candidate: Candidate) -> Candidate:
    """One of knotflow's own by its definition in torch, without kernels: what GPUs run, and other orders."""
    transform = candidate.transform
    if transform is None:
        raise ValueError(f"{candidate.name} is no transform of knotflow.")
    forward, inverse = transform.define_forward, transform.define_inverse
    return replace(candidate, name=f"{candidate.name}, in torch", forward=forward, inverse=inverse)


def rational_quadratics(bins: int = 32) -> list[Candidate]:
    """knotflow's own rational-quadratic splines."""
    return [ours(kf.RationalQuadratic(bins, domain()), f"RQ {name}") for name, domain in DOMAINS.items()]


def bumps() -> list[Candidate]:
    """knotflow's mixtures of bumps, which have no bins and no closed-form inverse."""
    return [ours(kf.Bump(domain=DOMAINS[name]()), f"Bump {name}") for name in ("Interval", "Circle")]


def zuko_rqs(bins: int, bound: float = 5.0) -> Candidate:
    """zuko's rational-quadratic spline on the line."""
    sizes = [bins, bins, bins - 1]

    def forward(x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        y, ladj = MonotonicRQSTransform(*raw.split(sizes, -1), bound=bound).call_and_ladj(x)
        return y, ladj

    def inverse(y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        x, ladj = MonotonicRQSTransform(*raw.split(sizes, -1), bound=bound).inv.call_and_ladj(y)
        return x, ladj

    return Candidate("zuko RQS line", forward, inverse, sum(sizes), -bound, bound)


def _functional(
    name: str, spline: Callable[..., Any], sizes: list[int], bound: float | None = None
) -> Candidate:
    """A spline that nflows and normflows have as a function: on [0, 1], or on the circle [-bound, bound]."""
    options = {} if bound is None else {"tails": "circular", "tail_bound": bound}
    low, high = (0.0, 1.0) if bound is None else (-bound, bound)

    def forward(x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        y, ladj = spline(x, *raw.split(sizes, -1), **options)
        return y, ladj

    def inverse(y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        x, ladj = spline(y, *raw.split(sizes, -1), inverse=True, **options)
        return x, ladj

    return Candidate(name, forward, inverse, sum(sizes), low, high, circular=bound is not None)


def peers(bins: int = 32) -> list[Candidate]:
    """The splines of other libraries."""
    return [
        zuko_rqs(bins),
        _functional("nflows RQS interval", rational_quadratic_spline, [bins, bins, bins + 1]),
        _functional("nflows cubic interval", cubic_spline, [bins, bins, 1, 1]),
        _functional("normflows RQS circle", normflows_spline, [bins, bins, bins], bound=math.pi),
    ]


def candidates(bins: int = 32) -> list[Candidate]:
    """Everything the speed benchmark compares; bumps are left out, their inverse takes minutes to compile."""
    ours = bsplines(bins)
    return [*ours, definition(ours[0]), *rational_quadratics(bins), *peers(bins)]


def a_few(bins: int = 32) -> list[Candidate]:
    """One variant of each of knotflow's splines, and all peers: for a quick look."""
    ours = bsplines(bins)
    return [*ours[::2], definition(ours[0]), rational_quadratics(bins)[0], *peers(bins)]
