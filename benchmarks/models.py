"""Boltzmann generators to be timed, and frames of molecules with their scores.

* `paper_generator`: the preset ``paper`` for alanine dipeptide.
* `peer_generator`: the same couplings and networks with the splines of other libraries.
* `best_generator`: the preset ``best`` for any molecule.
* `with_trivial_maps`: the couplings and networks of a generator with maps that cost next to nothing. What its
  steps take is what networks and optimiser take: no kernel can be faster than none.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import knotflow as kf
from benchmarks.flow import FORCE_STEP
from benchmarks.peers import Candidate, peers
from knotflow.energies import OpenMMEnergy
from knotflow.flows import Conditioner, Coupling, Flow
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.presets import molecular_flow, paper_flow
from knotflow.geometry import InternalCoordinates
from knotflow.molecules import MolecularSystem, ala2
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.training import NLL, Batch, ForceMatching, Mix
from knotflow.training.molecules import FORCE_LIMIT, FORCE_SHARE, cartesian_metric, standardised_metric
from knotflow.transforms import SlopeTransform

Loss = Callable[[Tensor, Tensor], Tensor]
"""``(coordinates, scores) -> loss`` of one generator."""
PAPER_FORCE_WEIGHT = 0.001
SPREAD = 0.003
"""Standard deviation of positions around the minimum, nm: forces are then about as large as at 300 K."""
TINY = 1e-6
"""Log-slope of a trivial map for a sum of raw parameters of 1."""


def frames(system: MolecularSystem, kind: Literal["paper", "bonds"], count: int, seed: int) -> Batch:
    """Internal coordinates and scores of random frames around the minimum."""
    coordinates = internal_coordinates(system, kind)
    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy(system.positions)
    x = x + SPREAD * torch.randn(count, *x.shape, generator=generator, dtype=x.dtype)
    with OpenMMEnergy(system, workers=1) as energy:
        force = energy.force(x)
    q, _ = coordinates(x)
    volume = torch.func.grad(lambda q: coordinates.inverse(q)[1].sum())(q)
    return Batch(q.float(), (coordinates.internal_force(x, force) + volume).float())


def paper_generator(seed: int) -> BoltzmannGenerator:
    """The preset ``paper``."""
    system = ala2()
    coordinates = internal_coordinates(system, "paper")
    torch.manual_seed(seed)
    return BoltzmannGenerator(coordinates, paper_flow(coordinates).build(), system.plain())


def paper_loss(generator: BoltzmannGenerator, what: str) -> Loss:
    """The loss of the paper: likelihood, and errors of forces on atoms if ``what`` includes them."""
    weight = PAPER_FORCE_WEIGHT if what == FORCE_STEP else 0.0
    matching = ForceMatching(cartesian_metric(generator.coordinates))
    mix = Mix(nll=(1 - weight, NLL()), force_matching=(weight, matching))
    return lambda x, force: mix(generator.flow, Batch(x, force))[0]


def best_generator(system: MolecularSystem, q: Tensor, seed: int) -> BoltzmannGenerator:
    """The preset ``best``, fitted to frames around the minimum, as if torsions that can turn had done so."""
    coordinates = internal_coordinates(system, "bonds")
    generator = torch.Generator().manual_seed(seed)
    q = q.clone()
    for column in turning(system, coordinates):
        q[:, column] = (2 * torch.rand(len(q), generator=generator) - 1) * math.pi
    torch.manual_seed(seed)
    return BoltzmannGenerator(coordinates, molecular_flow(coordinates, q).build(), system.plain())


def best_loss(generator: BoltzmannGenerator, score: Tensor) -> Loss:
    """The loss of the preset ``best``: likelihood, and standardised errors of scores."""
    matching = ForceMatching(standardised_metric(generator.flow, score), FORCE_LIMIT)
    weight = FORCE_SHARE * 0.5 * generator.flow.dim
    mix = Mix(nll=(1.0, NLL()), force_matching=(weight, matching))
    return lambda x, force: mix(generator.flow, Batch(x, force))[0]


def turning(system: MolecularSystem, coordinates: InternalCoordinates) -> list[int]:
    """Coordinates that are torsions about single bonds of a peptide without rings.

    An atom with four neighbours is at an end of such a bond, but not of an amide's. Of the torsions about a
    bond the one along a chain counts; the others keep the substituents of an atom apart.
    """
    bonds = {frozenset(map(int, pair)) for pair in system.bonds}
    neighbours = [sum(atom in bond for bond in bonds) for atom in range(system.n_atoms)]
    return [
        coordinates.torsions.start + number
        for number, (_, a, b, last) in enumerate(coordinates.zmatrix.rows)
        if frozenset((b, last)) in bonds and max(neighbours[a], neighbours[b]) == 4
    ]


# ---- trivial maps


@dataclass(frozen=True)
class Trivial(SlopeTransform):
    r"""The identity, said to have the log-slope $10^{-6} \sum_i \theta_i$ of its raw parameters.

    This is no honest density. But its score and the gradient of that go through all that gives the raw
    parameters, as with any other map, and it takes as many of them as the transform it stands in for.
    """

    instead: kf.Transform

    def __post_init__(self) -> None:
        self._derive(domain=self.instead.domain, n_parameters=self.instead.n_parameters)
        self._derive(smoothness=math.inf, kernel=TrivialKernel())

    def _forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.exp(TINY * raw.sum(-1))

    def _inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        return self._forward(y, raw)


class TrivialKernel:
    """`Trivial` without the detour over the slope and its logarithm: as cheap as it can be."""

    def takes(self, x: Tensor, raw: Tensor) -> bool:
        return True

    def forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        return x, TINY * raw.sum(-1)

    def inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        return y, -TINY * raw.sum(-1)


def with_trivial_maps(generator: BoltzmannGenerator) -> BoltzmannGenerator:
    """A generator with copies of the networks of another, and trivial maps."""
    couplings = [
        Coupling(c.transformed, [Trivial(f) for f in c.transforms], c.read, copy.deepcopy(c.conditioner))
        for c in generator.flow.couplings
    ]
    flow = generator.flow.with_couplings(couplings)
    return BoltzmannGenerator(generator.coordinates, flow, generator.molecule)


# ---- maps of other libraries


def peer_generator(seed: int) -> BoltzmannGenerator:
    """The couplings and networks of the preset ``paper`` with the splines of other libraries."""
    ours = paper_generator(seed)
    interval, circle = (_named(name) for name in ("nflows RQS interval", "normflows RQS circle"))
    couplings = []
    for coupling in ours.flow.couplings:
        transforms: list[kf.Transform] = [
            PeerSpline(circle if isinstance(f.domain, kf.Circle) else interval, f.domain)
            for f in coupling.transforms
        ]
        conditioner = Conditioner(
            [_standard_domain(ours.flow, i) for i in coupling.read],
            sum(f.n_parameters for f in transforms),
            hidden=(64, 64),
            activation="sin",
            identity=False,
        )
        couplings.append(Coupling(coupling.transformed, transforms, coupling.read, conditioner))
    return BoltzmannGenerator(ours.coordinates, Flow(ours.flow.domains, couplings), ours.molecule)


def _standard_domain(flow: Flow, i: int) -> kf.Domain:
    return kf.Circle() if isinstance(flow.domains[i], kf.Circle) else kf.Interval()


@dataclass(frozen=True)
class PeerSpline(SlopeTransform):
    """A spline of another library, scaled to one of our standard domains."""

    candidate: Candidate
    domain: kf.Domain

    def __post_init__(self) -> None:
        self._derive(n_parameters=self.candidate.n_parameters, smoothness=1)
        self._derive(_stretch=self.candidate.length / self.domain.length)

    def _forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        return self._through(self.candidate.forward, x, raw, 1)

    def _inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        return self._through(self.candidate.inverse, y, raw, -1)

    def _through(self, function: Callable[..., Any], x: Tensor, raw: Tensor, sign: int) -> Any:
        y, ladj = function(self.candidate.low + self._stretch * x, raw)
        return ((y - self.candidate.low) / self._stretch).clamp(0.0, 1.0), torch.exp(sign * ladj)


def _named(name: str) -> Candidate:
    return next(candidate for candidate in peers(16) if candidate.name == name)


def splines(generator: BoltzmannGenerator) -> int:
    """How many maps of one variable a generator has."""
    return sum(len(coupling.transforms) for coupling in generator.flow.couplings)


def scores(batch: Batch) -> Tensor:
    """What `frames` has put there."""
    if batch.force is None:
        raise ValueError("frames without forces")
    return batch.force
