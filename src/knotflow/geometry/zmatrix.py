"""Z-matrices: the atoms to which the bond, angle and torsion of every atom refer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

Row = tuple[int, int, int, int]
"""An atom, and the atoms to which its bond, angle and torsion refer."""


@dataclass(frozen=True)
class ZMatrix:
    """The rules for building a molecule atom by atom from bonds, angles and torsions.

    The first three atoms ``a, b, c`` of `frame` are placed by the bond a-b, the bond b-c and the angle
    a-b-c. A row ``(i, j, k, l)`` places atom ``i`` by the bond i-j, the angle i-j-k and the torsion i-j-k-l.
    The rows may have any order, which is also the order of the internal coordinates. Atoms are placed in the
    order of `levels`.

    Args:
        frame: The first three atoms.
        rows: One row for each other atom; atoms are numbered from 0.

    Raises:
        ValueError: if an atom is not placed exactly once, a row does not name four different existing atoms,
            or rows depend on each other in a cycle.
    """

    frame: tuple[int, int, int]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        # Lists come out of JSON files, numpy's integers out of topologies.
        object.__setattr__(self, "frame", tuple(int(atom) for atom in self.frame))
        object.__setattr__(self, "rows", tuple(tuple(int(atom) for atom in row) for row in self.rows))
        self._check()
        self.levels()

    @property
    def n_atoms(self) -> int:
        """Number of atoms."""
        return 3 + len(self.rows)

    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the rows that can be placed together, level by level.

        All references of a level are in the frame or in earlier levels, and every row is in the first
        possible level. So the number of levels is the length of the longest chain of references.
        """
        placed, waiting = set(self.frame), list(range(len(self.rows)))
        levels = []
        while waiting:
            level = [number for number in waiting if placed.issuperset(self.rows[number][1:])]
            if not level:
                atoms = ", ".join(str(self.rows[number][0]) for number in waiting)
                raise ValueError(
                    f"the rows of atoms {atoms} depend on each other; change the references so that each "
                    "atom can be placed before it is used."
                )
            levels.append(tuple(level))
            placed.update(self.rows[number][0] for number in level)
            waiting = [number for number in waiting if self.rows[number][0] not in placed]
        return tuple(levels)

    def _check(self) -> None:
        if len(self.frame) != 3 or any(len(row) != 4 for row in self.rows):
            raise ValueError(
                "a z-matrix has a frame of 3 atoms and rows (atom, bond, angle, torsion) of 4 atoms, got "
                f"{len(self.frame)} and {sorted({len(row) for row in self.rows})}."
            )
        atoms = range(self.n_atoms)
        for row in self.rows:
            if len(set(row)) != 4 or not all(atom in atoms for atom in row):
                raise ValueError(
                    f"a row must name four different atoms of 0 to {self.n_atoms - 1}, got {row}; "
                    "there must be as many rows as atoms, less the 3 of the frame."
                )
        placed = Counter((*self.frame, *(row[0] for row in self.rows)))
        wrong = [f"{atom} is placed {placed[atom]} times" for atom in atoms if placed[atom] != 1]
        if wrong:
            raise ValueError(
                f"each of the {self.n_atoms} atoms must be placed exactly once, but atom {', '.join(wrong)}."
            )


def paper_zmatrix() -> ZMatrix:
    """The z-matrix of alanine dipeptide (22 atoms) that Hong & Chun (AAAI 2023) used.

    Atom order: ACE CH3 H1-H3 C O, ALA N H CA HA CB HB1-HB3 C O, NME N H C H1-H3. It was written for a file
    whose first two atoms are swapped, so here the methyl group of ACE does not follow the chemical bonds. Use
    it to compare with the paper, and `zmatrix_along_bonds` for everything else.
    """
    # fmt: off
    rows = (
        (0, 1, 4, 6), (1, 4, 6, 8), (2, 1, 4, 0), (3, 1, 4, 0), (4, 6, 8, 14), (5, 4, 6, 8), (7, 6, 8, 4),
        (11, 10, 8, 6), (12, 10, 8, 11), (13, 10, 8, 11), (15, 14, 8, 16), (16, 14, 8, 6), (17, 16, 14, 15),
        (18, 16, 14, 8), (19, 18, 16, 14), (20, 18, 16, 19), (21, 18, 16, 19), (9, 8, 6, 14), (10, 8, 14, 6),
    )
    # fmt: on
    return ZMatrix((14, 8, 6), rows)
