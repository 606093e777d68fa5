"""The same molecule twice, with its atoms in different orders: matched by elements, bonds and handedness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knotflow.geometry.graph import neighbours

Floats = NDArray[np.floating]

RADII: Final = {
    "H": 0.031, "B": 0.084, "C": 0.076, "N": 0.071, "O": 0.066, "F": 0.057, "Si": 0.111, "P": 0.107,
    "S": 0.105, "Cl": 0.102, "Se": 0.120, "Br": 0.120, "I": 0.139,
}  # fmt: skip
"""Covalent radii in nm (Cordero et al. 2008)."""
REACH: Final = 1.25
"""Atoms are bonded if they are closer than this times the sum of their radii."""
MOST_TRIALS: Final = 200_000


class Atoms(NamedTuple):
    """A molecule: elements, bonds and a structure in nm, shape ``(atoms, 3)``."""

    elements: Sequence[str]
    bonds: Sequence[tuple[int, int]]
    positions: Floats


def near_atoms(elements: Sequence[str], positions: Floats) -> Atoms:
    """Atoms with bonds wherever two are close; elements without a radius have none."""
    radii = np.array([RADII.get(element, np.nan) for element in elements])
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    i, j = np.nonzero(np.triu(distance < REACH * (radii[:, None] + radii), 1))
    return Atoms(elements, list(zip(i.tolist(), j.tolist(), strict=True)), positions)


def match(ours: Atoms, theirs: Atoms) -> NDArray[np.int64] | None:
    """For each of our atoms, the number of the same atom among theirs; None if the molecules differ.

    Equivalent heavy atoms, such as the two methyl groups of valine, are told apart by the handedness of the
    tetrahedral centres of both structures, where one can agree. Hydrogens on one atom come in any order.
    """
    n = len(ours.elements)
    if n != len(theirs.elements):
        return None
    near, far = neighbours(n, ours.bonds), neighbours(n, theirs.bonds)
    colours = _colours([*ours.elements, *theirs.elements], [*near, *[[i + n for i in x] for x in far]])
    if Counter(colours[:n]) != Counter(colours[n:]):
        return None
    search = _Search(ours, theirs, near, far, colours[:n], colours[n:])
    found = search.first(handed=True)
    return search.first(handed=False) if found is None else found


def _colours(elements: Sequence[str], near: Sequence[Sequence[int]]) -> list[int]:
    """A number for each atom that differs wherever the bonds around it do (Weisfeiler and Leman 1968)."""
    names: dict[object, int] = {}
    colours = [names.setdefault(element, len(names)) for element in elements]
    while True:
        seen: dict[object, int] = {}
        finer = [
            seen.setdefault((own, *sorted(colours[j] for j in others)), len(seen))
            for own, others in zip(colours, near, strict=True)
        ]
        if len(seen) == len(set(colours)):
            return finer
        colours = finer


class _Search:
    """Atom by atom along the bonds, with steps back."""

    def __init__(
        self,
        ours: Atoms,
        theirs: Atoms,
        near: list[list[int]],
        far: list[list[int]],
        colours: list[int],
        their_colours: list[int],
    ) -> None:
        self.ours, self.theirs, self.near, self.far = ours, theirs, near, far
        self.colours, self.their_colours = colours, their_colours
        self.walk = self._walk()
        step = {atom: i for i, atom in enumerate(self.walk)}
        self.corners: list[list[list[int]]] = [[] for _ in self.walk]
        """For each step, the neighbours of the centres that are complete with it."""
        for centre, around in enumerate(near):
            if len(around) == 4 and sum(ours.elements[i] == "H" for i in around) < 2:
                self.corners[max(step.get(i, 0) for i in (centre, *around))].append(around)

    def _walk(self) -> list[int]:
        """Our atoms along the bonds, from one of the rarest kind."""
        count = Counter(self.colours)
        start = min(
            range(len(self.near)), key=lambda i: (count[self.colours[i]], self.ours.elements[i] == "H")
        )
        walk = [start]
        for atom in walk:
            walk += [i for i in self.near[atom] if i not in walk]
        return walk

    def first(self, *, handed: bool) -> NDArray[np.int64] | None:
        """The first match, with all centres as in our structure if it must be ``handed``."""
        if len(self.walk) < len(self.near):  # several fragments
            return None
        taken: dict[int, int] = {}
        stack = [self._candidates(taken)]
        for _ in range(MOST_TRIALS):
            candidate = next(stack[-1], None)
            if candidate is None:
                stack.pop()
                if not stack:
                    return None
                del taken[self.walk[len(stack) - 1]]
                continue
            taken[self.walk[len(stack) - 1]] = candidate
            if handed and not all(self._agrees(around, taken) for around in self.corners[len(stack) - 1]):
                del taken[self.walk[len(stack) - 1]]
                continue
            if len(taken) == len(self.walk):
                return np.array([taken[i] for i in range(len(taken))])
            stack.append(self._candidates(taken))
        return None

    def _candidates(self, taken: dict[int, int]) -> Iterator[int]:
        """Their atoms that can be the next of ours."""
        atom = self.walk[len(taken)]
        known = [taken[i] for i in self.near[atom] if i in taken]
        used = set(taken.values())
        free = [
            i
            for i in (self.far[known[0]] if known else range(len(self.far)))
            if i not in used
            and self.their_colours[i] == self.colours[atom]
            and all(i in self.far[j] for j in known)
        ]
        # Hydrogens on one atom are alike: one of them stands for all.
        return iter(free[:1] if self.ours.elements[atom] == "H" and known else free)

    def _agrees(self, around: list[int], taken: dict[int, int]) -> bool:
        ours = _volume(self.ours.positions[around])
        return ours * _volume(self.theirs.positions[[taken[i] for i in around]]) > 0


def _volume(corners: Floats) -> float:
    a, b, c = corners[:3] - corners[3]
    return float(np.dot(a, np.cross(b, c)))
