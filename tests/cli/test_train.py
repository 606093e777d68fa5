"""``knotflow train`` as a user runs it, and what follows it: ``sample`` and ``evaluate``."""

import json
from pathlib import Path

import pytest
import torch

import knotflow as kf
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.log_file import read_log
from knotflow.storage.samples import read_samples
from knotflow.training import cycles, molecules
from knotflow.training.module import FlowModule
from tests.analysis.generators import ala2_data, chain, chain_data
from tests.training.stopping import stopped_after

QUICK = ["--preset", "quick", "--epochs", "2", "--batch", "60", "--bins", "4"]


def log_value(log: list[tuple[int, str, float]], name: str) -> float:
    return [value for _, found, value in log if found == name][-1]


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(molecules, "MONITORED", 50)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chain_data(tmp_path_factory.mktemp("data") / "chain.h5", 400)


def test_help_teaches(run_here) -> None:
    status, said = run_here("train", "--help")
    assert status == 0
    said = " ".join(said.replace("│", " ").split())
    for text in (
        "Train a Boltzmann generator on a trajectory.",
        "knotflow train data/ala2.h5 --out runs/ala2",
        "knotflow train --config runs/ala2/train.toml --out runs/again --seed 1",
        "You can stop with Ctrl-C; the same command continues.",
        "<best|quick|paper>",
        "<bspline|rq|bump>",
        "<bonds|paper>",
        "flow, optimiser and schedule of Hong & Chun (AAAI 2023)",
        "--compile",
        "--refine",
        "--no-refine",
        "effective sample size",
    ):
        assert text in said, text
    assert "train" in run_here("--help")[1]


def test_train_then_sample_then_evaluate(run_here, data: Path, tmp_path: Path) -> None:
    status, said = run_here("train", str(data), "--out", "runs/a", *QUICK)
    assert status == 0, said
    assert "training: done in" in said and "validation_nll" in said and "ess" in said
    # The next commands, as they are suggested.
    evaluate, sample = f"knotflow evaluate runs/a {data}", "knotflow sample runs/a -n 1000 --out samples.h5"
    assert f"runs/a/model.safetensors is ready: `{evaluate}`, `{sample}`." in said

    status, said = run_here(*sample.split()[1:])
    assert status == 0, said
    drawn = read_samples(tmp_path / "samples.h5")
    model = BoltzmannGenerator.load("runs/a/model.safetensors")
    assert len(drawn) == 1000 and drawn.molecule == model.molecule == chain().plain()

    status, said = run_here(*evaluate.split()[1:], "--samples", "200")
    assert status == 0, said
    assert "200 samples, 40 frames (held out, of 400 in chain.h5)" in said
    assert json.loads((tmp_path / "runs/a/metrics.json").read_text())["about"]["samples"] == 200


