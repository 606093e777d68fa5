"""Molecules, atoms and files with nasty names: markup, formulas, placeholders, control characters."""

import copy
from pathlib import Path

import mdtraj
import numpy as np
import pytest

from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules import MolecularSystem
from knotflow.report.figures import png, save, titled_axis
from knotflow.storage.pdb import PdbFile
from tests.analysis.generators import ala2_data, ala2_generator, chain_generator, write
from tests.cli.test_kills import Child, quick  # noqa: F401
from tests.molecules.molecules import molecule

NAMES = ["[/x]", r"$\bad$", "%n", "a\nb", "[bold]:x:", "\x1b[31mred", "$", "ü 分子", "{x}", "-"]


@pytest.mark.parametrize("name", NAMES)
def test_pictures(tmp_path: Path, name: str) -> None:
    figure, axis = titled_axis(name)
    axis.semilogy([1, 10, 1000], label=name)
    axis.set_xlabel(name)
    axis.set_xticks([0, 1], [name, name])
    axis.legend()
    assert png(figure).startswith(b"\x89PNG")
    save(figure, tmp_path / "a.svg")
    shown = (tmp_path / "a.svg").read_text()
    if "$" in name:
        assert f"<!-- {name} -->" in shown
    assert r"\mathdefault" not in shown.replace("<!-- $\\mathdefault", "")


@pytest.mark.parametrize("name", NAMES)
def test_pdb_files(tmp_path: Path, name: str) -> None:
    system = molecule("ala2")
    topology = copy.deepcopy(system.plain()["topology"])
    for chain in topology["chains"]:
        for residue in chain["residues"]:
            residue["name"] = name
            for atom in residue["atoms"]:
                atom["name"] = name
    file = PdbFile(tmp_path / "a.pdb", topology)
    file.write(system.positions[None].astype(np.float32))
    file.close()
    assert {len(line) for line in (tmp_path / "a.pdb").read_text().splitlines() if "ATOM" in line} == {80}
    np.testing.assert_allclose(mdtraj.load(tmp_path / "a.pdb").xyz[0], system.positions, atol=6e-5)


def renamed(generator: BoltzmannGenerator, name: str) -> BoltzmannGenerator:
    """The generator of a molecule that has this name, with such atoms."""
    plain = copy.deepcopy(generator.molecule)
    plain["name"] = name
    for chain in plain["topology"]["chains"]:
        for residue in chain["residues"]:
            for atom in residue["atoms"]:
                atom["name"] = f"{name}{atom['index']}"
    return BoltzmannGenerator(generator.coordinates, generator.flow, plain)


@pytest.mark.parametrize(
    "name", ["[/x]", r"$\bad$", pytest.param("%n\n\x1b[31m[bold]:x:", marks=pytest.mark.slow)]
)
def test_commands(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "here"
    model, data = folder / f"{name}.safetensors", folder / f"{name}.h5"
    model.parent.mkdir(parents=True)
    generator = renamed(chain_generator(), name)
    generator.save(model)
    system = MolecularSystem.parse(generator.molecule)
    x = generator.sample(200).detach().double().numpy()
    write(data, system, x, np.repeat(np.arange(20), 10))
    for command, *rest in (
        ["sample", "-n", "20", "--out", f"{name}-new.h5"],
        ["sample", "-n", "20", "--out", f"{name}-new.pdb"],
        ["exact", "-n", "8", "--chains", "4", "--burn-in", "1", "--every", "1", "--out", f"{name}-chains.h5"],
        ["dynamics", "--replicas", "2", "--production", "0.001", "--equilibration", "0", "--every", "5",
         "--out", f"{name}-dynamics", "--trajectory", f"{name}-moves.pdb"],
        ["check", "--frames", "20"],
        ["report", data.relative_to(folder), "--samples", "50", "--out", f"{name}-page.html"],
        ["train", "--preset", "quick", "--epochs", "1", "--out", f"{name}-run"],
        ["sample", "-n", "0"],
    ):  # fmt: skip
        subject = data if command == "train" else model
        child = Child(folder, [command, str(subject.relative_to(folder)), *map(str, rest)])
        status, said = child.wait(), child.log.read_text()
        assert status in ((2,) if rest[-1] == "0" else (0, 1) if command == "check" else (0,)), said
        assert "Traceback" not in said and "\x1b" not in said, said


def test_names_of_residues_in_tables(tmp_path: Path) -> None:
    data = ala2_data(tmp_path / "data.h5")
    generator = ala2_generator(data)
    plain = copy.deepcopy(generator.molecule)
    plain["name"] = "[/x]"
    BoltzmannGenerator(generator.coordinates, generator.flow, plain).save(tmp_path / "m.safetensors")
    child = Child(tmp_path, "evaluate m.safetensors data.h5 --samples 20 --out new.json")
    assert child.wait() == 0, child.log.read_text()
    assert "[/x] at 300 K" in child.log.read_text()
