"""Automatic z-matrices: laws over all molecules and over random ones."""

import math

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from knotflow.geometry import ZMatrix, audit, zmatrix_along_bonds
from knotflow.geometry.graph import bonds_between, neighbours, sine
from tests.geometry.molecules import BUILDERS, Molecule, instance, molecule

LINEAR = ("acetonitrile", "propyne", "butyne")


def is_bridge(n_atoms: int, bonds: tuple[tuple[int, int], ...], bond: tuple[int, int]) -> bool:
    """Does the molecule fall apart without this bond?"""
    left = [other for other in bonds if sorted(other) != sorted(bond)]
    return bool(bonds_between(neighbours(n_atoms, left), bond[0])[bond[1]] < 0)


def check_laws(found: Molecule, zmatrix: ZMatrix) -> None:
    """What holds for every molecule whose atoms all have bent references along bonds."""
    near = neighbours(found.n_atoms, found.bonds)
    placed = set(zmatrix.frame)
    for atom, *references in zmatrix.rows:
        assert placed.issuperset(references)  # the rows come in an order of placement
        assert references[0] in near[atom]
        placed.add(atom)
    assert placed == set(range(found.n_atoms))
    report = audit(zmatrix, found.positions, found.bonds)
    assert report.ok, str(report)
    assert report.along_bonds == 1
    for bond, count in report.proper_torsions.items():
        assert count == 1 if is_bridge(found.n_atoms, found.bonds, bond) else count <= 1
    assert sum(report.proper_torsions.values()) + report.sibling_torsions == len(zmatrix.rows)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name not in LINEAR])
def test_laws(name: str) -> None:
    check_laws(molecule(name), molecule(name).zmatrix())


def test_alanine_dipeptide() -> None:
    found = molecule("ala2")
    zmatrix = found.zmatrix()
    assert zmatrix.frame == (6, 8, 14)
    assert {(4, 6, 8, 14), (16, 14, 8, 6), (0, 4, 6, 8), (18, 16, 14, 8)} < set(
        zmatrix.rows
    )  # phi, psi, omega
    heavy = [found.elements[row[0]] != "H" for row in zmatrix.rows]
    assert heavy == sorted(heavy, reverse=True)
    assert all(
        found.elements[atom] != "H"
        for row, is_heavy in zip(zmatrix.rows, heavy, strict=True)
        if is_heavy
        for atom in row
    )


def test_tree_is_shallow() -> None:
    found = molecule("chignolin")
    assert found.n_atoms > 140
    assert len(found.zmatrix().levels()) <= 20
    assert len(molecule("ala2").zmatrix().levels()) == 4


def test_torsions_against_siblings_are_those_of_planar_and_tetrahedral_atoms() -> None:
    found, coordinates = instance("ala2")
    near = neighbours(found.n_atoms, found.bonds)
    torsions = coordinates(torch.from_numpy(found.positions))[0][coordinates.torsions].rad2deg().tolist()
    rows = zip(coordinates.zmatrix.rows, torsions, strict=True)
    siblings = [torsion for row, torsion in rows if row[3] in near[row[1]]]
    assert len(siblings) == 12
    assert all(min(abs(abs(torsion) - ideal) for ideal in (120, 180)) < 10 for torsion in siblings)


@pytest.mark.parametrize("name", LINEAR)
def test_linear_groups_find_bent_references(name: str) -> None:
    found = molecule(name)
    zmatrix = found.zmatrix()
    report = audit(zmatrix, found.frames(100), found.bonds)
    assert report.ok, str(report)
    assert report.angle_sine > 0.15 and report.reference_sine > 0.15
    near = neighbours(found.n_atoms, found.bonds)
    assert all(row[1] in near[row[0]] for row in zmatrix.rows)


def test_child_opposite_to_its_parent_turns_to_a_bent_sibling() -> None:
    """An octahedral atom 0 with six neighbours, two more atoms behind two of them."""
    axes = np.concatenate([np.eye(3), -np.eye(3)])
    x = np.concatenate([np.zeros((1, 3)), 0.2 * axes, [[0.25, 0.1, 0.05], [-0.25, 0.05, 0.1]]])
    bonds = (*((0, i) for i in range(1, 7)), (1, 7), (4, 8))
    zmatrix = zmatrix_along_bonds(9, bonds, x)
    report = audit(zmatrix, x, bonds)
    assert report.ok, str(report)
    assert report.angle_sine > 0.3 and report.reference_sine > 0.3 and report.along_bonds == 1


def test_bridging_hydrogens_are_no_obstacle() -> None:
    """Diborane's core: two heavy atoms joined by hydrogens only."""
    x = 0.1 * np.array([[-0.9, 0, 0], [0.9, 0, 0], [0, 0, 1], [0, 0, -1], [-1.5, 1, 0], [1.5, 1, 0]])
    bonds = ((0, 2), (2, 1), (1, 3), (3, 0), (0, 4), (1, 5))
    check_laws(found := Molecule(("B", "B", "H", "H", "H", "H"), bonds, x), found.zmatrix())


