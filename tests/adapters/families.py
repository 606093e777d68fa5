"""Every family on every domain it knows, and a base distribution for each."""

import torch
from torch.distributions import Distribution, Normal, Uniform

import knotflow as kf
from tests.transforms.registry import DOMAINS, registered

FAMILIES: dict[str, kf.Transform] = {
    **{
        key.removesuffix("-n5"): f
        for name in kf.transforms.FAMILIES
        for key, f in registered(name, 5).items()
    },
    **{f"bspline-paper-{name}": kf.BSpline(3, 5, d, parametrisation="paper") for name, d in DOMAINS.items()},
    "bspline-phase": kf.BSpline(5, 4, DOMAINS["circle"], phase=True),
    "affine": kf.Affine(),
}


def on_real_line(f: kf.Transform) -> bool:
    return isinstance(f.domain, kf.Line) or isinstance(f, kf.Affine)


def base_of(f: kf.Transform, *shape: int) -> Distribution:
    """Normal on the real line, otherwise uniform; of the given batch shape, in float64."""
    if on_real_line(f):
        return Normal(torch.zeros(shape, dtype=torch.float64), 1.0)
    low, high = (torch.full(shape, end, dtype=torch.float64) for end in (f.domain.low, f.domain.high))
    return Uniform(low, high)


def parameters(f: kf.Transform, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, f.n_parameters, generator=generator, dtype=torch.float64)


def points(f: kf.Transform, *shape: int, seed: int = 1) -> torch.Tensor:
    """Random points all over the domain, on the real line also outside ``[low, high]``."""
    generator = torch.Generator().manual_seed(seed)
    low, high = (-4.0, 4.0) if on_real_line(f) else (f.domain.low, f.domain.high)
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
