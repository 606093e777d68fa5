"""Which molecule its name and options stand for."""

from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from openmm import app, unit
from rdkit import Chem

import knotflow as kf
from knotflow.storage import trajectory
from knotflow.workflows.molecule import load_molecule
from tests.bare_molecules import bare
from tests.molecules import peroxide
from tests.molecules.test_chemical import embedded


def test_alanine_dipeptide_is_the_default() -> None:
    default, named = load_molecule(), load_molecule("ala2")
    assert default.name == "ala2" and default.xml == named.xml
    dry = load_molecule("ala2", solvent="vacuum", temperature=400)
    assert dry.temperature == 400 and dry.origin["force_field"] == ["amber99sbildn.xml"]


def test_a_file_or_a_sequence(tmp_path: Path) -> None:
    path = tmp_path / "dipeptide.PDB"
    path.write_text((resources.files("knotflow.molecules") / "data" / "ala2.pdb").read_text())
    found = load_molecule(str(path), force_field=["amber03.xml"], add_hydrogens=True)
    assert found.name == "dipeptide" and found.origin["force_field"] == ["amber03.xml", "amber03_obc.xml"]
    assert load_molecule(peptide="GG", solvent="vacuum").name == "GG"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"molecule": "ala2", "peptide": "A"}, "--molecule and --peptide both"),
        ({"molecule": "ala3"}, "must be ala2, a file .* got 'ala3'"),
        ({"molecule": "ala2", "force_field": ["amber03.xml"]}, "use --peptide A"),
        ({"force_field": ["amber03.xml"]}, "use --peptide A"),
        ({"add_hydrogens": True}, "--add-hydrogens is for files"),
        ({"peptide": "A", "add_hydrogens": True}, "--add-hydrogens is for files"),
        ({"peptide": ""}, "1 to 100 residues"),
        (
            {"energy": "xtb", "force_field": ["amber03.xml"]},
            "--force-field and --energy xtb are two",
        ),
        ({"energy": "xtb", "charge": 1}, "77 electrons at charge 1, an odd number, so it is an open shell"),
        ({"charge": 1}, "--charge must go with the energies xtb or ase"),
        ({"energy": "dft"}, "an energy must be force-field, xtb"),
        ({"temperature": 0.0}, "temperature must be a positive number"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_molecule(**options)


def test_another_energy_for_files_and_peptides(tmp_path: Path) -> None:
    structure = bare("CH3CH2OH")
    with (tmp_path / "ethanol.pdb").open("w") as file:
        app.PDBFile.writeFile(structure.topology, structure.positions * unit.nanometer, file)
    found = load_molecule(str(tmp_path / "ethanol.pdb"), energy="xtb", temperature=310)
    assert found.energy is not None and found.energy["kind"] == "xtb" and found.temperature == 310
    assert found.name == "ethanol" and found.origin == {"source": "ethanol.pdb"} and len(found.bonds) == 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("knotflow.energies.assembly.minimise", lambda energy, x: (x, 0.0))
        made = load_molecule(energy="xtb"), load_molecule(peptide="G", energy="xtb")
    assert [system.name for system in made] == ["ala2", "G"]
    assert all(system.energy and system.openmm_system().getNumForces() == 0 for system in made)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no PDB file none\.pdb"):
        load_molecule("none.pdb")


def test_files_of_md_programs(tmp_path: Path) -> None:
    inpcrd, prmtop = peroxide.write_amber(tmp_path)
    assert load_molecule(str(inpcrd), force_field=[str(prmtop)]).origin["parameters"] == ["hooh.prmtop"]


def test_a_smiles_needs_an_energy_without_force_field(tmp_path: Path) -> None:
    """Charge and multiplicity are those of the formula unless they are given."""
    with pytest.raises(ValueError, match=r"no force field is known for mol\.sdf; add --energy xtb"):
        load_molecule("mol.sdf")
    with pytest.raises(
        ValueError, match=r"with --energy xtb, an \.sdf or \.mol2 file or a SMILES, got 'OCO'"
    ):
        load_molecule("OCO")
    with pytest.raises(ValueError, match="'ala3' cannot be read as the name of a molecule"):
        load_molecule("ala3", energy="xtb")
    pytest.importorskip("tblite")
    ion = load_molecule("[OH3+]", energy="xtb")
    assert (ion.name, ion.n_atoms, ion.energy["charge"], ion.energy["multiplicity"]) == ("[OH3+]", 4, 1, 1)
    radical = load_molecule("[CH3]", energy="xtb")
    assert (radical.energy["charge"], radical.energy["multiplicity"]) == (0, 2)
    cation = load_molecule("[CH3]", energy="xtb", charge=1)
    assert (cation.energy["charge"], cation.energy["multiplicity"]) == (1, 1)
    path = tmp_path / "water.sdf"
    path.write_text(Chem.MolToMolBlock(embedded("O")))
    assert load_molecule(str(path), energy="xtb").name == "water"


def test_an_sdf_with_a_force_field_of_its_own(tmp_path: Path) -> None:
    path, own = tmp_path / "chlorine.sdf", tmp_path / "own.xml"
    path.write_text(Chem.MolToMolBlock(embedded("ClCl")))
    own.write_text(
        '<ForceField><AtomTypes><Type name="x" class="x" element="Cl" mass="35.45"/></AtomTypes><Residues>'
        '<Residue name="CL2"><Atom name="A" type="x"/><Atom name="B" type="x"/>'
        '<Bond atomName1="A" atomName2="B"/></Residue></Residues>'
        '<HarmonicBondForce><Bond class1="x" class2="x" length="0.199" k="2e5"/></HarmonicBondForce>'
        "</ForceField>"
    )
    found = load_molecule(str(path), force_field=[str(own)], solvent="vacuum")
    assert found.name == "chlorine"
    assert np.linalg.norm(found.positions[0] - found.positions[1]) == pytest.approx(0.199, abs=1e-3)


def test_python_takes_what_the_command_takes(tmp_path: Path) -> None:
    pytest.importorskip("tblite")
    short = {"ns": 0.000002, "replicas": 1, "every": 0.001, "equilibration": 0.001, "workers": 1}
    path = kf.simulate("O", tmp_path / "water.h5", energy="xtb", temperature=310, **short)
    found = trajectory.open_info(path).system
    assert (found.name, found.energy["kind"], found.temperature) == ("O", "xtb", 310)
    again = kf.simulate(found, path, **short)
    assert again == path
    with pytest.raises(ValueError, match="O is a molecule with an energy already, so leave out energy"):
        kf.simulate(found, path, energy="xtb", **short)
    with pytest.raises(ValueError, match=r"no force field is known for mine\.sdf"):
        kf.run("mine.sdf", out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"must be one of simulate, train, .*, got 'trian'"):
        kf.run("ala2", out=tmp_path / "run", again="trian")
    assert not (tmp_path / "run").exists()


def test_one_file_of_a_force_field_needs_no_list() -> None:
    one, several = (
        load_molecule(peptide="G", force_field=given) for given in ("amber03.xml", ["amber03.xml"])
    )
    assert one.xml == several.xml