def grown_tree(n_atoms: int, rng: np.random.Generator) -> Molecule:
    """Atoms with at most four neighbours, bonds of equal length, and no angle near a line."""
    x, near, bonds = [np.zeros(3)], [[]], []
    while len(x) < n_atoms:
        parent = int(rng.integers(len(x)))
        direction = rng.normal(size=3)
        direction /= np.linalg.norm(direction)
        cosines = [direction @ (x[other] - x[parent]) / 0.15 for other in near[parent]]
        if len(cosines) < 4 and all(-0.85 < cosine < 0.5 for cosine in cosines):
            bonds.append((parent, len(x)))
            near[parent].append(len(x))
            near.append([parent])
            x.append(x[parent] + 0.15 * direction)
    hydrogen = rng.random(n_atoms) < 0.5
    elements = tuple(
        "H" if len(around) == 1 and light else "C" for around, light in zip(near, hydrogen, strict=True)
    )
    return Molecule(elements, tuple(bonds), np.stack(x))


def shuffled(found: Molecule, rng: np.random.Generator) -> Molecule:
    order = rng.permutation(found.n_atoms)  # new atom -> old atom
    where = np.argsort(order)
    bonds = tuple((int(where[i]), int(where[j])) for i, j in found.bonds)
    return Molecule(tuple(found.elements[i] for i in order), bonds, found.positions[order])


@given(st.integers(3, 40), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_laws_of_random_trees(n_atoms: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = shuffled(grown_tree(n_atoms, rng), rng)
    check_laws(found, found.zmatrix())
    zmatrix = zmatrix_along_bonds(found.n_atoms, found.bonds, found.positions)  # without elements
    check_laws(found, zmatrix)


def is_bent(found: Molecule) -> bool:
    """No atom lies on a line with a bond and a neighbour of its ends."""
    near, x = neighbours(found.n_atoms, found.bonds), found.positions[None]
    return all(
        sine(x, i, j, k) >= 0.2
        for j, around in enumerate(near)
        for k in around
        for i in {*around, *near[k]} - {j, k}
    )


@given(st.integers(4, 20), st.integers(1, 5), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_laws_of_random_graphs_with_rings(n_atoms: int, rings: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = [(int(rng.integers(max(0, i - 4), i)), i) for i in range(1, n_atoms)]
    extra = [tuple(map(int, rng.choice(n_atoms, 2, replace=False))) for _ in range(rings)]
    found = Molecule(("C",) * n_atoms, (*tree, *extra), rng.normal(size=(n_atoms, 3)))
    zmatrix = found.zmatrix()
    near = neighbours(found.n_atoms, found.bonds)
    assert all(row[1] in near[row[0]] for row in zmatrix.rows)
    report = audit(zmatrix, found.positions, found.bonds)
    assert report.angle_sine > 0.02 and report.reference_sine > 0.02
    bent = (Molecule(found.elements, found.bonds, rng.normal(size=(n_atoms, 3))) for _ in range(300))
    if bent_one := next(filter(is_bent, bent), None):
        check_laws(bent_one, bent_one.zmatrix())
    event("with a bent structure" if bent_one else "without")


SQUARE = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1]])


@pytest.mark.parametrize(
    ("n_atoms", "bonds", "positions", "message"),
    [
        (2, ((0, 1),), SQUARE[:2], "at least 3 atoms, got 2"),
        (4, ((0, 1), (1, 2)), SQUARE, "2 fragments, with atoms 0, 3"),
        (4, (), SQUARE, "4 fragments, with atoms 0, 1, 2, 3"),
        (4, ((0, 1), (1, 2), (2, 4)), SQUARE, "different atoms of 0 to 3, got 2-4"),
        (4, ((0, 1), (1, 2), (2, -1)), SQUARE, "got 2--1"),
        (4, ((0, 1), (1, 2), (2, 2)), SQUARE, "two different atoms"),
        (4, ((0, 1), (1, 2), (2, 3)), SQUARE[:3], r"shape \(4, 3\) or \(frames, 4, 3\), got \(3, 3\)"),
        (4, ((0, 1), (1, 2), (2, 3)), math.nan * SQUARE, "finite"),
        (4, ((0, 1), (1, 2), (2, 3)), SQUARE * [1, 0, 0], "three bonded atoms that do not lie on a line"),
        (4, ((0, 1), (1, 2), (2, 3)), SQUARE[[0, 1, 2, 2]], "atom 3 lies on a line with all atoms"),
    ],
)
def test_mistakes_are_explained(
    n_atoms: int, bonds: tuple[tuple[int, int], ...], positions: NDArray[np.float64], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        zmatrix_along_bonds(n_atoms, bonds, positions)


def test_wrong_number_of_elements() -> None:
    with pytest.raises(ValueError, match="each of the 4 atoms, got 2"):
        zmatrix_along_bonds(4, ((0, 1), (1, 2), (2, 3)), SQUARE, ("C", "C"))
