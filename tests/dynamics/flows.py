"""Flows on which a molecule moves, smooth ones and ones whose force jumps; energies known exactly."""

import math

import torch
from torch import Tensor

import knotflow as kf
from knotflow.energies import Energy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.coordinates import internal_coordinates
from tests.analysis.generators import ANGLE, LENGTH, chain, widths
from tests.dynamics.wrong_flows import bent


def rough_generator(family: str) -> BoltzmannGenerator:
    """The chain of four atoms with a random density of a family of splines, as wide as that of the chain."""
    bond, angle = widths()
    domains: list[kf.Domain] = [kf.Line(LENGTH - 5 * bond, LENGTH + 5 * bond)] * 3
    domains += [kf.Line(ANGLE - 5 * angle, ANGLE + 5 * angle)] * 2
    torch.manual_seed(0)
    flow = kf.Flow.on(
        [*domains, kf.Circle(-math.pi, math.pi)],
        rounds=1,
        transform={"family": family, "bins": 8},
        conditioner={"hidden": [16]},
    ).double()
    bent(flow, 0.2)
    return BoltzmannGenerator(internal_coordinates(chain()), flow, chain().plain())


class Well(Energy):
    """Half the square of each coordinate, times a constant."""

    def __init__(self, constant: float, dim: int = 1) -> None:
        self.constant, self.domains = constant, (kf.Line(),) * dim

    def energy(self, x: Tensor) -> Tensor:
        return 0.5 * self.constant * x.square().sum(-1)


def on_a_ring(n: int, generator: torch.Generator) -> Tensor:
    """Points (n, 2) near the innermost ring of `Rings`."""
    angle = 2 * math.pi * torch.rand(n, generator=generator, dtype=torch.float64)
    radius = 1 + 0.03 * torch.randn(n, generator=generator, dtype=torch.float64)
    return 0.5 + torch.stack((radius * angle.cos(), radius * angle.sin()), -1) / (2 * math.pi)
