"""Checks whether a z-matrix suits a molecule and its data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from knotflow.geometry.along_bonds import BENT
from knotflow.geometry.graph import Bonds, checked_positions, neighbours, sine
from knotflow.geometry.zmatrix import Row, ZMatrix

COLLINEAR = 0.05
"""An angle is a problem if its sine ever drops below this: within 3 degrees of a line."""


@dataclass(frozen=True)
class Audit:
    """The findings of `audit`; ``print`` them for a summary."""

    n_atoms: int
    """Number of atoms, each placed exactly once."""
    along_bonds: float
    """Fraction of the rows i, j, k, l in which i-j, j-k and one of k-l and j-l are bonds."""
    reference_sine: float
    """Smallest sine of an angle j-k-l that a torsion refers to, over all rows and frames (1 without rows)."""
    worst_reference: Row | None
    """The row where it occurs."""
    angle_sine: float
    """Smallest sine of an angle that is itself a coordinate."""
    worst_angle: tuple[int, int, int]
    """The atoms of that angle."""
    proper_torsions: dict[tuple[int, int], int]
    """Number of proper torsions around each rotatable bond (both ends have another neighbour)."""
    sibling_torsions: int
    """Number of torsions i-j-k-l measured against a neighbour l of j."""
    problems: tuple[str, ...]
    """The problems, one sentence each."""

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def __str__(self) -> str:
        proper, rotatable = sum(self.proper_torsions.values()), len(self.proper_torsions)
        reference = "-".join(map(str, self.worst_reference[1:])) if self.worst_reference else "none"
        lines = [
            f"z-matrix of {self.n_atoms} atoms, each placed once; {self.along_bonds:.0%} of rows along bonds",
            f"torsions: {proper} proper ones around {rotatable} rotatable bonds, "
            f"{self.sibling_torsions} against a sibling",
            f"smallest sine of a reference angle: {self.reference_sine:.3f} ({reference})",
            f"smallest sine of an angle: {self.angle_sine:.3f} ({'-'.join(map(str, self.worst_angle))})",
            *(f"problem: {problem}" for problem in self.problems),
        ]
        return "\n".join(lines if self.problems else [*lines, "no problems"])


def audit(zmatrix: ZMatrix, positions: ArrayLike | torch.Tensor, bonds: Bonds) -> Audit:
    """Check a z-matrix against the bonds of a molecule and against data.

    Problems are references that do not follow the bonds although bent ones exist (coordinates are then broad
    and depend on each other), several proper torsions around one bond (they move together), and angles that
    come close to a line (torsions against it lose their meaning and their digits).

    Args:
        zmatrix: The z-matrix.
        positions: Structures of shape ``(atoms, 3)`` or ``(frames, atoms, 3)``, in any unit of length.
        bonds: Pairs of bonded atoms.
    """
    near = neighbours(zmatrix.n_atoms, bonds)
    x = checked_positions(positions, zmatrix.n_atoms)
    a, b, c = zmatrix.frame
    angles = {atoms: sine(x, *atoms) for atoms in ((c, b, a), *(row[:3] for row in zmatrix.rows))}
    references = {row: sine(x, *row[1:]) for row in zmatrix.rows}
    worst_angle = min(angles, key=angles.__getitem__)
    worst_reference = min(references, key=references.__getitem__, default=None)
    branching = [len(around) > 1 for around in near]
    bonded = [(i, j) for i, around in enumerate(near) for j in around if i < j]
    proper = {(i, j): 0 for i, j in bonded if branching[i] and branching[j]}
    for i, j, k, l in zmatrix.rows:
        if i in near[j] and j in near[k] and k in near[l] and l not in near[j]:
            proper[min(j, k), max(j, k)] += 1
    problems = list(_strays(zmatrix, near, x))
    for (i, j), count in proper.items():
        if count > 1:
            problems.append(f"{count} proper torsions turn with the bond {i}-{j}; one and siblings would do.")
    for (i, j, k, l), value in references.items():
        if value < COLLINEAR:
            problems.append(
                f"the torsion {i}-{j}-{k}-{l} refers to a line: {j}-{k}-{l} has sine {value:.2g}."
            )
    for (i, j, k), value in angles.items():
        if value < COLLINEAR:
            problems.append(f"the angle {i}-{j}-{k} comes close to a line: sine {value:.2g}.")
    return Audit(
        n_atoms=zmatrix.n_atoms,
        along_bonds=float(np.mean([_along(near, row) for row in zmatrix.rows])) if zmatrix.rows else 1.0,
        reference_sine=min(references.values(), default=1.0),
        worst_reference=worst_reference,
        angle_sine=angles[worst_angle],
        worst_angle=worst_angle,
        proper_torsions=proper,
        sibling_torsions=sum(i in near[j] and l in near[j] for i, j, _, l in zmatrix.rows),
        problems=tuple(problems),
    )


def _along(near: list[list[int]], row: Row) -> bool:
    i, j, k, l = row
    return j in near[i] and k in near[j] and (l in near[j] or l in near[k])


def _strays(zmatrix: ZMatrix, near: list[list[int]], x: NDArray[np.float64]) -> Iterator[str]:
    """Rows that leave the bonds without need; rows around linear groups have to."""
    a, b, c = zmatrix.frame
    if a not in near[b] or c not in near[b]:
        yield f"the frame {a}, {b}, {c} is not a chain of bonds."
    for row in zmatrix.rows:
        i, j, k, l = row
        if _along(near, row):
            continue
        if j not in near[i]:
            yield f"atom {i} takes its bond from atom {j}, to which it is not bonded."
        elif k not in near[j]:
            if near[j] == [i] or any(sine(x, i, j, n) >= BENT for n in near[j] if n != i):
                yield f"atom {i} takes its angle from atom {k}, which is not bonded to atom {j}."
        elif any(sine(x, j, k, n) >= BENT for n in near[k] if n not in (i, j)):
            yield f"atom {i} takes its torsion from atom {l}, which is bonded to neither {j} nor {k}."
