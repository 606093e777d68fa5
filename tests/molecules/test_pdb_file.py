"""PDB and mmCIF files: the same structure from both, and what is left out is named."""

import gzip
import logging
from importlib import resources
from pathlib import Path

import mdtraj
import numpy as np
import pytest
from openmm import app, unit

from knotflow.molecules.pdb_file import read_pdb
from knotflow.molecules.peptides import peptide
from knotflow.molecules.system import from_pdb
from tests.molecules.molecules import molecule

TEXT = (resources.files("knotflow.molecules") / "data" / "ala2.pdb").read_text()
ATOMS = [line for line in TEXT.splitlines() if line.startswith("ATOM")]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join([*lines, "END\n"]))
    return path


def test_compressed_files_and_mmcif_give_the_same_molecule(tmp_path: Path) -> None:
    plain = read_pdb(write(tmp_path / "a.pdb", *ATOMS))
    with (tmp_path / "a.cif").open("w") as file:
        app.PDBxFile.writeFile(plain.topology, plain.positions * unit.nanometer, file)
    for name in ("a.pdb", "a.cif"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    for name in ("a.pdb.gz", "a.cif", "a.cif.gz"):
        found = read_pdb(tmp_path / name)
        np.testing.assert_allclose(found.positions, plain.positions, atol=1e-6)
        assert [str(atom) for atom in found.topology.atoms()] == [str(a) for a in plain.topology.atoms()]
    ours, theirs = from_pdb(tmp_path / "a.pdb"), from_pdb(tmp_path / "a.cif.gz")
    assert theirs.name == "a" and theirs.bonds == ours.bonds
    np.testing.assert_allclose(theirs.positions, ours.positions, atol=1e-5)  # the same minimum
    with pytest.raises(FileNotFoundError, match=r"there is no mmCIF file .*none\.cif"):
        read_pdb(tmp_path / "none.cif")
    (tmp_path / "b.cif").write_text("data_x\n")
    with pytest.raises(ValueError, match="cannot be read as an mmCIF file"):
        read_pdb(tmp_path / "b.cif")


def test_models_and_places_that_are_left_out_are_named(tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.WARNING)
    read_pdb(write(tmp_path / "a.pdb", *ATOMS))
    assert not caplog.messages
    models = ["MODEL        1", *ATOMS, "ENDMDL", "MODEL        2", *ATOMS, "ENDMDL"]
    found = read_pdb(write(tmp_path / "two.pdb", *models))
    assert len(found.positions) == 22 and "has 2 models; the first is used" in caplog.messages.pop()
    caplog.clear()
    places = [line[:16] + "A" + line[17:] for line in ATOMS[:2]] + [
        line[:16] + "B" + line[17:30] + f"{float(line[30:38]) + 0.3:8.3f}" + line[38:] for line in ATOMS[:2]
    ]
    found = read_pdb(write(tmp_path / "alt.pdb", *places, *ATOMS[2:]))
    assert len(found.positions) == 22 and "has 2 atoms with alternate locations" in caplog.text
    caplog.clear()
    rows = "".join(
        f"ATOM {i} C CH3 {place} ACE A 1 {x} 0 0 1\n" for i, (place, x) in enumerate((("A", 0.0), ("B", 0.4)))
    )
    columns = "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id label_seq_id"
    columns += " Cartn_x Cartn_y Cartn_z pdbx_PDB_model_num"
    head = "".join(f"_atom_site.{name}\n" for name in columns.split())
    (tmp_path / "alt.cif").write_text(f"data_x\nloop_\n{head}{rows}#\n")
    assert len(read_pdb(tmp_path / "alt.cif").positions) == 1
    assert "has 1 atoms with alternate locations" in caplog.text


def test_residues_of_the_other_hand_are_named(tmp_path: Path, caplog) -> None:
    """A natural peptide is not mentioned; its mirror image has D-residues and the other side chains."""
    caplog.set_level(logging.WARNING)
    made = peptide("TI", solvent="vacuum")
    topology = made.topology.to_openmm()
    for name, x in (("l.pdb", made.positions), ("d.pdb", -made.positions)):
        with (tmp_path / name).open("w") as file:
            app.PDBFile.writeFile(topology, x * unit.nanometer, file)
    read_pdb(tmp_path / "l.pdb")
    assert not caplog.messages
    read_pdb(tmp_path / "d.pdb")
    assert "D-THR 2, CB of THR 2, D-ILE 3, CB of ILE 3." in caplog.text


def test_unknown_elements_are_refused(tmp_path: Path) -> None:
    lines = [*ATOMS[:-1], ATOMS[-1].replace(" H3 ", " Q3 ").rstrip()[:76] + " X"]
    with pytest.raises(ValueError, match="atom Q3 of residue NME 3 of chain A has no known element"):
        read_pdb(write(tmp_path / "a.pdb", *lines))


def test_a_file_cut_in_its_bonds_is_refused(tmp_path: Path) -> None:
    system, path = molecule("ala2"), tmp_path / "cut.pdb"
    mdtraj.Trajectory(system.positions[None], system.topology).save_pdb(str(path))
    whole = path.read_text()
    assert whole.count("CONECT") > 5 and read_pdb(path).topology.getNumAtoms() == 22
    for cut in (whole.index("CONECT") + 30, len(whole) - 40):
        path.write_text(whole[:cut])
        with pytest.raises(
            ValueError, match=r"cut\.pdb .*it ends in the middle of its bonds, .* add a line END"
        ):
            read_pdb(path)
    path.write_text("\n".join(line for line in whole.split("\n") if not line.startswith(("CONECT", "END"))))
    assert read_pdb(path).topology.getNumAtoms() == 22
