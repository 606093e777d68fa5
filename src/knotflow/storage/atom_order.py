"""Which atoms of another program's file are those of the molecule, and in which order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knotflow.molecules.system import MolecularSystem
from knotflow.sentences import listed
from knotflow.storage.bond_match import Atoms, match, near_atoms

if TYPE_CHECKING:
    import mdtraj

STRETCH: Final = 1.3
"""No bond is longer or shorter than usual by more than this factor."""


class Order(NamedTuple):
    """Their atoms in our order."""

    indices: NDArray[np.int64]
    """For each of our atoms, its number in their file, shape ``(atoms,)``."""
    by: str
    """What they were matched by."""


def atom_order(
    path: Path, found: mdtraj.Topology, system: MolecularSystem, positions: NDArray[Any]
) -> Order | None:
    """The order that brings the atoms of a file to that of the molecule; None if they are in it already.

    Names follow several conventions, so an unknown name counts as right. A different element does not, nor
    the name of another atom of the residue. Such atoms are matched by residue and name or else, for all
    conventions, by the bonds that a structure shows.

    Args:
        path: The file, for messages.
        found: Its atoms.
        system: The molecule.
        positions: A frame of the file in nm, shape ``(atoms, 3)``.

    Raises:
        ValueError: if it has other atoms or bonds.
    """
    if found.n_atoms != system.n_atoms:
        raise ValueError(
            f"{path} has {found.n_atoms} atoms, but {system.name} has {system.n_atoms}"
            f"{_missing(found, system)}; is this the right molecule, with all hydrogens and without solvent?"
        )
    wrong = _first_wrong(found, system)
    if wrong is None:
        return None
    order = _by_names(found, system)
    if order is not None:
        _check_bonds(path, system, positions[order])
        return Order(order, "residue and atom name")
    elements = [_element(atom) for atom in found.atoms]
    order = match(
        Atoms(system.elements, system.bonds, system.positions),
        near_atoms(elements, np.asarray(positions, dtype=np.float64)),
    )
    if order is not None:
        return Order(order, "elements and bonds")
    theirs, ours = found.atom(wrong), system.topology.atom(wrong)
    raise ValueError(
        f"atom {wrong} (from 0) is {theirs.name} ({_element(theirs)}) of {theirs.residue} in {path}, but "
        f"{ours.name} ({ours.element.symbol}) of {ours.residue} in {system.name}, and neither names nor "
        "bonds tell which atoms are the same; put the atoms into the same order."
    )


def _first_wrong(found: mdtraj.Topology, system: MolecularSystem) -> int | None:
    """The first atom that cannot be ours."""
    for theirs, ours in zip(found.atoms, system.topology.atoms, strict=True):
        others = {atom.name for atom in ours.residue.atoms if atom is not ours}
        exchanged = theirs.name != ours.name and theirs.name in others
        if exchanged or _element(theirs) != ours.element.symbol:
            return int(ours.index)
    return None


def _by_names(found: mdtraj.Topology, system: MolecularSystem) -> NDArray[np.int64] | None:
    """The order by residue and name, if both are the same in both; None if they are not."""
    theirs = {_key(atom): atom.index for atom in found.atoms}
    ours = [_key(atom) for atom in system.topology.atoms]
    if len(theirs) < found.n_atoms or theirs.keys() != set(ours):
        return None
    return np.array([theirs[key] for key in ours])


def _check_bonds(path: Path, system: MolecularSystem, positions: NDArray[Any]) -> None:
    """Refuse names that do not belong to the positions: bonds would be far too long or short."""
    i, j = np.array(system.bonds).T
    now, usual = (np.linalg.norm(x[i] - x[j], axis=-1) for x in (positions, system.positions))
    off = np.abs(np.log(now / usual))
    if off.max() > np.log(STRETCH):
        worst = off.argmax()
        a, b = (system.topology.atom(atom) for atom in (i[worst], j[worst]))
        raise ValueError(
            f"by the names in {path}, the bond from {a} to {b} in the first frame is {now[worst]:.3g} nm "
            f"long, usually {usual[worst]:.3g} nm; give the topology that belongs to the frames."
        )


def _key(atom: Any) -> tuple[int, str, str]:
    return atom.residue.index, atom.name, _element(atom)


def _element(atom: Any) -> str:
    return getattr(atom.element, "symbol", "unknown")


def _missing(found: mdtraj.Topology, system: MolecularSystem) -> str:
    """Which atoms are missing, if names tell: ", whose heavy atom CB of ALA2 is missing there"."""
    theirs = Counter((atom.residue.index, atom.name) for atom in found.atoms)
    lacking = [a for a in system.topology.atoms if not theirs[(a.residue.index, a.name)]]
    if len(lacking) != system.n_atoms - found.n_atoms:
        return ""
    heavy = [atom for atom in lacking if atom.element.symbol != "H"] or lacking
    kind = "heavy atom" if heavy[0].element.symbol != "H" else "hydrogen"
    names = listed(f"{atom.name} of {atom.residue}" for atom in heavy)
    return f", whose {kind} {names} is missing there" if len(heavy) == 1 else f"; {kind}s {names} are missing"
