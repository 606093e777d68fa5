"""Molecules without a force field: what RDKit reads, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import AllChem

from knotflow.molecules.chemical import read_chemical
from knotflow.molecules.structure import check_one_molecule


def embedded(smiles: str) -> Chem.Mol:
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    assert AllChem.EmbedMolecule(mol, randomSeed=7) == 0
    return mol


def elements(found: object) -> str:
    return "".join(atom.element.symbol for atom in found.structure.topology.atoms())


def test_a_smiles_becomes_the_same_structure_every_time() -> None:
    found, again = read_chemical("C[C@H](O)F"), read_chemical("C[C@H](O)F")
    np.testing.assert_array_equal(found.structure.positions, again.structure.positions)
    assert elements(found) == "CCOFHHHHH" and (found.charge, found.multiplicity) == (0, 1)
    check_one_molecule(found.structure)
    names = [atom.name for atom in found.structure.topology.atoms()]
    assert names[:6] == ["C1", "C2", "O1", "F1", "H1", "H2"] and len(set(names)) == 9
    # The other enantiomer has the other hand: the volume at C2 changes its sign.
    mirror = read_chemical("C[C@@H](O)F")
    volumes = [
        np.linalg.det(x.structure.positions[[0, 2, 3]] - x.structure.positions[1]) for x in (found, mirror)
    ]
    assert volumes[0] * volumes[1] < 0


@pytest.mark.parametrize(
    ("smiles", "charge", "multiplicity"),
    [("[NH4+]", 1, 1), ("[CH3]", 0, 2), ("CC(=O)[O-]", -1, 1), ("[O][O]", 0, 3), ("c1ccccc1", 0, 1)],
)
def test_charge_and_multiplicity_are_those_of_the_formula(
    smiles: str, charge: int, multiplicity: int
) -> None:
    found = read_chemical(smiles)
    assert (found.charge, found.multiplicity) == (charge, multiplicity)


@pytest.mark.parametrize("smiles", ["C12C3C4C1C5C2C3C45", "C1C3CC2CC(CC1C2)C3"])
def test_cages_need_no_stereochemistry(smiles: str) -> None:
    """Cubane and adamantane: rings leave their centres no choice."""
    assert elements(read_chemical(smiles)).count("C") in (8, 10)


@pytest.mark.parametrize("ending", ["sdf", "mol"])
def test_positions_in_a_file_are_kept(tmp_path: Path, ending: str) -> None:
    mol = embedded("CC(O)F")  # its hand is that of its positions
    path = tmp_path / f"a.{ending}"
    path.write_text(Chem.MolToMolBlock(mol) + "$$$$\n" * (ending == "sdf"))
    found = read_chemical(str(path))
    np.testing.assert_allclose(10 * found.structure.positions, mol.GetConformer().GetPositions(), atol=1e-4)
    pairs = {(a.index, b.index) for a, b in found.structure.topology.bonds()}
    assert pairs == {(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()}
    flat = Chem.Mol(Chem.MolFromSmiles("CCO"))
    AllChem.Compute2DCoords(flat)
    path.write_text(Chem.MolToMolBlock(flat))
    assert elements(read_chemical(str(path))) == "CCOHHHHHH", "a drawing gets hydrogens and a structure"


MOL2 = """@<TRIPOS>MOLECULE
water
3 2 0 0 0
SMALL
NO_CHARGES

@<TRIPOS>ATOM
1 O1 0.0000 0.0000 0.1000 O.3 1 HOH
2 H1 0.7600 0.0000 -0.4700 H 1 HOH
3 H2 -0.7600 0.0000 -0.4700 H 1 HOH
@<TRIPOS>BOND
1 1 2 1
2 1 3 1
"""


def test_mol2(tmp_path: Path) -> None:
    path = tmp_path / "a.mol2"
    path.write_text(MOL2)
    found = read_chemical(str(path))
    assert elements(found) == "OHH" and found.structure.positions[1, 0] == pytest.approx(0.076)
    path.write_text(MOL2 + MOL2)
    with pytest.raises(ValueError, match="holds 2 molecules; keep one"):
        read_chemical(str(path))


@pytest.mark.parametrize(
    ("smiles", "message"),
    [
        ("CC(O)F", "leaves the stereochemistry open at atom C2, so it stands for several molecules"),
        ("CC=CC", "open at the double bond C2=C3"),
        ("CC1CCC(C)CC1", "open at atom C2, atom C5"),
        ("CCO.Cl", r"has 2 fragments that no bonds connect \(CCO, Cl\)"),
        ("C*", r"atom 2 \(\*\) is of no known element"),
        ("C(C)(C)(C)(C)C", "is no possible molecule: .*valence.*; correct it"),
        ("ala3", "'ala3' cannot be read as the name of a molecule, a file or a SMILES"),
        ("", "cannot be read as the name of a molecule"),
        ("C1#CC1", "cannot be embedded: RDKit finds no structure in space"),
    ],
)
def test_what_is_not_one_known_molecule_is_refused(smiles: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_chemical(smiles)
    assert "\n" not in str(caught.value)


def test_missing_hydrogens_and_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bare.sdf"
    path.write_text(Chem.MolToMolBlock(Chem.RemoveHs(embedded("CCO"))))
    with pytest.raises(ValueError, match=r"lacks 6 hydrogen atoms; .*--add-hydrogens"):
        read_chemical(str(path))
    assert elements(read_chemical(str(path), add_hydrogens=True)) == "CCOHHHHHH"
    path.write_text("no molecule")
    with pytest.raises(ValueError, match="cannot be read as a molecule"):
        read_chemical(str(path))
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.sdf"):
        read_chemical(str(tmp_path / "none.sdf"))
