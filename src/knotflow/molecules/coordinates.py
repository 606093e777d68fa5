"""The z-matrix, internal coordinates, stereocentres and hydrogen labels of a molecule, by its bonds."""

from __future__ import annotations

from typing import Final, Literal, get_args

from knotflow.geometry import (
    Chirality,
    HydrogenLabels,
    InternalCoordinates,
    ZMatrix,
    paper_zmatrix,
    zmatrix_along_bonds,
)
from knotflow.molecules.system import MolecularSystem

ZMatrixKind = Literal["bonds", "paper"]
"""Along the chemical bonds, or the z-matrix of Hong & Chun (AAAI 2023) for alanine dipeptide."""

PAPER_ATOMS: Final = {
    "ACE": "CH3 H1 H2 H3 C O",
    "ALA": "N H CA HA CB HB1 HB2 HB3 C O",
    "NME": "N H C H1 H2 H3",
}
"""Atoms of the paper's z-matrix in its order, by residue. The first letter of a name is the element."""


def zmatrix_of(system: MolecularSystem, kind: ZMatrixKind = "bonds") -> ZMatrix:
    """The z-matrix of a molecule.

    Args:
        system: The molecule.
        kind: ``"bonds"``: along the chemical bonds, for any molecule of three atoms or more; ``"paper"``:
            `paper_zmatrix`, only for alanine dipeptide with its atoms in the paper's order.

    Raises:
        ValueError: if the molecule has no such z-matrix.
    """
    if kind not in get_args(ZMatrixKind):
        raise ValueError(f"kind must be one of {', '.join(get_args(ZMatrixKind))}, got {kind!r}.")
    if kind == "paper":
        _check_paper_atoms(system)
        return paper_zmatrix()
    return zmatrix_along_bonds(system.n_atoms, system.bonds, system.positions, system.elements)


def internal_coordinates(system: MolecularSystem, kind: ZMatrixKind = "bonds") -> InternalCoordinates:
    """Bonds, angles and torsions of a molecule along the z-matrix of `zmatrix_of`."""
    return InternalCoordinates(zmatrix_of(system, kind))


def chirality_of(system: MolecularSystem) -> Chirality:
    """The stereocentres of a molecule, with the handedness of its structure."""
    return Chirality(system.bonds, system.elements, system.positions)


def labels_of(system: MolecularSystem) -> HydrogenLabels:
    """The labels of equivalent hydrogens of a molecule, in the order of its structure."""
    return HydrogenLabels(system.bonds, system.elements, system.positions)


def _check_paper_atoms(system: MolecularSystem) -> None:
    expected = [
        f"{name} ({name[0]}) of {residue}" for residue, names in PAPER_ATOMS.items() for name in names.split()
    ]
    found = [f"{atom.name} ({atom.element.symbol}) of {atom.residue.name}" for atom in system.topology.atoms]
    if found == expected:
        return
    if len(found) != len(expected):
        difference = f"{system.name} has {len(found)} atoms instead of {len(expected)}"
    else:
        i = next(i for i, atom in enumerate(expected) if atom != found[i])
        difference = f"atom {i} (from 0) of {system.name} is {found[i]} instead of {expected[i]}"
    raise ValueError(
        f"the paper's z-matrix is for alanine dipeptide with its atoms in the paper's order, but "
        f"{difference}; use the z-matrix along bonds."
    )
