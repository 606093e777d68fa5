"""What pictures of a Boltzmann generator show: frames of data and samples, with their forces, and its maps.

The numbers of an evaluation need no more than a few columns; pictures need the structures too. Samples are
those of `knotflow.analysis.evaluation.evaluate` with the same seed and number.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from knotflow.analysis import free_energy, measures
from knotflow.analysis.frame_table import (
    Clock,
    Observed,
    Progress,
    check_same_molecule,
    held_out,
    like,
    observe_data,
    observe_samples,
)
from knotflow.analysis.measures import Measure, Measures
from knotflow.energies.energy import MolecularEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.system import MolecularSystem
from knotflow.statistics import weights
from knotflow.storage import trajectory
from knotflow.transforms import Circle

Floats = NDArray[np.float64]

FRAMES: Final = 10_000
"""Of longer data, so many evenly spaced frames are shown."""
FORCES: Final = 1_000
"""Of more frames, the forces of so many are shown."""
POINTS: Final = 25
"""Frames whose maps are shown, as in figure 2 of Hong & Chun (AAAI 2023)."""
GRID: Final = 401
"""Points at which a map is evaluated."""


@dataclass(frozen=True, eq=False)
class Portrait:
    """Frames of data, or samples."""

    seen: Observed
    """Densities, energies and torsions of all frames."""
    positions: NDArray[np.float32]
    """In nm, shape ``(n, atoms, 3)``."""
    coordinates: Floats
    """Internal coordinates as the flow takes them, in nm and rad, shape ``(n, d)``."""
    true_force: Floats
    """Of the force field in kT/nm, for evenly spaced frames that the flow has a density for."""
    flow_force: Floats
    """Of the flow, for the same frames."""

    def __len__(self) -> int:
        return len(self.seen)

    @property
    def unexplained(self) -> float:
        r"""Share of the forces that the flow has not learned, $\sum |f - f_0|^2 / \sum |f_0|^2$."""
        error = float(((self.flow_force - self.true_force) ** 2).sum())
        total = float((self.true_force**2).sum())
        return error / total if total > 0 else math.nan


@dataclass(frozen=True, eq=False)
class LearnedMap:
    """The map of one coordinate in one coupling, at several frames, in standard coordinates."""

    name: str
    """Of the coordinate, as ``torsion 4-6-8-14``."""
    coupling: int
    """Which of the couplings, from 1."""
    x: Floats
    """Shape ``(points,)``."""
    y: Floats
    """Images, shape ``(frames, points)``; NaN where a line would cross the seam of a circle."""
    slopes: Floats
    """Shape ``(frames, points)``."""


def of_data(
    generator: BoltzmannGenerator,
    path: str | Path,
    energy: MolecularEnergy,
    *,
    split: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Portrait:
    """Evenly spaced frames of a trajectory; if the model was trained on it, of those that were held back.

    Raises:
        ValueError: if the data are of another molecule, temperature or force field, or without frames.
        OSError: if the file is missing or damaged.
    """
    info = trajectory.open_info(path)
    check_same_molecule(MolecularSystem.parse(generator.molecule), info.system)
    held = held_out(split, path, info.n_frames)
    rows = np.arange(info.n_frames) if held is None else np.flatnonzero(held)
    if len(rows) == 0:
        raise ValueError(f"{path} holds no frames yet; report when it has some.")
    selected = np.zeros(info.n_frames, dtype=bool)
    selected[rows[spaced(len(rows), FRAMES)]] = True
    seen = observe_data(generator, path, energy, selected, progress or _silent, Clock())
    positions, forces, first = [], [], 0
    for frames in trajectory.pieces(path):
        chosen = frames[selected[first : first + len(frames)]]
        positions.append(chosen.positions)
        forces.append(chosen.forces / info.system.kT)
        first += len(frames)
    return _portrait(generator, seen, np.concatenate(positions), np.concatenate(forces))


def of_samples(
    generator: BoltzmannGenerator,
    energy: MolecularEnergy,
    n: int,
    seed: int,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Portrait:
    """The samples that an evaluation draws; it can be given those in `Portrait.seen`, and the clock."""
    keeping = _Keeping(energy)
    seen = observe_samples(generator, keeping, n, seed, progress or _silent, clock or Clock())
    return _portrait(generator, seen, np.concatenate(keeping.positions), np.concatenate(keeping.forces))


def without_data(drawn: Observed, seed: int) -> Measures:
    """Those measures of an evaluation that need samples only; log Z is that of importance sampling."""
    log_w = measures.log_weights(drawn)
    z = free_energy.importance(log_w)
    nothing = replace(
        drawn,
        **{name: column[:0] for name, column in vars(drawn).items() if name != "torsions"},
        torsions={residue: angles[:0] for residue, angles in drawn.torsions.items()},
    )
    no_block = np.empty(0, dtype=np.intp)
    found = {
        "reverse_kl": Measure.of("KL(flow ‖ target)", free_energy.reverse_kl(z, log_w), "nats"),
        "log_z": Measure.of("log Z, importance sampling", z.estimate(), "nats"),
        **measures.efficiency(log_w, seed),
        **measures.forces(nothing, drawn, no_block, seed),
        **measures.counts(nothing, drawn),
    }
    return {key: measure for key, measure in found.items() if math.isfinite(measure.value)}


def reweighted(drawn: Observed) -> Floats:
    """Normalised weights of samples, the largest clipped; NaN if all are zero."""
    return weights.normalised(weights.clipped(measures.log_weights(drawn)))


@torch.no_grad()
def learned_maps(
    generator: BoltzmannGenerator, coordinates: Floats, points: int = POINTS
) -> list[LearnedMap]:
    """For a torsion, an angle and a bond each: the map that depends most on the other coordinates.

    Args:
        generator: The generator.
        coordinates: Internal coordinates of frames, shape ``(n, d)``, inside of its intervals.
        points: How many of the frames to take, evenly spaced.
    """
    flow, like_q = copy.deepcopy(generator.flow).double(), generator.coordinates
    q = torch.from_numpy(coordinates[spaced(len(coordinates), points)]).double()
    kinds = {"torsion": like_q.torsions, "angle": like_q.angles, "bond": like_q.bonds}
    best: dict[str, tuple[float, LearnedMap]] = {}
    for number, (coupling, z, _) in enumerate(flow.layers(q), 1):
        for i, f, raw in zip(coupling.transformed, coupling.transforms, coupling.raw(z), strict=True):
            kind = next(kind for kind, part in kinds.items() if part.start <= i < part.stop)
            x = torch.linspace(f.domain.low, f.domain.high, GRID, dtype=torch.float64)
            y, ladj = f.forward(x.expand(len(q), -1), raw.unsqueeze(-2))
            # Of log-slopes, which tell a shift of a circle from a change of the density.
            spread = float(ladj.std(0, correction=0).mean())
            if kind not in best or spread > best[kind][0]:
                image = _broken(y, f.domain.length) if isinstance(f.domain, Circle) else y
                found = LearnedMap(like_q.names[i], number, x.numpy(), image.numpy(), ladj.exp().numpy())
                best[kind] = (spread, found)
    return [best[kind][1] for kind in kinds if kind in best]


def _portrait(
    generator: BoltzmannGenerator,
    seen: Observed,
    positions: NDArray[np.float32],
    forces: NDArray[np.floating[Any]],
) -> Portrait:
    own = like(generator)
    with torch.no_grad():
        parts = torch.from_numpy(positions).split(FRAMES)
        q = torch.cat([generator.internal(part.to(own))[0].double().cpu() for part in parts])
        usable = np.flatnonzero(np.isfinite(seen.log_prob) & np.isfinite(forces).all((1, 2)))
        rows = usable[spaced(len(usable), FORCES)]
        learned = generator.force(torch.from_numpy(positions[rows]).to(own)).double().cpu().numpy()
    finite = np.isfinite(learned).all((1, 2))
    true = forces[rows].astype(np.float64)
    return Portrait(seen, positions, q.numpy(), true[finite], learned[finite])


def spaced(n: int, most: int) -> NDArray[np.intp]:
    """Numbers of at most so many of n rows, evenly spaced."""
    return np.arange(n) if n <= most else np.arange(most) * n // most


def _broken(y: Tensor, length: float) -> Tensor:
    """Images of a circle with a NaN before each fall by more than half of its length: the seam."""
    falls = torch.diff(y, dim=-1, append=y[..., -1:]) < -0.5 * length
    return torch.where(falls, torch.nan, y)


def _silent(doing: str, done: int, total: int) -> None:
    pass


class _Keeping(MolecularEnergy):
    """An energy that keeps the positions it was asked about and the forces it gave."""

    def __init__(self, energy: MolecularEnergy) -> None:
        self.inner, self.n_atoms, self.temperature = energy, energy.n_atoms, energy.temperature
        self.positions: list[NDArray[np.float32]] = []
        self.forces: list[NDArray[np.float32]] = []

    def energy(self, x: Tensor) -> Tensor:
        return self.inner.energy(x)

    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, force = self.inner.energy_and_force(x)
        self.positions.append(x.detach().float().cpu().numpy())
        self.forces.append(force.detach().float().cpu().numpy())
        return u, force
