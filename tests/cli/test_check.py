"""``knotflow check`` as a user runs it: its table, its exit status, and refusals."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

import pytest

from knotflow.physics import force_terms


@pytest.fixture
def run(run_here) -> Callable[..., tuple[int, str]]:
    return partial(run_here, "check")


def test_alanine_dipeptide_in_a_process_of_its_own(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "knotflow"), "check", "--frames", "20"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "ala2: 22 atoms at 300 K, 20 random frames" in done.stdout
    row = next(line for line in done.stdout.splitlines() if "force, torch float64" in line)
    assert "0.01 kT/nm" in row and "yes" in row
    assert "the molecule has 1 chiral centre" in done.stdout
    assert "100% of rows along bonds" in done.stdout
    assert done.stdout.rstrip().endswith("All promises are kept.")
    assert not list(tmp_path.iterdir())


def test_a_ring_from_its_sequence(run) -> None:
    status, said = run("--peptide", "P", "--frames", "5", "--solvent", "vacuum", "--temperature", "350")
    assert status == 0 and "P: 26 atoms at 350 K" in said and "All promises are kept" in said


def test_a_file(run, tmp_path) -> None:
    text = (resources.files("knotflow.physics") / "data" / "ala2.pdb").read_text()
    (tmp_path / "mine.pdb").write_text(text)
    status, said = run("mine.pdb", "--frames", "5", "--force-field", "amber03.xml")
    assert status == 0 and "mine: 22 atoms" in said


def test_a_broken_promise_ends_in_status_1(run, monkeypatch) -> None:
    monkeypatch.setattr(force_terms, "COULOMB", 1.001 * force_terms.COULOMB)
    status, said = run("ala2", "--frames", "5")
    assert status == 1
    assert "Broken promises: energy, torch float64; force, torch float64" in said and "NO" in said
    assert "All promises" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.safetensors"], "expected ala2 or a .pdb file to check, got 'model.safetensors'"),
        (["ala3"], "expected ala2 or a .pdb file to check, got 'ala3'; see also --peptide"),
        (["ala2", "--peptide", "A"], "'ala2' and --peptide both name a molecule; give only one of them."),
        (["none.pdb"], "there is no PDB file none.pdb."),
        (["--peptide", "XX"], "got 'XX' with 'X'"),
        (["--temperature", "-1"], "temperature must be a positive number of K, got -1.0."),
        (["--add-hydrogens"], "--add-hydrogens is for .pdb files"),
        (["--frames", "0"], "Invalid value for '--frames'"),
    ],
)
def test_bad_input_is_explained(run, arguments: list[str], message: str) -> None:
    status, said = run(*arguments)
    assert status == 2 and message in said and "All promises" not in said
