"""Named instances of every family; all laws are tested on all of them. Registered families are found."""

import math
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations, product
from typing import Any

import torch

import knotflow as kf
from knotflow.transforms import FAMILIES, Chain

DOMAINS = {
    "interval": kf.Interval(-1.0, 2.0),
    "circle": kf.Circle(-math.pi, math.pi),
    "line": kf.Line(-3.0, 2.0),
}
ORDERS = (3, 4, 5, 6, 7)
BINS = (1, 2, 3, 5, 8, 33, 64)


def pairwise_cover(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Few combinations in which every two values of two factors occur together.

    All together would be too many to test, and a fault that takes three factors to show is rare. Greedy: the
    next combination is the first that has most pairs which are still missing.
    """

    def pairs(choice: tuple[Any, ...]) -> set[tuple[Any, ...]]:
        return set(combinations(enumerate(choice), 2))

    everything = list(product(*factors))
    missing = set().union(*map(pairs, everything))
    cover = []
    while missing:
        best = max(everything, key=lambda choice: len(pairs(choice) & missing))
        cover.append(best)
        missing -= pairs(best)
    return cover


BSPLINES = {
    f"bspline-{parametrisation}-{name}-k{order}-n{bins}": kf.BSpline(
        bins, order, DOMAINS[name], parametrisation=parametrisation
    )
    for parametrisation, name, order, bins in [
        *pairwise_cover(("slopes", "paper"), tuple(DOMAINS), ORDERS, BINS),
        # The usual order with few bins, which tests ask for by name, and as many as are common.
        *product(("slopes", "paper"), DOMAINS, (4,), (3, 8)),
    ]
}
PHASES = {
    f"bspline-phase-k{order}-n{bins}": kf.BSpline(bins, order, DOMAINS["circle"], phase=True)
    for order in ORDERS
    for bins in (1, 8)
}


def registered(name: str, *sizes: int) -> dict[str, kf.Transform]:
    """A registered family on every domain that it takes, in some sizes."""
    family, found = FAMILIES[name], {}
    for (where, domain), size in product(DOMAINS.items(), sizes if family.size else (0,)):
        with suppress(ValueError):  # not on this domain
            options = {family.size: size} if family.size else {}
            found[f"{name}-{where}-n{size}"] = family.kind(domain=domain, **options)
    assert found, f"{name} takes no domain"
    return found


RATIONAL_QUADRATICS = registered("rq", 1, 2, 8, 33)
BUMPS = registered("bump", 1, 3, 8)
OTHERS = {
    key: f
    for name in FAMILIES
    if name not in ("bspline", "rq", "bump")
    for key, f in registered(name, 1, 3, 8).items()
}
CHAINS = {
    "chain-affine-k4-n8": Chain([kf.Affine(), kf.BSpline(8, 4, DOMAINS["line"])]),
    "chain-spline-then-affine": Chain([kf.BSpline(5, 5, DOMAINS["line"]), kf.Affine()]),
    "chain-affine-twice": Chain([kf.Affine(), kf.Affine(max_slope=10.0)]),
    "chain-line-k4-n3": Chain([kf.BSpline(n, 4, DOMAINS["line"]) for n in (3, 2)]),
    "chain-interval-k4-n3": Chain([kf.BSpline(3, 4, DOMAINS["interval"]), kf.Bump(2, DOMAINS["interval"])]),
    "chain-circle-k4-n3": Chain([kf.BSpline(n, 4, DOMAINS["circle"]) for n in (3, 5)]),
    "chain-phase-k4-n8": Chain([kf.BSpline(8, 4, DOMAINS["circle"], phase=True)] * 2),
    "chain-of-a-chain": Chain(
        [kf.BSpline(4, 4, DOMAINS["line"]), Chain([kf.Affine(), kf.RationalQuadratic(4, DOMAINS["line"])])]
    ),
}
REGISTRY: dict[str, kf.Transform] = {
    **BSPLINES,
    **PHASES,
    **RATIONAL_QUADRATICS,
    **BUMPS,
    **OTHERS,
    **CHAINS,
    "affine": kf.Affine(),
}


def parts(f: kf.Transform) -> list[kf.Transform]:
    """The transforms that a chain consists of; of others the transform itself."""
    return [inner for part in f.parts for inner in parts(part)] if isinstance(f, Chain) else [f]


def rotates(f: kf.Transform) -> bool:
    """Whether the ends of a circle are free to move."""
    return any(getattr(part, "phase", False) for part in parts(f))


def keeps_ends(f: kf.Transform) -> bool:
    """Whether every map sends both ends of the domain to themselves."""
    return not rotates(f) and all(math.isfinite(part.domain.low) for part in parts(f))


def draw(
    f: kf.Transform, n: int, scale: float = 1.0, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random points all over the domain (ends included) and random raw parameters."""
    generator = torch.Generator().manual_seed(seed)
    low, high = (f.domain.low, f.domain.high) if math.isfinite(f.domain.low) else (-4.0, 4.0)
    x = low + (high - low) * torch.rand(n, generator=generator, dtype=torch.float64)
    x[:2] = torch.tensor([low, high])
    raw = scale * torch.randn(n, f.n_parameters, generator=generator, dtype=torch.float64)
    return x.to(dtype).clamp(low, high), raw.to(dtype)
