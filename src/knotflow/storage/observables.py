"""Energies, torsions and bonds of a whole trajectory: a few numbers per frame, read piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knotflow.molecules.backbone import backbone_torsions
from knotflow.storage import trajectory

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Observables:
    """Columns of a trajectory with one row per frame."""

    energy: Floats
    """Reduced potential energy in kT, shape ``(n,)``."""
    replica: NDArray[np.int32]
    """Number of the independent simulation."""
    frame: NDArray[np.int64]
    """Number of the frame within its replica."""
    torsions: dict[str, Floats]
    """(phi, psi) in rad of every residue that has both, shape ``(n, 2)``."""
    bonds: dict[str, Floats]
    """Lengths in nm, by ``i-j``; empty unless asked for."""


def read_observables(path: str | Path, *, bonds: bool = False) -> Observables:
    """Read a trajectory, some frames at a time.

    Args:
        path: The file.
        bonds: Whether to read the lengths of all bonds as well.

    Raises:
        ValueError: if the file has no frames.
    """
    system = trajectory.open_info(path).system
    pieces = []
    for frames in trajectory.pieces(path):
        x = frames.positions
        lengths = {
            f"{i}-{j}": np.linalg.norm(x[:, i].astype(np.float64) - x[:, j], axis=-1)
            for i, j in (system.bonds if bonds else [])
        }
        energy, torsions = frames.energies / system.kT, backbone_torsions(system, x)
        pieces.append(Observables(energy, frames.replica, frames.frame, torsions, lengths))
    if not pieces:
        raise ValueError(f"{path} has no frames yet; wait until there are some.")

    def joined(name: str) -> Any:
        parts = [getattr(piece, name) for piece in pieces]
        if isinstance(parts[0], dict):
            return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        return np.concatenate(parts)

    return Observables(*(joined(field.name) for field in fields(Observables)))
