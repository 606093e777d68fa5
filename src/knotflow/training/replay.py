r"""Points that a Boltzmann generator makes for its own training, with what the energy says about them.

A flow near its target draws points $q \sim p$ with weights $w = e^{-u(q)} / p(q)$, where $u$ is the energy
in these coordinates. Few of them are in rare wells of turning torsions. So of many further points, which cost
little without their energies, those in rare wells are added. Each round of a refinement makes two kinds of
rows of all these:

- *samples of the target*: the points resampled by weight, with their forces. Points of rare wells are taken
  more often and count less. A part of them, larger the more are repeated, is moved by a short piece of exact
  dynamics. Chance decides which: moved by choice, they would no longer be samples of the target.
- *points as drawn*, of weight zero. Only their densities are matched: they show the flow where it puts mass
  that it should not. Points of wrong density, and of rare wells, are taken more often.

The rows of several rounds are kept (a replay buffer), so that a round with a few unlucky weights does not
decide alone.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from knotflow.dynamics.hybrid import HybridMove
from knotflow.dynamics.masses import Masses
from knotflow.flows import Flow
from knotflow.ranks import agreed, leads, piece_seed, spread
from knotflow.statistics import weights
from knotflow.statistics.wells import well_edges, well_numbers
from knotflow.training.checkpoint import read_checkpoint, write_checkpoint
from knotflow.training.data import joined, select
from knotflow.training.objectives import Batch
from knotflow.transforms import Circle

if TYPE_CHECKING:
    from knotflow.energies import MolecularEnergy
    from knotflow.flows.boltzmann import BoltzmannGenerator

Floats = NDArray[np.float64]

KEPT: Final = 5
"""Rounds whose rows are kept."""
TRUST: Final = 0.3
"""Weights enter with the largest power, at most 1, that leaves this effective sample size, as a share. So a
flow far from its target moves towards it by bounded steps."""
HEAVIEST: Final = 20.0
"""No weight is above this many times their mean (Ionides 2008, Truncated importance sampling)."""
EVEN: Final = 0.2
"""Wells with smaller shares of the target are taken more often, up to this share of the points together …"""
BOOST: Final = 20.0
"""… but no point more often than this many times its weight."""
CANDIDATES: Final = 6
"""Wells with few points get those of so many times as many draws …"""
ADDED: Final = 0.5
"""… the rarest wells first, until that adds this many points, relative to all."""
REJECTED: Final = 1 / 3
"""Points as drawn, relative to the number of samples of the target."""
LEAST_WRONG: Final = 0.05
"""Points as drawn are taken in proportion to the error of their log-density, from this error up to 1."""
WORST: Final = 100.0
"""Log-weights below the mean by more than this count as this."""
MOVED: Final = 0.3
"""Largest share of samples that are moved: trajectories are most of the work of a round."""
MOVE_STEPS: Final = 10
"""Steps of the trajectory that moves a point, of `MOVE_TIME` ps each."""
MOVE_TIME: Final = 0.001
PIECE: Final = 2000
"""Points computed at a time, to bound memory."""
FEWEST: Final = 100
"""Points of a well below which nothing is said of it."""
TRIMMED: Final = 1e-3
"""Share of the largest weights that is cut for a figure that does not hang on a few samples."""


class Pool(NamedTuple):
    """Rows to train on in a round."""

    batch: Batch | None
    """The rows of this round and of earlier ones; None if there are none worth training on."""
    figures: dict[str, float]
    """What the points of this round say about the flow, to be logged."""


DrawPool = Callable[[Flow, int, int], Pool]
"""Draws rows, given a flow, the number of the step at which they are first used, and a seed; with the same
arguments, and the same rounds before, it returns the same rows."""


@dataclass(frozen=True)
class Wells:
    """The wells of all turning torsions, found in data."""

    edges: dict[int, Floats]
    """Angles that separate the wells, for each coordinate that has more than one."""

    @classmethod
    def of(cls, flow: Flow, q: Tensor) -> Wells:
        """The wells in data (n, d); a torsion turns if its coordinate lives on a circle."""
        turning = [i for i, domain in enumerate(flow.domains) if isinstance(domain, Circle)]
        edges = {i: well_edges(q[:, i].cpu().numpy()) for i in turning}
        return cls({i: found for i, found in edges.items() if len(found)})

    def members(self, q: Tensor) -> list[NDArray[np.bool_]]:
        """For every well of every torsion, whether each of the points (n, d) is in it, (n,)."""
        numbers = ((well_numbers(q[:, i].cpu().numpy(), e), len(e)) for i, e in self.edges.items())
        return [number == well for number, count in numbers for well in range(count)]

    def inside(self, q: Tensor, wells: Collection[int]) -> NDArray[np.bool_]:
        """Whether each of the points (n, d) is in any of the wells with these numbers, (n,)."""
        members = self.members(q)
        found: NDArray[np.bool_] = np.zeros(len(q), bool)
        for well in wells:
            found |= members[well]
        return found


class Replay:
    r"""The rows of the last rounds, kept in a folder so that an interrupted training goes on with them.

    With internal coordinates $q$, their volume $L = \log|\partial x/\partial q|$ and the energy $u$ in kT,
    the density to be learned is $\log \pi = L(q) - u(x(q))$. The score is its gradient, as for frames of a
    simulation (`knotflow.training.frames.load_data`). Points of wrong handedness, with a stiff torsion
    more than half a turn from its middle, or with anything not finite have no weight.

    Args:
        generator: coordinates and handedness; its flow is not used.
        energy: energy of the molecule.
        masses: masses of the atoms, at the temperature of the energy.
        wells: the states that are watched, and evened out.
        folder: where rows are kept; `clear` removes it.
        n: points drawn in a round.
        offset: number of steps of earlier trainings with the same folder.
    """

    def __init__(
        self,
        generator: BoltzmannGenerator,
        energy: MolecularEnergy,
        masses: Masses,
        wells: Wells,
        folder: Path,
        *,
        n: int,
        offset: int = 0,
    ) -> None:
        self.generator, self.energy, self.wells = generator, energy, wells
        self.folder, self.n, self.offset = folder, n, offset
        self.move = HybridMove(energy, masses, MOVE_STEPS, MOVE_TIME)

    def __call__(self, flow: Flow, first: int, seed: int) -> Pool:
        """Draw the rows of a round, or read them if they were drawn before; add those of earlier rounds."""
        number = self.offset + first
        path = self._file(number)
        if not agreed(path.exists()):
            rows, figures = self.round(flow, seed + self.offset)  # later trainings draw other points
            if leads():
                write_checkpoint(path, {"rows": tuple(rows), "figures": figures})
        device = str(next(flow.parameters()).device)
        kept = agreed(self._kept(path, device) if leads() else [])
        return Pool(joined(*(Batch(*one["rows"]) for one in kept)), kept[-1]["figures"])

    def _kept(self, path: Path, device: str) -> list[dict[str, Any]]:
        """The last rounds up to the one in a file; older ones are removed."""
        found = sorted(other for other in self.folder.glob("round-*.rows") if other <= path)
        for old in found[:-KEPT]:
            old.unlink()
        return [read_checkpoint(file, device) for file in found[-KEPT:]]

    def clear(self) -> None:
        """Remove the rows of all rounds."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def round(self, flow: Flow, seed: int) -> tuple[Batch, dict[str, float]]:
        """The rows of one round, and its figures."""
        q, log_prob, score, log_target = self.drawn(flow, seed)
        random = torch.Generator(device=q.device).manual_seed(piece_seed(seed, self.n))
        log_w = (log_target - log_prob.double()).cpu().numpy()
        figures = self.figures(q, log_w)
        log_z = weights.log_mean_exp(log_w)
        if not math.isfinite(log_z):  # nothing can be learned from these points but that they are bad
            log_z = float(-log_prob.double().mean())
        if rare := self._rare(q):
            numbers = range(self.n + 1, self.n + 1 + (CANDIDATES - 1) * self._pieces)
            more = zip((q, log_prob, score, log_target), self._drawn(flow, seed, numbers, rare), strict=True)
            q, log_prob, score, log_target = map(torch.cat, more)
        log_w = (log_target - log_prob.double()).cpu().numpy()
        often = np.where(self.wells.inside(q, rare), CANDIDATES, 1)
        least = log_prob.double() + log_z - WORST
        drawn = Batch(
            q, torch.zeros_like(q), None, log_target.clamp(min=least).to(q), torch.zeros_like(q[:, 0])
        )
        weight = trusted(log_w - np.log(often))
        boost = self._boost(q, weight)
        wrong = np.clip(np.abs(log_w - log_z), LEAST_WRONG, 1.0)
        rows = self._rows(boost * wrong, round(REJECTED * self.n), random).to(q.device)
        drawn = select(drawn, rows)
        if not weight.any():
            return drawn, figures
        return joined(self._resampled(q, score, log_target, weight, boost, random), drawn), figures

    def drawn(self, flow: Flow, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Points of a flow and their log-densities, and what `judged` says; each piece has its own seed."""
        return self._drawn(flow, seed, range(self._pieces))

    @property
    def _pieces(self) -> int:
        """Pieces of a round."""
        return -(-self.n // PIECE)

    def _drawn(
        self, flow: Flow, seed: int, pieces: Sequence[int], wells: Collection[int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same for pieces by their numbers; only the points in these wells, if any are named."""
        device = next(flow.parameters()).device

        def draw(number: int) -> tuple[Tensor, ...]:
            random = torch.Generator(device=device).manual_seed(piece_seed(seed, number))
            place = (number - pieces[0]) % self._pieces
            q, log_prob = flow.sample_and_log_prob(min(PIECE, self.n - place * PIECE), generator=random)
            if wells is not None:
                inside = torch.from_numpy(self.wells.inside(q, wells)).to(device)
                q, log_prob = q[inside], log_prob[inside]
            return q, log_prob, *self._judged(q)

        parts = spread(draw, pieces)
        q, log_prob, score, log_target = map(torch.cat, zip(*parts, strict=True))
        return q, log_prob, score, log_target

    def _rare(self, q: Tensor) -> list[int]:
        """The numbers of the wells that need more points than those drawn, the rarest first."""
        members = self.wells.members(q)
        chosen, union = list[int](), np.zeros(len(q), bool)
        for well in sorted(range(len(members)), key=lambda well: int(members[well].sum())):
            together = union | members[well]
            if (CANDIDATES - 1) * together.mean() > ADDED:
                break
            chosen.append(well)
            union = together
        return chosen

    def judged(self, q: Tensor) -> tuple[Tensor, Tensor]:
        r"""Scores (n, d), in the dtype of the points, and $\log \pi$ (n,) in float64, of points (n, d)."""
        parts = spread(self._judged, q.split(PIECE))
        score, log_target = (torch.cat(part) for part in zip(*parts, strict=True))
        return score, log_target

    def _judged(self, q: Tensor) -> tuple[Tensor, Tensor]:
        placed: Any = torch.func.vjp(self.generator.coordinates.inverse, q.double())
        (x, ladj), pull_back = placed
        u, force = self.energy.energy_and_force(x)
        score: Tensor = pull_back((force, torch.ones_like(ladj)))[0].to(q)
        log_target = ladj - u
        usable = log_target.isfinite() & score.isfinite().all(-1) & self.generator.chirality.matches(x)
        usable &= (self.generator.unwound(q) == q).all(-1)
        return score, torch.where(usable, log_target, -math.inf)

    def figures(self, q: Tensor, log_w: Floats) -> dict[str, float]:
        """Effective sample size of points with log-weights, over all and in the well where it is least."""
        found = {"ess": effective_share(log_w), "ess_clipped": effective_share(weights.clipped(log_w))}
        found["ess_trimmed"] = effective_share(weights.clipped(log_w, TRIMMED))
        inside = [effective_share(log_w[own]) for own in self.wells.members(q) if own.sum() >= FEWEST]
        return found | ({"ess_least": min(inside)} if inside else {})

    def _boost(self, q: Tensor, weight: Floats) -> Floats:
        """How many times more often than by weight each point is taken, (n,); above 1 in rare wells."""
        boost, members = np.ones(len(weight)), self.wells.members(q)
        shares = [weight[own].sum() / max(weight.sum(), 1e-300) for own in members]
        wanted = EVEN / max(1, sum(0 < share < EVEN for share in shares))
        for own, share in zip(members, shares, strict=True):
            if 0 < share < wanted:
                boost[own] = np.maximum(boost[own], min(wanted / share, BOOST))
        return boost

    def _rows(self, weight: Floats, n: int, random: torch.Generator) -> Tensor:
        """Numbers of n rows by weight, increasing."""
        start = float(torch.rand((), generator=random, device=random.device))
        return torch.from_numpy(weights.systematic(weight, n, start))

    def _resampled(
        self,
        q: Tensor,
        score: Tensor,
        log_target: Tensor,
        weight: Floats,
        boost: Floats,
        random: torch.Generator,
    ) -> Batch:
        """Samples of the target: points by weight, rare wells more often, some of them moved."""
        rows = self._rows(weight * boost, self.n, random).to(q.device)
        less = torch.from_numpy(1 / boost).to(q)[rows]
        chosen = Batch(q[rows], score[rows], None, log_target[rows].to(q), less / less.mean())
        share = float((rows[1:] == rows[:-1]).double().mean()) if len(rows) > 1 else 0.0
        some = torch.rand(len(rows), generator=random, device=rows.device) < min(share, MOVED)
        if bool(some.any()):
            moved = self._moved(chosen.x[some], random)
            score, log_target = self.judged(moved)
            fine = log_target.isfinite()
            places = some.nonzero()[:, 0][fine]
            chosen.x[places], chosen.force[places] = moved[fine], score[fine]  # type: ignore[index]
            chosen.log_target[places] = log_target[fine].to(q)  # type: ignore[index]
        return chosen

    def _moved(self, q: Tensor, random: torch.Generator) -> Tensor:
        """Points after a trajectory of hybrid Monte Carlo, if it is accepted."""
        seed = int(torch.randint(2**62, (), generator=random, device=random.device))

        def move(piece: tuple[int, Tensor]) -> Tensor:
            number, part = piece
            own = torch.Generator(device=q.device).manual_seed(piece_seed(seed, number))
            x = self.generator.coordinates.inverse(part.double())[0]
            end, _, gain = self.move.propose(x, own)
            chance = torch.rand(len(x), generator=own, device=x.device, dtype=torch.float64)
            x = torch.where((chance.log() < gain)[:, None, None], end, x)
            return self.generator.internal(x)[0].to(q)

        return torch.cat(spread(move, list(enumerate(q.split(PIECE)))))

    def _file(self, number: int) -> Path:
        return self.folder / f"round-{number:08d}.rows"


def trusted(log_w: Floats) -> Floats:
    """Weights (n,) of which enough count: see `TRUST` and `HEAVIEST`; all zero if none is positive."""
    if not math.isfinite(weights.log_mean_exp(log_w)):
        return np.zeros_like(log_w)
    low, high = 0.0, 1.0
    power = 1.0
    if effective_share(log_w) < TRUST:
        for _ in range(30):
            power = (low + high) / 2
            low, high = (power, high) if effective_share(_power(log_w, power)) >= TRUST else (low, power)
        power = low
    tempered = _power(log_w, power)
    weight: Floats = np.exp(tempered - weights.log_mean_exp(tempered))
    return np.minimum(weight, HEAVIEST)


def effective_share(log_w: Floats) -> float:
    """Effective sample size of log-weights (n,) (`knotflow.statistics.weights`); 0 if all weights are 0."""
    share = weights.effective_share(log_w)
    return 0.0 if math.isnan(share) else share


def _power(log_w: Floats, power: float) -> Floats:
    """Log-weights times a power; a weight of zero stays zero."""
    return np.where(np.isfinite(log_w), power * np.where(np.isfinite(log_w), log_w, 0.0), -np.inf)
