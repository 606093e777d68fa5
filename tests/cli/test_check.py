"""``knotflow check`` as a user runs it: its table, its exit status, and refusals."""

import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

import pytest
import torch

import knotflow as kf
from knotflow.energies import force_terms
from tests.flows.generators import make


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
    assert "Spline engine: " in done.stdout
    assert done.stdout.rstrip().endswith("All promises are kept.")
    assert not list(tmp_path.iterdir())


def test_a_ring_from_its_sequence(run) -> None:
    status, said = run("--peptide", "P", "--frames", "5", "--solvent", "vacuum", "--temperature", "350")
    assert status == 0 and "P: 26 atoms at 350 K" in said and "All promises are kept" in said


def test_a_file(run, tmp_path) -> None:
    text = (resources.files("knotflow.molecules") / "data" / "ala2.pdb").read_text()
    (tmp_path / "mine.pdb").write_text(text)
    status, said = run("mine.pdb", "--frames", "5", "--force-field", "amber03.xml")
    assert status == 0 and "mine: 22 atoms" in said


def test_the_model_that_comes_with_the_package(run) -> None:
    status, said = run("ala2", "--frames", "50")
    assert (
        status == 0 and "ala2.safetensors: ala2, 22 atoms at 300 K, 1,120,465 parameters, 50 samples" in said
    )


def test_a_broken_promise_ends_in_status_1(run, monkeypatch) -> None:
    monkeypatch.setattr(force_terms, "COULOMB", 1.001 * force_terms.COULOMB)
    status, said = run("--frames", "5")
    assert status == 1
    assert "Broken promises: energy, torch float64; force, torch float64" in said and "NO" in said
    assert "All promises" not in said


def test_a_model(run, tmp_path: Path) -> None:
    make("ala2, lines", torch.float32).save(tmp_path / "run" / "model.safetensors")
    for what in ("run", "run/model.safetensors"):
        status, said = run(what, "--frames", "50")
        assert status == 0 and "All promises are kept." in said
        assert "model.safetensors: ala2, 22 atoms at 300 K," in said and "50 samples" in said
        assert "the force is continuous" in said and "slopes of the layers:" in said
        assert "the molecule has 1 chiral centre" in said


def test_a_flow_without_a_molecule(run, tmp_path: Path) -> None:
    kf.save(kf.Flow.on([kf.Circle()] * 3, transform="rq"), tmp_path / "flow.safetensors")
    status, said = run("flow.safetensors", "--frames", "50")
    assert status == 0 and "flow.safetensors: 3 coordinates," in said
    assert "chiral" not in said and "not finite at edges" in said


def test_a_broken_model_ends_in_status_1(run, tmp_path: Path) -> None:
    model = make("no stereocentre", torch.float32)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    model.save(tmp_path / "model.safetensors")
    status, said = run("model.safetensors", "--frames", "50")
    assert status == 1 and "Broken promises: flow: base there and back, float32;" in said
    assert "nan of domain" in said and "All promises" not in said


WITHOUT_OPENMM = """
import sys
sys.modules["openmm"] = None  # as if it were not installed
from knotflow.cli import main
sys.argv = ["knotflow", "check", "model.safetensors", "--frames", "20"]
main()
"""


def test_a_model_is_checked_without_openmm(tmp_path: Path) -> None:
    make("no stereocentre", torch.float32).save(tmp_path / "model.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPENMM],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("All promises are kept.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.safetensors"], "there is no model file model.safetensors; "),
        (["."], "there is no model.safetensors in ."),
        (["ala3"], "the molecule must be ala2, a file (.pdb"),
        (["a.safetensors", "--peptide", "A"], "--peptide is for molecules; a model has its own"),
        (["a.safetensors", "--temperature", "310"], "--temperature is for molecules"),
        (["a.safetensors", "--add-hydrogens"], "--add-hydrogens is for molecules"),
        (["a.safetensors", "--compiled"], "--compiled is for molecules"),
        (["ala2", "--peptide", "A"], "--peptide is for molecules; a model has its own"),
        (["a.pdb", "--peptide", "A"], "'a.pdb' and --peptide both name a molecule; give only one of them."),
        (["none.pdb"], "there is no PDB file none.pdb."),
        (["--peptide", "XX"], "got 'XX' with 'X'"),
        (["--temperature", "-1"], "temperature must be a positive number of K, got -1.0."),
        (["--add-hydrogens"], "--add-hydrogens is for files"),
        (["--frames", "0"], "Invalid value for '--frames'"),
    ],
)
def test_bad_input_is_explained(run, arguments: list[str], message: str) -> None:
    status, said = run(*arguments)
    assert status == 2 and message in said and "All promises" not in said
