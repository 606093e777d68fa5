"""Z-matrices for any molecule, along its chemical bonds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from knotflow.geometry.graph import Bonds, bonds_between, check_connected, checked_positions, neighbours, sine
from knotflow.geometry.zmatrix import Row, ZMatrix

BENT = 0.2
"""Three atoms count as collinear if the sine of their angle is smaller (within 12 degrees of a line)."""
HOPELESS = 0.02
"""No angle or torsion is measured at a sine below this."""


def zmatrix_along_bonds(
    n_atoms: int,
    bonds: Bonds,
    positions: ArrayLike | torch.Tensor,
    elements: Sequence[str] | None = None,
) -> ZMatrix:
    """Build a z-matrix for a molecule of at least 3 atoms along its bonds.

    The frame is a bent chain of three heavy atoms at the centre of the molecule. From there the atoms are
    placed outwards along a shortest spanning tree of the bonds (bonds that close a ring are left out), heavy
    atoms before hydrogens. Let p be the parent of atom i in the tree, and g the parent of p:

    - The first atom around the bond p-g, the one with most atoms behind it, takes a *proper torsion*
      i-p-g-t, where t is the parent of g. So every rotatable bond has exactly one (a ring bond at most one).
    - All others are *siblings*. With f the neighbour of p that was placed first, their torsion i-p-g-f only
      measures how the substituents of p are arranged: near 180° at planar and ±120° at tetrahedral atoms.

    Where three atoms are collinear in ``positions`` (nitriles, alkynes), neither an angle of 180° nor a
    torsion against the line is used. These atoms come last, and refer to the nearest atoms off the line,
    bonded or not.

    Args:
        n_atoms: Number of atoms.
        bonds: Pairs of bonded atoms, numbered from 0.
        positions: One structure of shape ``(atoms, 3)`` or several, in any unit of length. An angle must be
            bent in all of them.
        elements: Symbol of every atom, to identify hydrogens; without it all atoms count as heavy.

    Raises:
        ValueError: if there are too few atoms, they are not all connected or all on a line, or the input
            does not fit.
    """
    if n_atoms < 3:
        raise ValueError(f"a z-matrix needs at least 3 atoms, got {n_atoms}.")
    near = neighbours(n_atoms, bonds)
    check_connected(near)
    if elements is not None and len(elements) != n_atoms:
        raise ValueError(f"expected one element for each of the {n_atoms} atoms, got {len(elements)}.")
    hydrogen = [elements is not None and elements[atom] in ("H", "D") for atom in range(n_atoms)]
    return _Builder(near, checked_positions(positions, n_atoms), hydrogen).build()


class _Builder:
    """Frame, spanning tree and references of one molecule."""

    def __init__(self, near: list[list[int]], x: NDArray[np.float64], hydrogen: list[bool]) -> None:
        self.near, self.x, self.hydrogen = near, x, hydrogen
        self.steps = np.stack([bonds_between(near, atom) for atom in range(len(near))])
        self.frame = self._central_frame()
        self.parent, self.depth = self._tree()
        self.placed = {atom: number for number, atom in enumerate(self.frame)}

    def build(self) -> ZMatrix:
        behind = self._atoms_behind()
        others = [atom for atom in range(len(self.near)) if atom not in self.frame]
        waiting = sorted(others, key=lambda i: (self.hydrogen[i], self.depth[i], -behind[i], i))
        rows: list[Row] = []
        while waiting:
            before = len(rows)
            for atom in waiting:
                if (row := self._regular(atom)) is not None:
                    rows.append(row)
                    self.placed[atom] = len(self.placed)
            if len(rows) == before:  # only atoms on lines are left: any placed atom may be a reference
                atom = next(atom for atom in waiting if self.parent[atom] in self.placed)
                rows.append(self._exception(atom))
                self.placed[atom] = len(self.placed)
            waiting = [atom for atom in waiting if atom not in self.placed]
        return ZMatrix(self.frame, tuple(rows))

    def _central_frame(self) -> tuple[int, int, int]:
        """Bent chain, if possible without hydrogens or ends of branches, with the shortest paths outwards."""

        def rank(chain: tuple[int, int, int]) -> tuple[object, ...]:
            way = self.steps[list(chain)].min(0)
            hydrogens = sum(self.hydrogen[atom] for atom in chain)
            ends = sum(len(self.near[atom]) == 1 for atom in chain)
            return hydrogens, ends, way.max(), way.sum(), chain

        chains = [
            (a, b, c) for b, around in enumerate(self.near) for a, c in permutations(around, 2) if a < c
        ]
        bent = [chain for chain in chains if sine(self.x, *chain) >= BENT]
        if not bent:
            raise ValueError(
                "a z-matrix needs three bonded atoms that do not lie on a line, and this molecule has none; "
                "give positions of a bent structure."
            )
        return min(bent, key=rank)

    def _tree(self) -> tuple[dict[int, int], dict[int, int]]:
        """The parent of each atom, and its distance from the frame in bonds."""
        a, b, c = self.frame
        parent, depth = {a: b, b: a, c: b}, {a: 0, b: 0, c: 0}
        queue = [b, a, c]
        for atom in queue:
            for other in self.near[atom]:
                if other not in parent:
                    parent[other], depth[other] = atom, depth[atom] + 1
                    queue.append(other)
        return parent, depth

    def _atoms_behind(self) -> list[int]:
        """Number of atoms in the branch behind each atom."""
        behind = [0] * len(self.near)
        for atom in sorted(self.depth, key=self.depth.__getitem__, reverse=True):
            if atom not in self.frame:
                behind[self.parent[atom]] += 1 + behind[atom]
        return behind

    def _regular(self, i: int) -> Row | None:
        """The regular row of an atom, or None if a reference is not placed yet or atoms are collinear."""
        p = self.parent[i]
        g = self.parent[p]
        if p not in self.placed:
            return None
        siblings = [atom for atom in self.near[p] if atom in self.placed and atom != g]
        proper = self.parent[g] if self.parent[g] != p else self.frame[2]
        t = min(siblings, key=self.placed.__getitem__, default=proper)
        bent = sine(self.x, i, p, g) >= BENT and sine(self.x, p, g, t) >= BENT
        return (i, p, g, t) if bent else None

    def _exception(self, i: int) -> Row:
        """The row with the nearest references that are not collinear, or else the most bent ones."""
        p = self.parent[i]
        references = [k for k in self.placed if k != p]
        pairs = [(k, t) for k in references if sine(self.x, i, p, k) > HOPELESS for t in references if t != k]
        pairs.sort(key=lambda pair: (self.steps[p, pair[0]] + self.steps[p, pair[1]], self.steps[p, pair[0]]))
        best, row = HOPELESS, None
        for k, t in pairs:
            bend = min(sine(self.x, i, p, k), sine(self.x, p, k, t))
            if bend >= BENT:
                return i, p, k, t
            if bend > best:
                best, row = bend, (i, p, k, t)
        if row is None:
            raise ValueError(
                f"atom {i} lies on a line with all atoms placed before it, so no angle and torsion can place "
                "it; give positions of a bent structure."
            )
        return row
