"""Flows that are deliberately not their target, and exact frames of the chain of four atoms."""

import math

import numpy as np
import torch
from torch import Tensor

import knotflow as kf
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.coordinates import internal_coordinates
from tests.analysis.generators import ANGLE, LENGTH, chain, chain_generator, grids, widths


def bent(model: torch.nn.Module, size: float = 0.3, seed: int = 0) -> torch.nn.Module:
    """Change all weights at random; in place."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += size * torch.randn(weight.shape, generator=random, dtype=weight.dtype)
    return model


def bent_chain_generator(size: float = 0.3) -> BoltzmannGenerator:
    """Not the chain's density, but near enough to it that proposals are accepted."""
    torch.manual_seed(0)
    model = chain_generator().double()
    bent(model, size)
    return model.requires_grad_(False)


def boxed_chain_generator(reach: float) -> BoltzmannGenerator:
    """Uniform on boxes that reach this many standard deviations of the force field to either side."""
    bond, angle = widths()
    torch.manual_seed(0)
    domains = [kf.Interval(LENGTH - reach * bond, LENGTH + reach * bond)] * 3
    domains += [kf.Interval(ANGLE - reach * angle, ANGLE + reach * angle)] * 2
    flow = kf.Flow.on(
        [*domains, kf.Circle(-math.pi, math.pi)], rounds=1, transform={"bins": 4}, conditioner={"hidden": [4]}
    )
    return (
        BoltzmannGenerator(internal_coordinates(chain()), flow, chain().plain())
        .double()
        .requires_grad_(False)
    )


def exact_chain(n: int, seed: int = 0) -> Tensor:
    """Independent frames (n, 4, 3) of the chain's Boltzmann distribution, by inverting sums over grids."""
    random = np.random.default_rng(seed)
    b, a, density_b, density_a = grids()

    def draw(x: np.ndarray, density: np.ndarray, k: int) -> np.ndarray:
        sums = np.cumsum(density)
        return np.interp(random.random((n, k)) * sums[-1], sums, x)

    torsion = random.uniform(-math.pi, math.pi, (n, 1))
    q = np.concatenate((draw(b, density_b, 3), draw(a, density_a, 2), torsion), axis=1)
    return internal_coordinates(chain()).inverse(torch.tensor(q))[0]
