"""Energies, torsions and bonds of a whole trajectory: a few numbers of each frame, read in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from knotflow.molecules.backbone import backbone_torsions
from knotflow.storage import trajectory

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Observables:
    """Columns of a trajectory with a row for each frame."""

    energy: Floats
    """Reduced potential energy in kT, shape ``(n,)``."""
    replica: NDArray[np.int32]
    """Which of the independent simulations."""
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
        ValueError: if the file holds no frames.
    """
    system = trajectory.open_info(path).system
    pairs = system.bonds if bonds else []
    columns: dict[str, list[Floats]] = {}
    replicas, numbers = [], []
    for frames in trajectory.pieces(path):
        x = frames.positions
        piece = {"energy": frames.energies / system.kT}
        piece |= {f"torsions {residue}": both for residue, both in backbone_torsions(system, x).items()}
        piece |= {
            f"bonds {i}-{j}": np.linalg.norm(x[:, i].astype(np.float64) - x[:, j], axis=-1) for i, j in pairs
        }
        for name, values in piece.items():
            columns.setdefault(name, []).append(values)
        replicas.append(frames.replica)
        numbers.append(frames.frame)
    if not replicas:
        raise ValueError(f"{path} holds no frames yet; wait until there are some.")
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}

    def of(kind: str) -> dict[str, Floats]:
        return {name.partition(" ")[2]: part for name, part in joined.items() if name.startswith(f"{kind} ")}

    return Observables(
        joined["energy"], np.concatenate(replicas), np.concatenate(numbers), of("torsions"), of("bonds")
    )
