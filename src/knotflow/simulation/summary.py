"""Averages over a trajectory with error bars from its independent replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from knotflow.extras import optional
from knotflow.molecules.system import MolecularSystem
from knotflow.storage import trajectory

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Average:
    """A mean and its standard error, NaN if there is only one replica."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Floats) -> Average:
        """Mean of independent values."""
        n = len(values)
        error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
        return cls(float(values.mean()), error)

    def __str__(self) -> str:
        if not math.isfinite(self.error):
            return f"{self.mean:.4g}"
        digits = max(0, 1 - math.floor(math.log10(self.error))) if self.error > 0 else 3
        return f"{self.mean:.{digits}f} ± {self.error:.{digits}f}"


@dataclass(frozen=True)
class Summary:
    """What a trajectory holds."""

    n_frames: int
    n_replicas: int
    energy: Average
    """Reduced potential energy, in kT."""
    left_handed: dict[str, Average]
    """For each residue with a backbone torsion phi: the fraction of frames with phi > 0."""


def over_replicas(values: Floats, replica: NDArray[np.int32]) -> Average:
    """Mean of all values, and its standard error from the means of replicas, weighted by their lengths.

    Replicas are independent of each other, whatever the correlations inside of them, so this error is honest
    as long as there are several and each is long enough to have forgotten where it started.
    """
    _, place = np.unique(replica, return_inverse=True)
    counts = np.bincount(place)
    means = np.bincount(place, values) / counts
    mean = float(values.mean())
    n = len(counts)
    if n < 2:
        return Average(mean, math.nan)
    weights = counts / counts.sum()
    error = math.sqrt(float((weights**2 * (means - mean) ** 2).sum()) * n / (n - 1))
    return Average(mean, error)


@dataclass(frozen=True)
class Backbone:
    """The torsions phi and psi of a residue in rad, each of shape ``(frames,)``."""

    residue: str
    phi: Floats
    psi: Floats


def backbone_torsions(system: MolecularSystem, positions: NDArray[np.float32]) -> list[Backbone]:
    """Torsions of all residues that have both phi and psi, in the order of the chain."""
    with optional("molecules"):
        import mdtraj
    frames = mdtraj.Trajectory(positions, system.topology)
    # By the atom CA, which both have as one of their inner two.
    phi = {int(atoms[2]): column for atoms, column in _columns(mdtraj.compute_phi(frames))}
    psi = {int(atoms[1]): column for atoms, column in _columns(mdtraj.compute_psi(frames))}
    return [
        Backbone(str(system.topology.atom(atom).residue), phi[atom], psi[atom]) for atom in phi if atom in psi
    ]


def _columns(
    measured: tuple[NDArray[np.int64], NDArray[np.float32]],
) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    quadruples, angles = measured
    return zip(quadruples, angles.T.astype(np.float64), strict=True)


def summarise(path: str | Path) -> Summary:
    """Read a trajectory, some frames at a time, and average over it."""
    system = trajectory.open_info(path).system
    energies, replicas = [], []
    left: dict[str, list[Floats]] = {}
    for frames in trajectory.pieces(path):
        energies.append(frames.energies / system.kT)
        replicas.append(frames.replica)
        for torsions in backbone_torsions(system, frames.positions):
            left.setdefault(torsions.residue, []).append((torsions.phi > 0).astype(np.float64))
    replica = np.concatenate(replicas)
    return Summary(
        n_frames=len(replica),
        n_replicas=len(np.unique(replica)),
        energy=over_replicas(np.concatenate(energies), replica),
        left_handed={residue: over_replicas(np.concatenate(part), replica) for residue, part in left.items()},
    )
