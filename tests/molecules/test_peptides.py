"""Peptides from their sequence: complete, L, and a molecule the force field knows."""

import itertools

import numpy as np
import pytest

from knotflow.molecules.peptides import AMINO_ACIDS, peptide
from knotflow.molecules.system import MolecularSystem, ala2

CHIGNOLIN = "GYDPETGTWG"
# In the order of AMINO_ACIDS; atoms inside a chain at pH 7, counted from their formulas.
ATOMS = {
    "ALA": 10, "CYS": 11, "ASP": 12, "GLU": 15, "PHE": 20, "GLY": 7, "HIS": 17, "ILE": 19, "LYS": 22,
    "LEU": 19, "MET": 17, "ASN": 14, "PRO": 14, "GLN": 17, "ARG": 24, "SER": 11, "THR": 14, "VAL": 16,
    "TRP": 24, "TYR": 21,
}  # fmt: skip


@pytest.fixture(scope="module")
def all_twenty() -> MolecularSystem:
    return peptide(AMINO_ACIDS)


def handedness(molecule: MolecularSystem, residue: object, centre: str, neighbours: str) -> float:
    """Triple product of unit vectors from an atom to three others in order of priority: positive if S."""
    at = {atom.name: molecule.positions[atom.index] for atom in residue.atoms}
    a, b, c = ((at[name] - at[centre]) / np.linalg.norm(at[name] - at[centre]) for name in neighbours.split())
    return float(np.dot(np.cross(a, b), c))


def torsion(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> float:
    """In degrees."""
    n1, n2 = np.cross(b - a, c - b), np.cross(c - b, d - c)
    axis = (c - b) / np.linalg.norm(c - b)
    return float(np.degrees(np.arctan2(np.dot(np.cross(n1, n2), axis), np.dot(n1, n2))))


def test_one_alanine_is_alanine_dipeptide() -> None:
    found, expected = peptide("A"), ala2()
    assert found.topology == expected.topology
    assert found.bonds == expected.bonds
    np.testing.assert_array_equal(found.masses, expected.masses)
    assert found.name == "A" and found.origin["source"] == "peptide ACE-A-NME"


def test_all_amino_acids_are_there(all_twenty: MolecularSystem) -> None:
    sizes = [(residue.name, residue.n_atoms) for residue in all_twenty.topology.residues]
    assert sizes == [("ACE", 6), *ATOMS.items(), ("NME", 6)]
    # One molecule: a tree, and a bond more for every ring (F, H, P, Y one; W two).
    assert len(all_twenty.bonds) == all_twenty.n_atoms - 1 + 6


def test_all_amino_acids_have_the_hand_of_nature(all_twenty: MolecularSystem) -> None:
    for residue in list(all_twenty.topology.residues)[1:-1]:
        if residue.name != "GLY":
            assert handedness(all_twenty, residue, "CA", "N C CB") > 0.5, residue
        if residue.name == "ILE":
            assert handedness(all_twenty, residue, "CB", "CA CG1 CG2") > 0.5
        if residue.name == "THR":
            assert handedness(all_twenty, residue, "CB", "OG1 CA CG2") < -0.5


@pytest.mark.parametrize("sequence", [CHIGNOLIN, "PP", "H", "C"])
def test_the_chain_is_sound(sequence: str) -> None:
    molecule = peptide(sequence)
    lengths = [np.linalg.norm(molecule.positions[i] - molecule.positions[j]) for i, j in molecule.bonds]
    assert min(lengths) > 0.09 and max(lengths) < 0.19
    residues = list(molecule.topology.residues)
    assert len(residues) == len(sequence) + 2
    for one, two in itertools.pairwise(residues):
        at = {(r.index, atom.name): molecule.positions[atom.index] for r in (one, two) for atom in r.atoms}
        before = at.get((one.index, "CA"), at.get((one.index, "CH3")))
        after = at.get((two.index, "CA"), at.get((two.index, "C")))
        omega = torsion(before, at[one.index, "C"], at[two.index, "N"], after)
        assert abs(omega) > 150, f"{one}-{two} is not trans"


def test_the_same_sequence_gives_the_same_structure() -> None:
    one, two = peptide("gs"), peptide(" GS\n")
    assert one.name == two.name == "GS" and one.xml == two.xml
    np.testing.assert_array_equal(one.positions, two.positions)


def test_force_field_and_solvent_can_be_chosen() -> None:
    molecule = peptide("G", ["amber14/protein.ff14SB.xml"], "vacuum", 350)
    assert molecule.origin["force_field"] == ["amber14/protein.ff14SB.xml"]
    assert molecule.temperature == 350
    assert not any("GB" in type(force).__name__ for force in molecule.openmm_system().getForces())


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ("", "1 to 100 residues, got 0"),
        ("  ", "1 to 100 residues, got 0"),
        ("G" * 101, "1 to 100 residues, got 101"),
        ("GAXB", "got 'GAXB' with 'B', 'X'"),
        ("ACE-ALA-NME", "with '-'.* leave the caps out"),
        ("A A", "with ' '"),
    ],
)
def test_sequences_that_make_no_sense_are_refused(sequence: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        peptide(sequence)
