"""Averages over a trajectory, with error bars from its independent replicas."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knotflow.statistics.estimates import Estimate, over_replicas
from knotflow.storage.observables import read_observables


@dataclass(frozen=True)
class Summary:
    """Size and averages of a trajectory."""

    n_frames: int
    n_replicas: int
    energy: Estimate
    """Reduced potential energy, in kT."""
    left_handed: dict[str, Estimate]
    """Fraction of frames with phi > 0, for each residue with this backbone torsion."""


def summarise(path: str | Path) -> Summary:
    """Average over a trajectory, which is read some frames at a time."""
    found = read_observables(path)
    return Summary(
        n_frames=len(found.replica),
        n_replicas=len(np.unique(found.replica)),
        energy=over_replicas(found.energy, found.replica),
        left_handed={
            residue: over_replicas((angles[:, 0] > 0).astype(np.float64), found.replica)
            for residue, angles in found.torsions.items()
        },
    )
