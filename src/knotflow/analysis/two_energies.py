r"""One molecule, two energies: the free energy between them, and the states in both.

A flow $p$ draws structures; each energy weights them by $\log w_i = -u_i - \log p$. With frames of an energy,
Bennett's acceptance ratio gives its $\log Z_i$ from both sides (targeted free energy perturbation: Jarzynski,
PRE 65, 2002; Wirnsberger et al., J. Chem. Phys. 153, 2020), otherwise importance sampling does. Then
$F_2 - F_1 = \log Z_1 - \log Z_2$. Structures that both energies weight count with their difference, so that
much of the error cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knotflow.analysis import free_energy, measures
from knotflow.analysis.frame_table import FrameTable
from knotflow.analysis.free_energy import LogZ
from knotflow.analysis.measures import Measures, plain_measures
from knotflow.analysis.states import ComparedStates, Source, State, compared_states
from knotflow.json_values import plain
from knotflow.molecules.system import MolecularSystem
from knotflow.molecules.units import thermal_energy
from knotflow.statistics.estimates import Estimate, Rows, blocks


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two energies."""

    name: str
    """For people: ``force field``, ``GFN2-xTB``."""
    drawn: FrameTable
    """Samples of a flow, with this energy."""
    frames: FrameTable | None = None
    """Frames of this energy: a simulation or exact chains."""
    frames_are: str = "data"
    """What the frames are, for people."""
    zero_kj: float = 0.0
    """In kJ/mol: what is missing from energies, see `MolecularSystem.zero_kj`."""

    @property
    def block(self) -> Rows | None:
        """The block of each frame, for error bars."""
        return None if self.frames is None else blocks(self.frames.replica)

    def log_z(self) -> tuple[LogZ, LogZ | None]:
        """By importance sampling and, if there are frames that fit, by Bennett's acceptance ratio."""
        log_w = measures.log_weights(self.drawn)
        if self.frames is None:
            return free_energy.importance(log_w), None
        both = free_energy.bar(log_w, -self.frames.energy - self.frames.log_prob)
        found = both if math.isfinite(both.value) else None
        return free_energy.importance(log_w, len(self.frames)), found

    def sources(self) -> dict[str, Source]:
        """Where populations of this energy come from."""
        found = {self.name: Source(self.drawn.angles, weight=measures.reweighted(self.drawn))}
        if self.frames is not None:
            found[f"{self.name}, {self.frames_are}"] = Source(self.frames.angles, self.frames.replica)
        return found


@dataclass(frozen=True, eq=False)
class TwoEnergies:
    """The results of `compare_energies`; the first energy comes first everywhere."""

    names: tuple[str, str]
    efficiency: tuple[Measures, Measures]
    """Effective sample size and Pareto k of the samples, by energy."""
    importance: Estimate
    """F(second) - F(first) in kT by importance sampling."""
    bar: Estimate | None
    """The same by Bennett's acceptance ratio; None if neither energy has frames that fit."""
    zero_kj: float
    """In kJ/mol: to be added for absolute energies."""
    temperature: float
    states: Sequence[ComparedStates]

    @property
    def difference(self) -> Estimate:
        """F(second) - F(first) in kT, the better estimate."""
        return self.importance if self.bar is None else self.bar

    @property
    def difference_kj(self) -> Estimate:
        """The same in kJ/mol, of absolute energies."""
        kT = thermal_energy(self.temperature)
        return Estimate(kT * self.difference.value + self.zero_kj, kT * self.difference.error)

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        found: Mapping[str, Any] = {
            "energies": list(self.names),
            "free_energy": {
                "text": f"F({self.names[1]}) - F({self.names[0]})",
                "importance_kt": self.importance,
                "bar_kt": self.bar,
                "absolute_kj": self.difference_kj,
            },
            "efficiency": [plain_measures(found) for found in self.efficiency],
            "states": [group.plain() for group in self.states],
        }
        return dict(plain(found))


def compare_energies(
    system: MolecularSystem, first: Side, second: Side, *, yours: Sequence[State] = (), seed: int = 0
) -> TwoEnergies:
    """Free energies and states of one molecule with two energies.

    Args:
        system: The molecule, with one of the energies.
        first: An energy, with samples of a flow. If ``second`` has the same samples, row by row, errors that
            both have in common cancel.
        second: The other.
        yours: The states; by default the wells of all turning torsions and rings.
        seed: Seed of the error bars.
    """
    same = len(first.drawn) == len(second.drawn) and bool(
        (first.drawn.log_prob == second.drawn.log_prob).all()
    )
    (by_samples, by_both), (other_samples, other_both) = first.log_z(), second.log_z()
    bar = None
    if by_both is not None or other_both is not None:
        pair = by_both or by_samples, other_both or other_samples
        bar = free_energy.between(*pair, (first.block, second.block), same_samples=same)
    return TwoEnergies(
        names=(first.name, second.name),
        efficiency=(
            measures.efficiency(measures.log_weights(first.drawn), seed),
            measures.efficiency(measures.log_weights(second.drawn), seed),
        ),
        importance=free_energy.between(by_samples, other_samples, same_samples=same),
        bar=bar,
        zero_kj=second.zero_kj - first.zero_kj,
        temperature=system.temperature,
        states=compared_states(system, {**first.sources(), **second.sources()}, yours, seed=seed),
    )
