r"""Test whether two simulations sample the same distribution, by averages of many observables.

For averages $a, b$ with standard errors $\sigma_a, \sigma_b$ the deviation is
$z = (a - b)/\sqrt{\sigma_a^2 + \sigma_b^2}$. If both sample the same distribution, the $z$ of many
observables have a root mean square of about one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.distances import torus_bins
from knotflow.statistics.estimates import Estimate, Floats, over_replicas
from knotflow.storage.observables import Observables, read_observables

BINS: Final = 6
"""Bins of a torsion in a two-dimensional histogram: 60 degrees each."""

FEWEST: Final = 100
"""Frames that a bin needs in both trajectories, from a tenth as many replicas, for a reliable error bar."""


@dataclass(frozen=True)
class Ensemble:
    """Averages over a trajectory.

    Keys: ``energy`` (kT); for bonds ``bond i-j`` (mean length, nm) and ``spread i-j`` (variance, nm²). If
    the molecule has a backbone, for its first residue with phi and psi: ``left``, the fraction of frames
    with phi > 0, and ``bin m,n``, the fractions in the bins of (phi, psi).

    Plain dynamics does not equilibrate between phi < 0 and phi > 0. So ``right energy``, ``right m,n`` and
    the averages of bonds are over frames with phi < 0 only.
    """

    n_frames: int
    n_replicas: int
    averages: dict[str, Estimate]
    counts: dict[str, tuple[int, int]]
    """For ``left`` and bins: the numbers of frames and of replicas that were ever there."""


def observe(path: str | Path) -> Ensemble:
    """Average over a trajectory file, some frames at a time."""
    return ensemble(read_observables(path, bonds=True))


def ensemble(found: Observables) -> Ensemble:
    """Averages over a trajectory that was read with its bonds."""
    replica, torsions = found.replica, next(iter(found.torsions.values()), None)
    right = np.ones(len(replica), dtype=bool) if torsions is None else torsions[:, 0] < 0

    def among_right(values: Floats) -> Estimate:
        return over_replicas(values[right], replica[right])

    averages = {"energy": over_replicas(found.energy, replica), "right energy": among_right(found.energy)}
    for pair, lengths in found.bonds.items():
        middle = averages[f"bond {pair}"] = among_right(lengths)
        averages[f"spread {pair}"] = among_right((lengths - middle.value) ** 2)
    counts: dict[str, tuple[int, int]] = {}

    def visited(key: str, inside: NDArray[np.bool_]) -> None:
        counts[key] = (int(inside.sum()), len(np.unique(replica[inside])))
        averages[key] = over_replicas(inside.astype(np.float64), replica)

    if torsions is not None:
        visited("left", torsions[:, 0] > 0)
        place = torus_bins(torsions, BINS)
        for m, n in np.ndindex(BINS, BINS):
            inside = (place == (m, n)).all(1)
            visited(f"bin {m},{n}", inside)
            if 2 * m < BINS:
                counts[f"right {m},{n}"] = counts[f"bin {m},{n}"]
                averages[f"right {m},{n}"] = among_right(inside.astype(np.float64))
    return Ensemble(len(replica), len(np.unique(replica)), averages, counts)


@dataclass(frozen=True)
class Agreement:
    """Deviations between two ensembles in error bars; root mean squares over several observables.

    NaN where an error bar is unknown, as for what was visited too rarely (`filled`) or for a single replica.
    """

    energy: float
    right_energy: float
    """For frames with phi < 0."""
    left: float
    """For the fraction with phi > 0."""
    bonds: float
    """For the means and variances of bond lengths, in frames with phi < 0."""
    histogram: float
    """For the bins of (phi, psi)."""
    right_histogram: float
    """The same within phi < 0, as fractions of the frames there, which plain dynamics equilibrates."""
    n_bonds: int
    n_bins: int


def agreement(a: Ensemble, b: Ensemble) -> Agreement:
    """Compare two ensembles of the same molecule."""

    def z(key: str) -> float:
        gap = a.averages[key] - b.averages[key]
        return gap.value / gap.error if gap.error > 0 else math.nan

    def rms(keys: list[str]) -> float:
        return math.sqrt(sum(z(key) ** 2 for key in keys) / len(keys)) if keys else math.nan

    bonds, bins = [key for key in a.averages if key.startswith(("bond", "spread"))], filled(a, b, "bin")
    return Agreement(
        energy=z("energy"),
        right_energy=z("right energy"),
        left=z("left") if filled(a, b, "left") else math.nan,
        bonds=rms(bonds),
        histogram=rms(bins),
        right_histogram=rms(filled(a, b, "right")),
        n_bonds=len(bonds),
        n_bins=len(bins),
    )


def filled(a: Ensemble, b: Ensemble, prefix: str) -> list[str]:
    """Regions with a prefix that have enough frames in both ensembles for reliable error bars."""
    return [
        key
        for key in a.counts
        if key.startswith(prefix)
        and all(e.counts[key][0] >= FEWEST and e.counts[key][1] >= FEWEST // 10 for e in (a, b))
    ]
