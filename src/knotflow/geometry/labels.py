"""Labels of equivalent hydrogens: the groups of a molecule, and the order of labels as in a structure."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Final, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from knotflow.geometry.chirality import orientations
from knotflow.geometry.graph import Bonds, checked_positions, neighbours

NEARLY_ALL: Final = 0.9
"""Share of frames that must agree before their order counts as that of a model."""


class HydrogenLabels:
    r"""The order of the labels of equivalent hydrogens, as in a reference structure.

    Hydrogens on one atom are identical particles: if the force field gives them the same parameters, an
    exchange of two labels, of positions and forces alike, changes no energy. On an atom with four neighbours
    (CH₄, CH₃, CH₂, NH₃⁺) the labels have an orientation, the sign of `orientations` for the neighbours in
    ascending order. Dynamics may turn a methyl group, which moves its labels around in a circle, but not
    exchange two of them: for that the group would have to turn inside out. Programs that number hydrogens
    differently therefore give data in different regions of space, and a model of one region has no density
    in the other. The exchange of two labels, the last two of the group, maps one region to the other.

    The two hydrogens of a CH₂ may be diastereotopic: with a stereocentre elsewhere, one place (pro-R) is not
    like the other (pro-S), and shifts or distances measured there differ. This concerns the places, not the
    particles. The exchange only decides which label is in which place; it is as exact a symmetry of the
    force field as in CH₃.

    Limits: An atom with three neighbours (NH₂) has no lasting orientation, and is left alone. Equivalent
    groups of heavy atoms, such as the two methyl groups of valine, are not exchanged.

    Args:
        bonds: Pairs of bonded atoms, numbered from 0.
        elements: Symbol of every atom.
        positions: The reference structure, shape ``(atoms, 3)``, in any unit of length. Groups that are flat
            in it are left alone.

    Raises:
        ValueError: if the shape does not fit.
    """

    def __init__(self, bonds: Bonds, elements: Sequence[str], positions: ArrayLike | Tensor) -> None:
        self.n_atoms = len(elements)
        near = neighbours(self.n_atoms, bonds)
        reference = torch.from_numpy(checked_positions(positions, self.n_atoms)[0])
        self.groups: tuple[tuple[int, ...], ...] = ()
        """Hydrogens of each group, in ascending order."""
        self._corners: list[list[int]] = []
        for centre, around in enumerate(near):
            hydrogens = tuple(atom for atom in around if elements[atom] == "H" and len(near[atom]) == 1)
            usual = elements[centre] != "H" and len(around) == 4 and len(hydrogens) >= 2
            if usual and orientations(reference, [around]).all():
                self.groups += (hydrogens,)
                self._corners.append(around)
        self._reference = orientations(reference, self._corners).to(torch.int8)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The two hydrogens of each group that an exchange concerns."""
        return tuple((group[-2], group[-1]) for group in self.groups)

    def differs(self, x: Tensor) -> Tensor:
        """Whether groups have the other orientation, (..., groups), in positions (..., atoms, 3)."""
        if x.shape[-2:] != (self.n_atoms, 3):
            raise ValueError(f"positions must have shape (..., {self.n_atoms}, 3), got {tuple(x.shape)}.")
        return orientations(x, self._corners) == -self._reference.to(x.device)

    def order(self, exchanged: Tensor) -> Tensor:
        """Permutations of the atoms, (..., atoms), that exchange the labels of some groups, (..., groups).

        With it, ``x.gather(-2, order[..., None].expand_as(x))`` are the exchanged positions or forces. The
        order of ``differs(x)`` brings all groups to the orientation of the reference.
        """
        order = torch.arange(self.n_atoms, device=exchanged.device).repeat(*exchanged.shape[:-1], 1)
        first, second = torch.tensor(self.pairs, device=order.device, dtype=torch.int64).reshape(-1, 2).T
        order[..., first] = torch.where(exchanged, second, first)
        order[..., second] = torch.where(exchanged, first, second)
        return order

    def as_in(self, x: Tensor) -> Self:
        """The same groups, with the other orientation where nearly all frames (n, atoms, 3) have it."""
        other = copy(self)
        flipped = self.differs(x).double().mean(0).cpu() >= NEARLY_ALL
        other._reference = torch.where(flipped, -self._reference, self._reference)
        return other
