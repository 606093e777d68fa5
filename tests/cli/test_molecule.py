"""Which molecule the options stand for."""

from importlib import resources
from pathlib import Path

import pytest

from knotflow.cli.molecule import load_molecule


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
        ({"temperature": 0.0}, "temperature must be a positive number"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_molecule(**options)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no PDB file none\.pdb"):
        load_molecule("none.pdb")
