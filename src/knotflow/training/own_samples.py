r"""Training data from the model itself: its samples, reweighted to the Boltzmann distribution.

A flow near its target draws points $q \sim p$ with weights $w = e^{-u(q)} / p(q)$, where $u$ is the energy
in these coordinates. The weights turn averages over the points into averages over the target. Resampled by
weight, the points are data like the frames of a simulation, with exact forces. Their number is unlimited, so
they cannot be memorised. What the flow never draws is missing: they supplement frames, but replace none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from knotflow.flows import Flow
from knotflow.statistics import weights
from knotflow.training.objectives import Batch

if TYPE_CHECKING:
    from knotflow.energies import MolecularEnergy
    from knotflow.flows.boltzmann import BoltzmannGenerator

POOL: Final = 20_000
"""Samples drawn at a time."""
LEAST: Final = 0.05
"""Smallest effective sample size, as a share, at which samples are used; below, only a few would count."""
PIECE: Final = 2000
"""Samples computed at a time, to bound memory."""


class Pool(NamedTuple):
    """Samples to train on."""

    batch: Batch | None
    """Points and scores, resampled; None if they are not worth training on."""
    ess: float
    """Effective sample size of the weights before resampling, as a share."""


DrawPool = Callable[[Flow, int], Pool]
"""Draws a pool of samples from a flow and a seed; the same flow and seed give the same pool."""


class OwnSamples:
    r"""Draws samples of a Boltzmann generator in training, with scores, and resamples them by their weights.

    With internal coordinates $q$, their volume $L = \log|\partial x/\partial q|$ and the energy $u$ in kT,
    $\log w = L(q) - u(x(q)) - \log p(q)$. The score is $-\partial u/\partial q + \partial L/\partial q$, as
    for frames of a simulation (`knotflow.training.molecules.load_data`). Samples of wrong handedness, with a
    stiff torsion more than half a turn from its middle, or with anything not finite have no weight.

    Args:
        generator: coordinates and handedness; its flow is not used.
        energy: energy of the molecule.
        n: number of samples.
        least: effective sample size, as a share, below which there is no batch.
    """

    def __init__(
        self, generator: BoltzmannGenerator, energy: MolecularEnergy, n: int = POOL, least: float = LEAST
    ) -> None:
        self.generator, self.energy, self.n, self.least = generator, energy, n, least

    def __call__(self, flow: Flow, seed: int) -> Pool:
        """Draw samples of a flow and resample them by weight."""
        seeded = torch.Generator(device=next(flow.parameters()).device).manual_seed(seed)
        start = float(torch.rand((), generator=seeded, device=seeded.device))
        parts = []
        for first in range(0, self.n, PIECE):
            q, log_prob = flow.sample_and_log_prob(min(PIECE, self.n - first), generator=seeded)
            parts.append((q, *self.weighted(q, log_prob)))
        q, score, log_weight = (torch.cat(part) for part in zip(*parts, strict=True))
        weight = truncated(log_weight)
        ess = effective_share(weight.log())
        if ess < self.least:
            return Pool(None, ess)
        rows = torch.from_numpy(weights.systematic(weight.cpu().numpy(), self.n, start)).to(weight.device)
        return Pool(Batch(q[rows], score[rows]), ess)

    def weighted(self, q: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (n, d), in the dtype of the points, and log-weights (n,) in float64, of points (n, d)."""
        placed: Any = torch.func.vjp(self.generator.coordinates.inverse, q.double())
        (x, ladj), pull_back = placed
        u, force = self.energy.energy_and_force(x)
        score: Tensor = pull_back((force, torch.ones_like(ladj)))[0].to(q)
        log_weight = ladj - u - log_prob.double()
        usable = log_weight.isfinite() & score.isfinite().all(-1) & self.generator.chirality.matches(x)
        usable &= (self.generator.unwound(q) == q).all(-1)
        return score, torch.where(usable, log_weight, -math.inf)


def truncated(log_weight: Tensor) -> Tensor:
    r"""Weights (n,) of mean 1 or less, from their logarithms; none is above $\sqrt n$ times their mean.

    The bound keeps a few samples from outweighing all others, and matters less as n grows (Ionides 2008,
    Truncated importance sampling, J. Comput. Graph. Stat. 17). If no weight is positive, all are 0.
    """
    n = len(log_weight)
    log_mean = log_weight.logsumexp(0) - math.log(n)
    if not log_mean.isfinite():
        return torch.zeros_like(log_weight)
    return (log_weight - log_mean).exp().clamp(max=math.sqrt(n))


def effective_share(log_weight: Tensor) -> float:
    """Effective sample size of log-weights (n,) (`knotflow.statistics.weights`); 0 if all weights are 0."""
    share = weights.effective_share(log_weight.double().cpu().numpy())
    return 0.0 if math.isnan(share) else share
