"""Stereocentres of a molecule, and whether samples have the right handedness."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from knotflow.geometry.graph import Bonds, checked_positions, neighbours


def chiral_centres(n_atoms: int, bonds: Bonds, elements: Sequence[str]) -> tuple[int, ...]:
    """Atoms with exactly four bonded neighbours that are all different.

    Atoms are distinguished by colour refinement (Weisfeiler and Lehman): the first colour of an atom is its
    element, each next one its colour together with those of its neighbours, until no class splits any more.

    Limits: Bond orders and charges are ignored. Two substituents that differ only in the handedness of other
    centres count as equal. Centres with a lone pair (sulfoxides), axes and planes are not found.
    """
    if len(elements) != n_atoms:
        raise ValueError(f"expected one element for each of the {n_atoms} atoms, got {len(elements)}.")
    near = neighbours(n_atoms, bonds)
    colours = _numbered(list(elements))
    while True:
        finer = _numbered(
            [(colours[i], *sorted(colours[j] for j in around)) for i, around in enumerate(near)]
        )
        if max(finer, default=0) == max(colours, default=0):
            break
        colours = finer
    return tuple(i for i, around in enumerate(near) if len(around) == 4 == len({colours[j] for j in around}))


def _numbered(labels: Sequence[object]) -> list[int]:
    number: dict[object, int] = {}
    return [number.setdefault(label, len(number)) for label in labels]


def orientations(x: Tensor, corners: Sequence[Sequence[int]]) -> Tensor:
    r"""Sign of the volume $(x_1 - x_4) \cdot (x_2 - x_4) \times (x_3 - x_4)$ of four atoms: -1, 0 or 1.

    Args:
        x: Positions (..., atoms, 3).
        corners: Four atoms of each tetrahedron.

    Returns:
        Signs, shape (..., tetrahedra).
    """
    chosen = torch.tensor(corners, dtype=torch.int64, device=x.device).reshape(-1, 4)
    first, second, third, fourth = (x.index_select(-2, corner) for corner in chosen.T)
    normal = torch.linalg.cross(second - fourth, third - fourth)
    volume: Tensor = ((first - fourth) * normal).sum(-1)
    return volume.sign()


class Chirality:
    r"""The handedness of every stereocentre of a molecule, as in a reference structure.

    With the neighbours 1 to 4 of a centre in ascending order, its handedness is the sign of the volume
    $(x_1 - x_4) \cdot (x_2 - x_4) \times (x_3 - x_4)$. A mirror image changes it, rigid motions do not.

    Args:
        bonds: Pairs of bonded atoms, numbered from 0.
        elements: Symbol of every atom.
        positions: The reference structure, shape ``(atoms, 3)``, in any unit of length.

    Raises:
        ValueError: if the shape does not fit, or a centre is flat in the reference.
    """

    def __init__(self, bonds: Bonds, elements: Sequence[str], positions: ArrayLike | Tensor) -> None:
        bonds = list(bonds)
        self.n_atoms = len(elements)
        self.centres = chiral_centres(self.n_atoms, bonds, elements)
        near = neighbours(self.n_atoms, bonds)
        self._corners = [near[centre] for centre in self.centres]
        reference = checked_positions(positions, self.n_atoms)
        if len(reference) != 1:
            raise ValueError(f"expected one reference structure, got {len(reference)}; choose a frame.")
        self._reference = self.signs(torch.from_numpy(reference[0])).to(torch.int8)
        if (self._reference == 0).any():
            raise ValueError("a stereocentre of the reference structure is flat; give a realistic structure.")

    def signs(self, x: Tensor) -> Tensor:
        """Sign of the volume at every centre, (..., centres), of positions (..., atoms, 3): -1, 0 or 1."""
        if x.shape[-2:] != (self.n_atoms, 3):
            raise ValueError(f"positions must have shape (..., {self.n_atoms}, 3), got {tuple(x.shape)}.")
        return orientations(x, self._corners)

    def agrees(self, x: Tensor) -> Tensor:
        """Whether each structure (..., atoms, 3) has the reference's handedness, (..., centres)."""
        return self.signs(x) == self._reference.to(x.device)

    def matches(self, x: Tensor) -> Tensor:
        """Whether each structure of shape (..., atoms, 3) has the reference's handedness at all centres."""
        return self.agrees(x).all(-1)
