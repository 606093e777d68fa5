"""Named Boltzmann generators; all laws are tested on all of them. Weights are random."""

import math
from functools import cache

import torch
from torch import Tensor

import knotflow as kf
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.coordinates import internal_coordinates
from tests.molecules.molecules import frames, molecule

BOND, ANGLE = kf.Interval(0.05, 0.3), kf.Interval(0.15 * math.pi, math.pi)
TURN = kf.Circle(-math.pi, math.pi)
NAMES = {
    "ala2, circles": ("ala2", "intervals", "circles"),
    "ala2, lines": ("ala2", "lines", "lines"),
    "ring": ("P", "lines", "both"),  # proline
    "no stereocentre": ("G", "intervals", "both"),
}


@cache
def _built(name: str) -> BoltzmannGenerator:
    which, stretches, torsions = NAMES[name]
    system = molecule(which)
    coordinates = internal_coordinates(system)
    q = coordinates(torch.tensor(system.positions))[0].tolist()
    domains: list[kf.Domain] = []
    for i, value in enumerate(q):
        if i >= coordinates.torsions.start:
            turns = torsions == "circles" or (torsions == "both" and i % 2)
            domains.append(TURN if turns else kf.Line(value - 1.5, value + 1.5))
        elif i >= coordinates.angles.start:
            domains.append(ANGLE if stretches == "intervals" else kf.Line(value - 0.5, value + 0.5))
        else:
            domains.append(BOND if stretches == "intervals" else kf.Line(value - 0.04, value + 0.04))
    torch.manual_seed(list(NAMES).index(name))
    flow = kf.Flow.on(domains, rounds=1, transform={"bins": 4}, conditioner={"hidden": [8]}).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return BoltzmannGenerator(coordinates, flow, system.plain())


def make(name: str, dtype: torch.dtype = torch.float64) -> BoltzmannGenerator:
    """The generator of that name; a new one at every call."""
    built = _built(name)
    flow = built.flow.config.build().to(dtype)
    flow.load_state_dict(built.flow.state_dict())
    return BoltzmannGenerator(internal_coordinates(molecule(NAMES[name][0])), flow, built.molecule)


def positions(model: BoltzmannGenerator, n: int, seed: int = 0) -> Tensor:
    """Shaken and turned copies of the molecule's structure, in the dtype of the model."""
    name = str(model.molecule["name"])
    return frames(molecule(name), n, seed=seed).to(next(model.parameters()))
