"""Figure 4 with few steps and models that are hardly trained: everything but the quality of the result."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from knotflow.dynamics import DynamicsConfig, Record
from knotflow.files import read_json
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.paper import figure4 as experiment
from knotflow.paper.figure4 import SCALES, Entry, Scale, entries, run
from knotflow.storage import trajectory
from tests.analysis.generators import ala2_data, ala2_generator, chain_data, chain_generator

TINY = Scale(DynamicsConfig(replicas=2, equilibration=0.0005, production=0.001, every=1))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data, and a folder as of Table 1 with three models, one of them as published."""
    folder = tmp_path_factory.mktemp("dynamics")
    data = ala2_data(folder / "ala2.h5", frames=20)
    split = {"file": data.name, "frames": 40, "kind": "time", "validation": [[36, 40]]}
    for name in ("rq-nll-0-rec", "smooth-fm-0-pub", "smooth-fm-0-rec", "bspline-fm-0-pub"):
        ala2_generator(data).save(folder / "table1" / name / "model.safetensors", split=split)
    return data, folder / "table1"


@pytest.fixture(scope="module")
def done(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    data, models = made
    folder, said = tmp_path_factory.mktemp("runs"), []
    todo = entries(models, ("rq",), best=models / "bspline-fm-0-pub" / "model.safetensors")
    results = run(folder, TINY, todo, data, say=said.append)
    experiment.write_report(folder, results, "small")
    return folder, said


def test_entries_are_found_by_their_folders(made: tuple[Path, Path]) -> None:
    _, models = made
    found = entries(models)
    assert [(entry.title, entry.folder) for entry in found] == [
        ("true force field", "force-field"),
        ("RQ-spline", "rq-nll-0-rec"),
        ("Smooth+FM", "smooth-fm-0-rec"),
        ("B-spline+FM, as published", "bspline-fm-0-pub"),
    ]
    assert found[0].model is None and found[1].claim == "all ten fail"
    with pytest.raises(
        FileNotFoundError, match=r"has no model of Smooth; .* table1 --data DATA.h5 --rows smo"
    ):
        entries(models, ("rq", "smooth"))


def test_all_start_from_the_same_frames_held_back(made: tuple[Path, Path], done) -> None:
    data, _ = made
    folder, said = done
    assert said == [
        f"run {i} of 3: {name}" for i, name in enumerate(("true force field", "RQ-spline", "best"), 1)
    ]
    records = [Record.load(folder / name / "record.npz") for name in ("force-field", "rq-nll-0-rec", "best")]
    for other in records[1:]:
        np.testing.assert_array_equal(other.positions[0], records[0].positions[0])
        np.testing.assert_array_equal(other.kinetic[0], records[0].kinetic[0])
    frames = trajectory.read(data)
    u = frames.energies[36:] / trajectory.open_info(data).system.kT
    assert np.abs(u[:, None] - records[0].potential[0]).min(0) == pytest.approx(0, abs=1e-2)


def test_what_is_done_is_not_done_again(made: tuple[Path, Path], done) -> None:
    data, models = made
    folder, _ = done
    again: list[str] = []
    results = run(folder, TINY, entries(models, ("rq",)), data, say=again.append)
    assert again == [
        "run 1 of 2: true force field: finished before",
        "run 2 of 2: RQ-spline: finished before",
    ]
    for result in results:
        kept = read_json(folder / result.entry.folder / "drift.json")
        assert result.drift.plain()["slope"] == kept["slope"]
    longer = replace(TINY, config=TINY.config.model_copy(update={"production": 0.002}))
    with pytest.raises(ValueError, match=r"made with config\.production"):
        run(folder, longer, entries(models, ("rq",)), data, say=again.append)


def test_finished_runs_are_found_by_their_folders(done) -> None:
    folder, _ = done
    found = experiment.read_results(folder)
    titles = [(result.entry.title, result.entry.claim) for result in found]
    assert titles == [("true force field", ""), ("RQ-spline", "all ten fail"), ("best", "")]
    for result in found:
        kept = read_json(folder / result.entry.folder / "drift.json")
        assert result.drift.plain()["slope"] == kept["slope"]
    assert experiment.read_results(folder / "nowhere") == []


def test_the_page_has_table_and_picture(done) -> None:
    folder, _ = done
    assert (folder / "figure4.png").read_bytes().startswith(b"\x89PNG")
    found = read_json(folder / "results.json")
    assert list(found) == ["force-field", "rq-nll-0-rec", "best"]
    page = (folder / "index.html").read_text()
    for text in ("0 of 2", "all ten fail", "RQ-spline", "steps of 0.1 fs", "data:image/png;base64"):
        assert text in page
    slope = found["rq-nll-0-rec"]["slope"]
    record = Record.load(folder / "rq-nll-0-rec" / "record.npz")
    rows = slice(record.production, None)
    assert slope == pytest.approx(np.polyfit(record.time[rows], record.total[rows], 1)[0].mean() / 63)


def test_the_scales_are_the_papers_protocol(made: tuple[Path, Path], tmp_path: Path) -> None:
    data, models = made
    assert SCALES["small"].config == SCALES["paper"].config == DynamicsConfig()
    paper = replace(SCALES["paper"], config=TINY.config)
    with pytest.raises(
        ValueError, match=r"models trained on 900,000 frames, .*rq-nll-0-rec.* was on 36; train"
    ):
        run(tmp_path / "runs", paper, entries(models, ("rq",)), data)
    assert not (tmp_path / "runs").exists()


def test_models_and_data_must_belong_together(made: tuple[Path, Path], tmp_path: Path) -> None:
    data, _ = made
    chain_generator().save(tmp_path / "chain.safetensors")
    todo = [Entry("chain", "chain", tmp_path / "chain.safetensors")]
    with pytest.raises(ValueError, match="the model is of chain with 4 atoms, the data of ala2 with 22"):
        run(tmp_path / "runs", TINY, todo, data, say=lambda text: None)
    other = chain_data(tmp_path / "chain.h5", n=10, replicas=1)
    with pytest.raises(ValueError, match=re.escape("20 replicas need as many frames")):
        run(tmp_path / "runs", Scale(DynamicsConfig(replicas=20)), todo, other, say=lambda text: None)


def test_models_are_made_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Simulated:
        """Stands for a simulation, which takes longer."""

        def __init__(self, path: Path, system, plan) -> None:
            self.path = path

        def run(self) -> None:
            if not self.path.exists():
                ala2_data(self.path)

    monkeypatch.setattr(experiment, "Simulation", Simulated)
    said: list[str] = []
    data, models = experiment.make_models(tmp_path / "new", ("rq",), SCALES["smoke"], say=said.append)
    assert said == ["a short simulation of alanine dipeptide", "a short training: RQ-spline"]
    model = models / "rq-nll-0-rec" / "model.safetensors"
    assert notes(model)["split"]["file"] == data.name and BoltzmannGenerator.load(model).n_atoms == 22