def test_options_arrive(run_here, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--transform", "rq", "--order", "5", "--forces", "--rate", "0.004", "--seed", "5"]
    options += ["--refine"]
    monkeypatch.setattr(cycles, "CYCLES", 1)
    status, said = run_here("train", str(data), "--out", "a", *QUICK, *options, "--reverse-kl", "0.1")
    assert status == 0, said
    found = notes("a/model.safetensors")
    expected = {
        "preset": "quick",
        "transform": "rq",
        "order": 5,
        "bins": 4,
        "forces": True,
        "reverse_kl": 0.1,
        "refine": True,
        "epochs": 2.0,
        "batch_size": 60,
        "learning_rate": 0.004,
        "zmatrix": None,
        "seed": 5,
        "compile": False,
    }
    assert found["choice"].items() >= expected.items()
    assert found["training"]["learning_rate"] == 0.004 and found["training"]["seed"] == 5
    names = {name for _, name, _ in read_log(Path("a/log.csv"))}
    assert names >= {"nll", "force_matching", "reverse_kl", "validation_nll", "ess"}
    names = {name for _, name, _ in read_log(Path("a/refinement/cycle-1/log.csv"))}
    assert names >= {
        "nll",
        "force_matching",
        "energy_matching",
        "validation_nll",
        "own_ess",
        "own_ess_clipped",
    }
    assert "reverse_kl" not in names
    assert "force_matching" in said and "reverse_kl" in said


def test_the_preset_paper(run_here, tmp_path: Path) -> None:
    """Of alanine dipeptide, with the paper's z-matrix unless another is asked for."""
    ala2_data(tmp_path / "ala2.h5", 55)
    options = ["--preset", "paper", "--epochs", "1", "--batch", "90", "--bins", "3"]
    for name, more, frame in (("a", [], [14, 8, 6]), ("b", ["--zmatrix", "bonds", "--no-forces"], None)):
        status, said = run_here("train", "ala2.h5", "--out", name, *options, *more)
        assert status == 0, said
        found = notes(f"{name}/model.safetensors")
        assert (found["zmatrix"]["frame"] == frame) == (name == "a")
        assert found["training"]["loss"]["force_matching"] == (0.001 if name == "a" else 0.0)
        assert found["split"]["kind"] == "time"


def test_a_stopped_run_goes_on(run_here, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_here("train", str(data), "--out", "whole", *QUICK, "--quiet") == (0, "")
    with stopped_after(7, KeyboardInterrupt):  # Ctrl-C
        status, said = run_here("train", str(data), "--out", "parts", *QUICK)
    assert status == 130 and "Stopped; run the same command again to continue." in said
    assert not Path("parts/model.safetensors").exists()
    status, said = run_here("train", "--config", "parts/train.toml")
    assert status == 0
    whole, parts = (BoltzmannGenerator.load(f"{name}/model.safetensors").flow for name in ("whole", "parts"))
    assert all(map(torch.equal, whole.parameters(), parts.parameters()))
    # Once more: nothing to do.
    monkeypatch.setattr(FlowModule, "training_step", None)
    status, said = run_here("train", str(data), "--out", "parts", *QUICK, "--json", "--quiet")
    assert status == 0
    found, log = json.loads(said), read_log(Path("parts/log.csv"))
    assert found["model"] == "parts/model.safetensors" and found["last"]["nll"] == log_value(log, "nll")
    assert found["seconds"] == notes("parts/model.safetensors")["seconds"]
    # The same settings for another folder.
    before = Path("parts/train.toml").read_text()
    assert before == Path("whole/train.toml").read_text().replace('"whole"', '"parts"')
    status, said = run_here("train", "--config", "parts/train.toml", "--seed", "1")
    assert status == 2 and "made with training.seed 0, but you asked for" in said
    assert Path("parts/train.toml").read_text() == before


def test_bad_input_is_one_sentence_and_writes_nothing(run_here, data: Path, tmp_path: Path) -> None:
    kf.save(kf.Flow.on([kf.Interval()]), tmp_path / "flow.safetensors")
    chain_data(tmp_path / "few.h5", 50)
    before = sorted(path.name for path in tmp_path.iterdir())
    good = str(data)
    for arguments, message in (
        (
            ["none.h5"],
            "there is no trajectory none.h5; make one with `knotflow simulate` or `knotflow import`",
        ),
        (["flow.safetensors"], "flow.safetensors is not an HDF5 file"),
        (["few.h5"], "training needs at least 100 frames, few.h5 has 50; simulate longer."),
        ([good, "--preset", "better"], "Invalid value for '--preset'"),
        ([good, "--preset", "paper"], "needs at least 5 atoms, got 4; use the preset best or quick."),
        ([good, "--zmatrix", "paper"], "but chain has 4 atoms instead of 22; use the z-matrix along bonds."),
        ([good, "--order", "2"], "Invalid value for '--order'"),
        ([good, "--bins", "0"], "Invalid value for '--bins'"),
        ([good, "--epochs", "0"], "epochs: input should be greater than 0, got 0.0."),
        ([good, "--rate", "0"], "learning_rate: input should be greater than 0, got 0.0."),
        ([good, "--reverse-kl", "-1"], "Invalid value for '--reverse-kl'"),
        ([], "Missing argument 'data'"),
    ):
        status, said = run_here("train", *arguments, "--out", "run")
        assert status == 2 and message in said, said
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_folder_of_another_run_is_left_alone(run_here, data: Path) -> None:
    assert run_here("train", str(data), "--out", "a", *QUICK)[0] == 0
    before = Path("a/model.safetensors").read_bytes()
    status, said = run_here("train", str(data), "--out", "a", *QUICK, "--seed", "1")
    assert status == 2 and "a holds a run made with training.seed 0, but you asked for" in said
    assert Path("a/model.safetensors").read_bytes() == before


def test_settings_files_of_version_0_2(run_here, tmp_path: Path) -> None:
    """They all have a line about own samples; where it is false, it says nothing."""
    for value, message in (
        ("false", "there is no trajectory none.h5"),
        ("true", "own-samples was an option of an earlier version; now it is refine = true."),
    ):
        (tmp_path / "train.toml").write_text(f'data = "none.h5"\nown-samples = {value}\n')
        status, said = run_here("train", "--config", "train.toml")
        assert status == 2 and message in " ".join(said.split()), said
