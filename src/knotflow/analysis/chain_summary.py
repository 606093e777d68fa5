"""Autocorrelation times and averages with error bars of independent chains of samples.

Chains are the replicas of a trajectory file, written by ``knotflow exact`` or by a simulation. Times are in
rows, from one kept frame of a chain to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from knotflow.analysis.free_energy import side_of_frames
from knotflow.analysis.states import ComparedStates, read_angles, states_of_file
from knotflow.statistics.autocorrelation import autocorrelation_time, table_of_chains
from knotflow.statistics.estimates import Estimate, Floats, over_replicas
from knotflow.storage.observables import Observables, read_observables

ENOUGH: Final = 20
"""Length of a chain, in autocorrelation times, for reliable averages and error bars."""


@dataclass(frozen=True)
class Memory:
    """How long chains remember an observable."""

    time: float
    """Integrated autocorrelation time in rows; infinite if it never changed, NaN for fewer than two rows."""
    samples: float
    """Number of independent samples that would give its mean with the same error."""


@dataclass(frozen=True)
class ChainSummary:
    """Averages and memory of the chains in a file."""

    n_chains: int
    n_rows: int
    """Frames of the shortest chain."""
    energy: Estimate
    """In kT; the error is from the spread of the chains."""
    sides: dict[str, Estimate]
    """For each residue with phi and psi: F(phi > 0) - F(phi < 0) in kT, infinite if one is never visited, and
    without an error if one is visited too rarely (`side_of_frames`)."""
    memory: dict[str, Memory]
    """Keys: ``energy``, ``phi RESIDUE`` and ``psi RESIDUE``, and other torsions and rings that have states.
    Of angles it is the longer of cosine and sine."""
    states: Sequence[ComparedStates] = ()
    """Populations of the wells of all turning torsions and rings, source ``chains``."""

    @property
    def too_short(self) -> list[str]:
        """Observables for which the chains do not last `ENOUGH` autocorrelation times."""
        return [name for name, memory in self.memory.items() if not self.n_rows >= ENOUGH * memory.time]


def summarise_chains(path: str | Path, seed: int = 0) -> ChainSummary:
    """Summarise the chains of a trajectory file, read some frames at a time.

    Args:
        path: The file.
        seed: Seed of the bootstrap over chains, which gives error bars of free energies.
    """
    found, states = (
        summary_of_chains(read_observables(path), seed),
        states_of_file(path, source="chains", seed=seed),
    )
    more = [group.group for group in states if group.group.name not in found.memory]
    if more:
        angles, replica = read_angles(path, [group.states[0].conditions[0].angle for group in more])
        times = {name: memory_of_angle(values, replica) for name, values in angles.items()}
        found = replace(found, memory=found.memory | times)
    return replace(found, states=states)


def summary_of_chains(found: Observables, seed: int = 0) -> ChainSummary:
    """Summarise the columns of a trajectory, see `summarise_chains`."""
    order = np.lexsort((found.frame, found.replica))
    replica = found.replica[order]
    columns = {"energy": found.energy[order]}
    for residue, angles in found.torsions.items():
        columns |= {f"{name} {residue}": angles[order, k] for k, name in enumerate(("phi", "psi"))}
    _, counts = np.unique(replica, return_counts=True)
    return ChainSummary(
        n_chains=len(counts),
        n_rows=int(counts.min()),
        energy=over_replicas(columns["energy"], replica),
        sides={
            residue: side_of_frames(columns[f"phi {residue}"], replica, seed=seed)
            for residue in found.torsions
        },
        memory={
            name: _memory(table_of_chains(values, replica), angle=name != "energy")
            for name, values in columns.items()
        },
    )


def memory_of_angle(angle: Floats, replica: ArrayLike) -> Memory:
    """How long chains remember an angle in rad, shape ``(n,)``: the longer of cosine and sine."""
    return _memory(table_of_chains(angle, replica), angle=True)


def _memory(table: Floats, *, angle: bool) -> Memory:
    times = [autocorrelation_time(x) for x in ((np.cos(table), np.sin(table)) if angle else (table,))]
    longest = math.nan if any(map(math.isnan, times)) else max(times)
    return Memory(longest, table.size / max(longest, 1.0))
