"""Atoms in any order are recognised by elements, bonds and handedness."""

import numpy as np
import pytest

from knotflow.storage.bond_match import Atoms, match, near_atoms
from tests.molecules.molecules import molecule


def ours(name: str) -> Atoms:
    system = molecule(name)
    return Atoms(system.elements, system.bonds, system.positions)


def shuffled(atoms: Atoms, seed: int) -> tuple[Atoms, np.ndarray]:
    """The same molecule in another order, and where each of our atoms went."""
    order = np.random.default_rng(seed).permutation(len(atoms.elements))
    where = np.argsort(order)
    bonds = [(int(where[i]), int(where[j])) for i, j in atoms.bonds]
    return Atoms([atoms.elements[i] for i in order], bonds, atoms.positions[order]), where


@pytest.mark.parametrize("name", ["ala2", "VL", "PW", "R"])
@pytest.mark.parametrize("seed", range(3))
def test_any_order_is_recognised(name: str, seed: int) -> None:
    """Bonds map to bonds. Heavy atoms are found exactly, except at flat groups, whose ends are equivalent."""
    mine = ours(name)
    theirs, where = shuffled(mine, seed)
    seen = near_atoms(theirs.elements, theirs.positions)
    assert {frozenset(b) for b in seen.bonds} == {frozenset(b) for b in theirs.bonds}
    found = match(mine, seen)
    assert sorted(found) == list(range(len(found)))
    assert [theirs.elements[i] for i in found] == list(mine.elements)
    assert {frozenset((found[i], found[j])) for i, j in mine.bonds} == {frozenset(b) for b in theirs.bonds}
    flat = {"R": {"NH1", "NH2"}}.get(name, set())
    for atom in molecule(name).topology.atoms:
        if atom.element.symbol != "H" and atom.name not in flat:
            assert found[atom.index] == where[atom.index], atom


def test_the_methyl_groups_of_valine_are_told_apart_by_handedness() -> None:
    """Exchanged labels are a symmetry of the bonds, but not of the structure."""
    mine = ours("VL")
    topology = molecule("VL").topology
    a, b = (next(x.index for x in topology.atoms if x.name == name) for name in ("CG1", "CG2"))
    hydrogens = [[x.index for x in topology.atoms if x.name.startswith(f"HG{k}")] for k in (1, 2)]
    order = np.arange(topology.n_atoms)
    order[[a, *hydrogens[0], b, *hydrogens[1]]] = [b, *hydrogens[1], a, *hydrogens[0]]
    theirs = near_atoms(mine.elements, mine.positions[order])
    found = match(mine, theirs)
    assert found[a] == b and found[b] == a


def test_a_mirror_image_still_matches_by_bonds() -> None:
    mine = ours("ala2")
    theirs, where = shuffled(mine, 0)
    found = match(mine, Atoms(theirs.elements, theirs.bonds, -theirs.positions))
    heavy = [i for i, element in enumerate(mine.elements) if element != "H"]
    np.testing.assert_array_equal(found[heavy], where[heavy])


def test_other_molecules_do_not_match() -> None:
    mine, other = ours("ala2"), ours("VL")
    assert match(mine, other) is None
    isomer = Atoms(mine.elements, [*mine.bonds[:-1], (0, 21)], mine.positions)  # the last hydrogen elsewhere
    assert match(mine, isomer) is None
    assert match(mine, Atoms(mine.elements, mine.bonds[:-1], mine.positions)) is None
