"""``knotflow evaluate`` as a user runs it: tables, metrics.json, the same numbers again, and refusals."""

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import knotflow as kf
from knotflow.energies import TorchForceField, choose
from knotflow.files import read_json
from tests.analysis.generators import ala2_data, ala2_generator, chain_data, chain_generator
from tests.analysis.ladders import ladder_data, warm_generator


@pytest.fixture
def run(run_here) -> Callable[..., tuple[int, str]]:
    return partial(run_here, "evaluate")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with data of two molecules and a run of each."""
    folder = tmp_path_factory.mktemp("made")
    for name, data, generator in (
        ("ala2", ala2_data, lambda path: ala2_generator(path)),
        ("chain", chain_data, lambda path: chain_generator()),
    ):
        path = data(folder / f"{name}.h5")
        frames = 120 if name == "ala2" else 4000
        split = {"file": path.name, "frames": frames, "kind": "time", "validation": [[frames // 2, frames]]}
        (folder / name).mkdir()
        generator(path).save(folder / name / "model.safetensors", split=split)
    return folder


def test_alanine_dipeptide_from_its_run_folder(run, made: Path) -> None:
    status, said = run(str(made / "ala2"), str(made / "ala2.h5"), "--samples", "300")
    assert status == 0
    assert "300 samples, 60 frames (held out, of 120 in ala2.h5)" in said
    for text in (
        "NLL of the data",
        "KL(flow ‖ target)",
        "effective sample size",
        "Pareto k",
        "ALA2",
        "reweighted",
    ):
        assert text in said
    assert "phi > 0 is never visited" in said and "data: densities and forces" in said
    found = read_json(made / "ala2" / "metrics.json")
    assert found["about"]["samples"] == 300 and found["about"]["data"]["rows"] == "validation"
    assert set(found["residues"]["ALA2"]["side_difference_data"]) == {
        "text",
        "value",
        "error",
        "unit",
        "note",
    }

    status, _ = run(str(made / "ala2"), str(made / "ala2.h5"), "--samples", "300", "--out", "new/again.json")
    again = read_json(Path("new/again.json"))
    assert status == 0 and again.pop("seconds").keys() == found.pop("seconds").keys() and again == found


def test_a_model_file_all_frames_double_precision(run, made: Path) -> None:
    model = str(made / "chain" / "model.safetensors")
    options = ["--samples", "200", "--seed", "5", "--all-frames", "--float64", "--out", "m.json"]
    status, said = run(model, str(made / "chain.h5"), *options)
    assert status == 0 and "4,000 frames (all 4,000 in chain.h5)" in said
    assert "No torsion or ring has more than one well" in said and "All numbers: m.json" in said
    about = read_json(Path("m.json"))["about"]
    assert (about["dtype"], about["seed"], about["data"]["rows"]) == ("float64", 5, "all")
    assert about["energy"] == "OpenMMEnergy"


def test_states_of_the_user_beside_exact_chains(run, made: Path) -> None:
    model, data = str(made / "chain"), str(made / "chain.h5")
    options = ["--samples", "200", "--out", "m.json", "--chains", data, "--state"]
    states = ["left: torsion 0 1 2 3 in -180..0", "--state", "all: torsion C1 C2 C3 C4 in 0..360"]
    status, said = run(model, data, *options, *states)
    assert status == 0 and "your states" in said and "F(all) -" in said and "exact" in said
    found = read_json(Path("m.json"))
    (left, all_of_it) = found["states"][0]["states"]
    assert set(left["population"]) == {"data", "samples", "reweighted", "exact"}
    assert all_of_it["population"]["data"]["value"] == 1 and "note" in all_of_it["population"]["data"]
    status, said = run(model, data, *options, "left: torsion 0 1 2 9 in -180..0", "--out", "n.json")
    assert status == 2 and "there is no atom 9" in said and not Path("n.json").exists()


def test_many_samples_use_the_torch_force_field(run, made: Path, monkeypatch) -> None:
    monkeypatch.setattr(choose, "MANY", 100)
    monkeypatch.setattr(
        choose, "TorchForceField", lambda system, compiled: TorchForceField(system, compiled=False)
    )
    status, _ = run(str(made / "chain"), str(made / "chain.h5"), "--samples", "100", "--out", "m.json")
    assert status == 0
    assert read_json(Path("m.json"))["about"]["energy"] == "TorchForceField"


def test_temperatures_of_a_model_beside_those_of_the_simulation(run, tmp_path: Path) -> None:
    data = ladder_data(tmp_path / "warm.h5", moments=20)
    warm_generator().save(tmp_path / "warm.safetensors")
    options = ["--samples", "300", "--temperature", "300", "--temperature", "400", "--out", "m.json"]
    status, said = run("warm.safetensors", str(data), *options)
    assert status == 0 and "chain at 300 K: 300 samples" in said
    for text in ("Temperatures: weighted", "400 K", "J/mol/K", "samples at 400 K", "3Nk/2 = 49.9 J/mol/K"):
        assert text in said, text
    cold, warm = read_json(Path("m.json"))["temperatures"]
    assert (cold["temperature"], warm["temperature"]) == (300.0, 400.0)
    assert cold["measures"]["free_energy"]["value"] == cold["reference"]["free_energy"]["value"] == 0
    for name in ("free_energy", "energy", "heat_capacity"):
        own, other = warm["measures"][name], warm["reference"][name]
        gap, error = own["value"] - other["value"], math.hypot(own["error"], other["error"])
        assert abs(gap) < 5 * error, name
    status, said = run("warm.safetensors", str(data), "--temperature", "500", "--out", "n.json")
    assert status == 2 and "was trained from 300 to 450 K, got 500 K; choose" in said
    assert not Path("n.json").exists()


def test_bad_input_is_explained_and_writes_nothing(run, made: Path, tmp_path: Path) -> None:
    model, data = str(made / "chain"), str(made / "chain.h5")
    (tmp_path / "unfinished").mkdir()
    kf.save(kf.Flow.on([kf.Interval()] * 2), tmp_path / "flow.safetensors")
    before = sorted(tmp_path.iterdir())
    for arguments, message in (
        (
            ["none.safetensors", data],
            "there is no model file none.safetensors; models that come with knotflow: ",
        ),
        (["unfinished", data], "there is no model.safetensors in unfinished; a training writes it"),
        (["flow.safetensors", data], "flow.safetensors holds a flow without a molecule"),
        ([data, data], "is not a .safetensors file, or is damaged"),
        ([model, "none.h5"], "there is no trajectory none.h5; make one with `knotflow simulate`"),
        ([model, model + "/model.safetensors"], "is not an HDF5 file"),
        ([model, str(made / "ala2.h5")], "the model is of chain with 4 atoms, the data of ala2 with 22"),
        ([model, data, "--out", "unfinished"], "--out must be a file, such as metrics.json"),
        ([model, data, "--out", "flow.safetensors"], "--out must be a file ending in .json"),
        ([model, data, "--samples", "1"], "Invalid value for '--samples'"),
    ):
        status, said = run(*arguments)
        assert status == 2 and message in said, said
    assert sorted(tmp_path.iterdir()) == before and not (made / "chain" / "metrics.json").exists()


@pytest.mark.parametrize("package", ["ot", "pymbar", "arviz_stats"])
def test_a_missing_package_is_named_at_once(run, made: Path, monkeypatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    status, said = run(str(made / "chain"), str(made / "chain.h5"), "--out", "m.json")
    assert status == 2 and "pip install 'knotflow[analysis]'" in said and "densities" not in said
    assert not Path("m.json").exists()


def test_an_old_file_stays_if_the_evaluation_fails(run, made: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("mine")
    status, _ = run(str(made / "chain"), str(made / "ala2.h5"), "--out", "metrics.json")
    assert status == 2 and (tmp_path / "metrics.json").read_text() == "mine"
