"""States of a molecule, by their torsions: those of the user, or the wells of all torsions and rings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from knotflow.json_values import plain
from knotflow.molecules.atom_names import atom_names, find_atom, joined_names
from knotflow.molecules.conformation import ConformationAngle, conformation_angles
from knotflow.molecules.system import MolecularSystem
from knotflow.statistics.estimates import Estimate, Floats
from knotflow.statistics.populations import Bools, Populations, of_frames, of_samples
from knotflow.statistics.wells import well_edges, well_numbers
from knotflow.storage import trajectory

EXAMPLE: Final = '"anti: torsion 0 1 2 3 in 120..240"'
YOURS: Final = "your states"
"""Name of the group of states that a user defines."""
ENOUGH: Final = 500
"""With fewer rows, wells may be noise; then only the largest set is searched for them."""
NUMBER: Final = r"-?\d+(?:\.\d+)?"
CONDITION: Final = re.compile(rf"\s*(torsion|pucker)\s+(.+?)\s+in\s+({NUMBER})\s*\.\.\s*({NUMBER})\s*")

Angles = Mapping[str, Floats]
"""Values in rad of angles, by name, each of shape ``(n,)``."""


@dataclass(frozen=True)
class Condition:
    """An angle within an arc."""

    angle: ConformationAngle
    low: float
    high: float
    """In degrees, above ``low`` by at most 360."""
    atoms: str
    """The atoms as a user may name them."""

    @classmethod
    def parse(cls, text: str, system: MolecularSystem) -> Self:
        """Read ``torsion 0 1 2 3 in 120..240``; an arc across the seam is 150..210 or 150..-150.

        Raises:
            ValueError: if it reads otherwise, or names atoms that do not exist.
        """
        match = CONDITION.fullmatch(text)
        if match is None:
            raise ValueError(f"a condition reads like 'torsion 0 1 2 3 in 120..240', got {text.strip()!r}.")
        atoms = tuple(find_atom(word, system.topology) for word in match[2].split())
        names = atom_names(system.topology)
        angle = ConformationAngle(joined_names(atoms, names), atoms)
        if angle.kind != match[1]:
            raise ValueError(f"a {match[1]} cannot have {len(atoms)} atoms; got {text.strip()!r}.")
        low, high = float(match[3]), float(match[4])
        high += 360 if high <= low else 0
        if not 0 < high - low <= 360:
            raise ValueError(f"an arc from LOW..HIGH is at most 360 degrees long, got {text.strip()!r}.")
        return cls(angle, low, high, " ".join(names[i] for i in atoms))

    def __str__(self) -> str:
        return f"{self.angle.kind} {self.atoms} in {self.low:g}..{self.high:g}"

    def holds(self, angles: Angles) -> Bools:
        """Whether it is met, row by row; never where an angle is NaN."""
        with np.errstate(invalid="ignore"):
            return (np.degrees(angles[self.angle.name]) - self.low) % 360 < self.high - self.low


@dataclass(frozen=True)
class State:
    """A name, and the conditions that a structure must meet."""

    name: str
    conditions: tuple[Condition, ...]

    @classmethod
    def parse(cls, text: str, system: MolecularSystem) -> Self:
        """Read ``anti: torsion 0 1 2 3 in 120..240``; several conditions are joined by "and".

        Args:
            text: Atoms are numbers from 0 or names, such as ALA2:CA; angles are in degrees. The pucker of a
                ring is given by its five or six atoms.
            system: The molecule.

        Raises:
            ValueError: if it reads otherwise, or names atoms that do not exist.
        """
        name, _, rest = text.partition(":")
        try:
            if not name.strip() or not rest.strip():
                raise ValueError("it needs a name, a colon and a condition.")
            parts = re.split(r"\s+and\s+", rest.strip())
            return cls(name.strip(), tuple(Condition.parse(part, system) for part in parts))
        except ValueError as error:
            raise ValueError(f"state {text!r}: {error} A state reads like {EXAMPLE}.") from None

    @property
    def definition(self) -> str:
        """The conditions, as they can be given to `parse` after a name and a colon."""
        return " and ".join(map(str, self.conditions))

    def holds(self, angles: Angles) -> Bools:
        """Whether each row is in the state."""
        return reduce(np.logical_and, (condition.holds(angles) for condition in self.conditions))


@dataclass(frozen=True)
class StateGroup:
    """States that are compared with each other."""

    name: str
    """A torsion or ring, or `YOURS`."""
    states: tuple[State, ...]

    def members(self, angles: Angles) -> Bools:
        """Whether each row is in each state, shape ``(n, states)``."""
        return np.stack([state.holds(angles) for state in self.states], 1)


def your_states(texts: Iterable[str], system: MolecularSystem) -> tuple[State, ...]:
    """States as a user wrote them.

    Raises:
        ValueError: if one cannot be read, or two have the same name.
    """
    states = tuple(State.parse(text, system) for text in texts)
    names = [state.name for state in states]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{names.count(twice[0])} states are called {twice[0]!r}; give each its own name.")
    return states


def angles_for(system: MolecularSystem, states: Iterable[State] = ()) -> list[ConformationAngle]:
    """The angles of the molecule, and those of some states, each once."""
    known = {angle.name: angle for angle in conformation_angles(system)}
    known |= {condition.angle.name: condition.angle for state in states for condition in state.conditions}
    return list(known.values())


def automatic_states(system: MolecularSystem, *found: Angles) -> list[StateGroup]:
    """The wells of every turning torsion and ring that has more than one, a group for each; largest first.

    Args:
        system: The molecule.
        *found: Angles in data, in samples and so on. Wells are those of the set that has most of them, the
            first if several have: a well that only one of them visits is a state, too.
    """
    groups, names = [], atom_names(system.topology)
    for angle in conformation_angles(system):
        sets = [values[np.isfinite(values)] for values in (angles[angle.name] for angles in found)]
        sets = [part for part in sets if len(part) >= ENOUGH] or [max(sets, key=len)]
        values, edges = max(((part, well_edges(part)) for part in sets), key=lambda pair: len(pair[1]))
        if len(edges) == 0:
            continue
        atoms = " ".join(names[i] for i in angle.atoms)
        arcs = zip(edges, [*edges[1:], edges[0] + 2 * math.pi], strict=True)
        found_in = {
            Condition(angle, round(math.degrees(low), 6), round(math.degrees(high), 6), atoms): values[
                well_numbers(values, edges) == well
            ]
            for well, (low, high) in enumerate(arcs)
        }
        wells = sorted(found_in.items(), key=lambda pair: -len(pair[1]))
        words = _words(angle, [_middle(inside) for _, inside in wells])
        states = (State(word, (condition,)) for word, (condition, _) in zip(words, wells, strict=True))
        groups.append(StateGroup(angle.name, tuple(states)))
    return groups


def _middle(values: Floats) -> float:
    """Mean direction of angles, in degrees from -180 to 180."""
    return math.degrees(float(np.angle(np.exp(1j * values).mean())))


def _words(angle: ConformationAngle, middles: Sequence[float]) -> list[str]:
    """Names of wells: the usual words if they tell all wells apart, else degrees."""
    degrees = [f"{round(middle):d}°" for middle in middles]
    if len(angle.atoms) == 5 or angle.name.split()[0] in ("phi", "psi", "omega"):
        return degrees
    name = _six_ring_word if len(angle.atoms) == 6 else _torsion_word
    words = [name(middle) for middle in middles]
    return words if len(set(words)) == len(words) else degrees


def _torsion_word(degrees: float) -> str:
    size, sign = abs(degrees), "+" if degrees > 0 else "-"
    if size <= 30:
        return "syn"
    return f"gauche{sign}" if size < 90 else f"anticlinal{sign}" if size < 150 else "anti"


def _six_ring_word(degrees: float) -> str:
    if 60 <= degrees <= 120:
        return "boat or twist"
    kind = "chair" if degrees < 35 or degrees > 145 else "half-chair"
    return kind if degrees < 90 else f"inverted {kind}"


@dataclass(frozen=True, eq=False)
class ComparedStates:
    """The states of a group in data, in samples, in reweighted samples, and in exact chains."""

    group: StateGroup
    sources: dict[str, Populations]
    """By source: ``data``, ``samples``, ``reweighted``, ``exact``; those that exist."""

    def population(self, state: str, source: str) -> Estimate:
        """The share of a state, from 0 to 1."""
        return self.sources[source].shares[self._place(state)]

    def free_energy(self, state: str, reference: str, source: str) -> Estimate:
        """F(state) - F(reference) in kT."""
        i, j = self._place(reference), self._place(state)
        found = self.sources[source].differences
        return found[i, j] if i < j else found[j, i] * -1.0 if j < i else Estimate(0.0, 0.0)

    def _place(self, state: str) -> int:
        names = [one.name for one in self.group.states]
        if state not in names:
            raise ValueError(f"{self.group.name} has the states {', '.join(names)}, got {state!r}.")
        return names.index(state)

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        states, of = self.group.states, self.sources.items()
        found = {
            "group": self.group.name,
            "states": [
                {
                    "name": state.name,
                    "definition": state.definition,
                    "population": {source: _noted(p.shares[i]) for source, p in of},
                }
                for i, state in enumerate(states)
            ],
            "differences": [
                {
                    "text": f"F({states[j].name}) - F({states[i].name})",
                    "unit": "kT",
                    "free_energy": {source: _noted(p.differences[i, j]) for source, p in of},
                }
                for i in range(len(states))
                for j in range(i + 1, len(states))
            ],
        }
        return dict(plain(found))


def sources_in(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    """The sources in some results of `ComparedStates.plain`, in order."""
    return list(
        dict.fromkeys(
            source for group in groups for state in group["states"] for source in state["population"]
        )
    )


def numbers_of(found: Mapping[str, Any], sources: Iterable[str]) -> list[str]:
    """Numbers by source, as in `ComparedStates.plain`, for people; a dash for what is missing or infinite."""
    return [str(Estimate.read(found.get(source, {}))) for source in sources]


def _noted(found: Estimate) -> dict[str, Any]:
    """A number, its error, and why one of them is missing."""
    note = ""
    if math.isnan(found.value):
        note = "no weight at all, or never visited"
    elif math.isinf(found.value):
        note = "one of the states is never visited"
    elif math.isnan(found.error):
        note = "visited too rarely for an error bar"
    return {"value": found.value, "error": found.error, **({"note": note} if note else {})}


@dataclass(frozen=True, eq=False)
class Source:
    """Angles of frames or samples, of which populations are wanted."""

    angles: Angles
    replica: NDArray[np.int32] | None = None
    """The independent simulation of each row; None for independent samples."""
    weight: Floats | None = None
    """The weight of each sample; equal by default."""

    @property
    def finite(self) -> Bools:
        """The rows whose angles are all finite."""
        return reduce(np.logical_and, map(np.isfinite, self.angles.values()))

    def populations(self, group: StateGroup, seed: int) -> Populations:
        """Populations of some states, among the rows whose angles are all finite."""
        finite = self.finite
        members = group.members(self.angles)[finite]
        if self.replica is not None:
            return of_frames(members, self.replica[finite], seed=seed)
        return of_samples(members, None if self.weight is None else self.weight[finite], seed=seed)


def compared_states(
    system: MolecularSystem, sources: Mapping[str, Source], yours: Sequence[State] = (), *, seed: int = 0
) -> list[ComparedStates]:
    """Populations and free energies of states, source by source.

    Args:
        system: The molecule.
        sources: By name, with the angles of `angles_for`; those without any finite row are left out.
        yours: The states; by default those of `automatic_states`.
        seed: Seed of the error bars.
    """
    if not angles_for(system, yours):
        return []
    known = {name: source for name, source in sources.items() if source.finite.any()}
    if not known:
        return []
    groups = [StateGroup(YOURS, tuple(yours))] if yours else automatic_states(
        system, *(source.angles for source in known.values())
    )  # fmt: skip
    return [
        ComparedStates(group, {name: source.populations(group, seed) for name, source in known.items()})
        for group in groups
    ]


def states_of_file(
    path: str | Path, states: Sequence[str] = (), *, source: str = "data", seed: int = 0
) -> list[ComparedStates]:
    """States of a trajectory: populations and free energies, with the errors of correlated frames.

    Args:
        path: A file of a simulation or of exact chains.
        states: As a user writes them; by default the wells of all turning torsions and rings.
        source: What the file is called in the result.
        seed: Seed of the error bars.

    Raises:
        ValueError: if a state cannot be read, or the file has no frames.
        OSError: if the file is missing or damaged.
    """
    system = trajectory.open_info(path).system
    yours = your_states(states, system)
    found = Source(*read_angles(path, angles_for(system, yours)))
    return compared_states(system, {source: found}, yours, seed=seed)


def read_angles(path: str | Path, angles: Sequence[ConformationAngle]) -> tuple[Angles, NDArray[np.int32]]:
    """Angles of a trajectory and the replica of each row, read some frames at a time.

    Raises:
        ValueError: if the file has no frames.
        OSError: if it is missing or damaged.
    """
    pieces: list[list[Floats]] = []
    replica = []
    for frames in trajectory.pieces(path):
        pieces.append([angle(frames.positions) for angle in angles])
        replica.append(frames.replica)
    if not pieces:
        raise ValueError(f"{path} has no frames yet; wait until there are some.")
    columns = map(np.concatenate, zip(*pieces, strict=True))
    return dict(zip([a.name for a in angles], columns, strict=True)), np.concatenate(replica)
