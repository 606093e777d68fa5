"""Milliseconds of training steps and of sampling, with the paper's flow for alanine dipeptide.

The flow is the preset ``paper`` (B-splines of 32 bins, 380,982 weights), on a batch of random frames around
the minimum of the energy, with their forces. A *step* is the loss, its gradient with respect to the weights,
and Adam: *NLL*, or *NLL + forces*, where the squared error of the Cartesian forces is added with the weight
of the paper. *Sampling* draws molecules with their log-densities, positions included, without gradients.

The peer has the same couplings and networks, with the rational-quadratic splines of nflows on intervals and
of normflows on circles, 16 bins, as the paper's RQ model has. Both run eagerly. All calls are timed in turns,
see `benchmarks.timing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import knotflow as kf
from benchmarks.flow import FORCE_STEP, NLL_STEP, SAMPLE, flow_table, n_parameters, training
from benchmarks.peers import Candidate, peers
from benchmarks.report import Table, progress
from benchmarks.timing import Cell, time_in_turns
from knotflow.flows import Conditioner, Coupling, Flow
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.presets import paper_flow
from knotflow.physics import OpenMMEnergy, ala2
from knotflow.physics.coordinates import internal_coordinates
from knotflow.training import NLL, Batch, ForceMatching, Mix
from knotflow.training.molecules import cartesian_metric

FORCE_WEIGHT = 0.001
SPREAD = 0.003
"""Standard deviation of positions around the minimum, nm: forces are then about as large as at 300 K."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    batch: int = 128
    samples: int = 1_000
    repeats: int = 31
    seed: int = 0

    @classmethod
    def quick(cls) -> Settings:
        return cls(batch=8, samples=20, repeats=2)


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """The tables of training steps and of sampling, and a record of every cell."""
    batch = frames(settings)
    ours, peer = our_generator(settings.seed), peer_generator(settings.seed)
    cells = list(_cells("knotflow paper B-spline", True, ours, batch, settings))
    cells += list(_cells("same networks, RQ of nflows/normflows", False, peer, batch, settings))
    with progress(console) as bar:
        time_in_turns(bar, "generator", cells, settings.repeats)
    sizes = {cell.candidate: (_splines(g), n_parameters(g)) for cell, g in _owners(cells, ours, peer)}
    steps = [cell for cell in cells if cell.what != SAMPLE]
    samples = [cell for cell in cells if cell.what == SAMPLE]
    tables = [
        flow_table(f"ms per training step, batch {settings.batch}", steps, sizes),
        flow_table(f"ms to sample {settings.samples} molecules", samples, sizes),
    ]
    return tables, [cell.record() for cell in cells]


def frames(settings: Settings) -> Batch:
    """Internal coordinates and scores of frames around the minimum."""
    system = ala2()
    coordinates = internal_coordinates(system, "paper")
    generator = torch.Generator().manual_seed(settings.seed)
    x = torch.from_numpy(system.positions)
    x = x + SPREAD * torch.randn(settings.batch, *x.shape, generator=generator, dtype=x.dtype)
    with OpenMMEnergy(system, workers=1) as energy:
        force = energy.force(x)
    q, _ = coordinates(x)
    volume = torch.func.grad(lambda q: coordinates.inverse(q)[1].sum())(q)
    return Batch(q.float(), (coordinates.internal_force(x, force) + volume).float())


def our_generator(seed: int) -> BoltzmannGenerator:
    """The preset ``paper``."""
    system = ala2()
    coordinates = internal_coordinates(system, "paper")
    torch.manual_seed(seed)
    return BoltzmannGenerator(coordinates, paper_flow(coordinates).build(), system.plain())


def peer_generator(seed: int) -> BoltzmannGenerator:
    """The same networks with the splines of other libraries."""
    ours = our_generator(seed)
    interval, circle = (_named(name) for name in ("nflows RQS interval", "normflows RQS circle"))
    couplings = []
    for coupling in ours.flow.couplings:
        transforms: list[kf.Transform] = [
            PeerSpline(circle if isinstance(f.domain, kf.Circle) else interval, f.domain)
            for f in coupling.transforms
        ]
        conditioner = Conditioner(
            [coupling_domain(ours.flow, i) for i in coupling.read],
            sum(f.n_parameters for f in transforms),
            hidden=(64, 64),
            activation="sin",
            identity=False,
        )
        couplings.append(Coupling(coupling.transformed, transforms, coupling.read, conditioner))
    return BoltzmannGenerator(ours.coordinates, Flow(ours.flow.domains, couplings), ours.molecule)


def coupling_domain(flow: Flow, i: int) -> kf.Domain:
    """The standard domain of a coordinate."""
    return kf.Circle() if isinstance(flow.domains[i], kf.Circle) else kf.Interval()


class PeerSpline(kf.Transform):
    """A spline of another library, scaled to one of our standard domains."""

    def __init__(self, candidate: Candidate, domain: kf.Domain) -> None:
        self.candidate, self.domain = candidate, domain
        self.n_parameters, self.smoothness = candidate.n_parameters, 1
        self._stretch = candidate.length / domain.length

    def __repr__(self) -> str:
        return f"PeerSpline({self.candidate.name}, {self.domain})"

    def _forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        return self._through(self.candidate.forward, x, raw, 1)

    def _inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        return self._through(self.candidate.inverse, y, raw, -1)

    def _through(self, function: Callable[..., Any], x: Tensor, raw: Tensor, sign: int) -> Any:
        y, ladj = function(self.candidate.low + self._stretch * x, raw)
        return ((y - self.candidate.low) / self._stretch).clamp(0.0, 1.0), torch.exp(sign * ladj)


def _named(name: str) -> Candidate:
    return next(candidate for candidate in peers(16) if candidate.name == name)


def _cells(
    name: str, ours: bool, generator: BoltzmannGenerator, batch: Batch, settings: Settings
) -> list[Cell]:
    """Steps with both losses and sampling."""
    cells = []
    for what in (NLL_STEP, FORCE_STEP):
        cell = Cell(name, ours, what, "eager", len(batch.x))
        cell.call = training(generator.flow, loss(generator, what), batch.x, _given(batch.force))
        cells.append(cell)
    cell = Cell(name, ours, SAMPLE, "eager", settings.samples)
    cell.call = _timed(lambda: generator.sample_and_log_prob(settings.samples))
    return [*cells, cell]


def loss(generator: BoltzmannGenerator, what: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of the paper, of coordinates and scores."""
    weight = FORCE_WEIGHT if what == FORCE_STEP else 0.0
    matching = ForceMatching(cartesian_metric(generator.coordinates))
    mix = Mix(nll=(1 - weight, NLL()), force_matching=(weight, matching))
    return lambda x, force: mix(generator.flow, Batch(x, force))[0]


def _timed(function: Callable[[], Any]) -> Callable[[], list[float]]:
    def call() -> list[float]:
        began = time.perf_counter()
        function()
        return [time.perf_counter() - began]

    return call


def _owners(cells: list[Cell], ours: Any, peer: Any) -> list[tuple[Cell, BoltzmannGenerator]]:
    return [(cell, ours if cell.ours else peer) for cell in cells]


def _splines(generator: BoltzmannGenerator) -> int:
    return sum(len(coupling.transforms) for coupling in generator.flow.couplings)


def _given(value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError("frames without forces")
    return value
