"""Table 1 with few frames, few steps and few bins: everything but the quality of the result."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import sem

import knotflow
from knotflow.files import read_json
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.paper import table1
from knotflow.paper.numbers import number
from knotflow.paper.table1 import ROWS, SCALES, Result, Scale, Task, paper_name, read_results, run, tasks
from knotflow.paper.table1_report import PAPER, PAPER_PARAMETERS, table, write_report
from knotflow.storage import trajectory
from knotflow.training import guard
from knotflow.training.guard import Guard
from knotflow.training.module import FlowModule
from knotflow.training.molecules import MoleculeTraining, flow_config
from tests.analysis.generators import ala2_data, chain_data
from tests.molecules.molecules import molecule

TINY = Scale(epochs=3.0, samples=60, bins=4)
TODO = tasks(["bspline+fm", "rq"], 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """Data, a folder in which two rows were trained with two seeds, and what was said."""
    folder, said = tmp_path_factory.mktemp("table1"), []
    data = ala2_data(folder / "ala2.h5")
    run(data, folder / "runs", TINY, TODO, say=said.append)
    return data, folder / "runs", said


def test_every_run_has_its_folder(made) -> None:
    _, folder, said = made
    names = {"rq-nll-0-rec", "rq-nll-1-rec", "bspline-fm-0-rec", "bspline-fm-1-rec"}
    assert {path.name for path in folder.iterdir()} == names
    for name in names:
        about = read_json(folder / name / "metrics.json")["about"]
        assert about["data"]["rows"] == "validation" and about["data"]["frames"] == 12
    assert [line for line in said if line.startswith("run")] == [
        "run 1 of 4: RQ-spline, seed 0",
        "run 2 of 4: B-spline+FM, seed 0",
        "run 3 of 4: RQ-spline, seed 1",
        "run 4 of 4: B-spline+FM, seed 1",
    ]


def test_numbers_are_those_of_the_saved_models(made) -> None:
    """NLL and force error once more, from the model file and the rows that must have been held back."""
    data, folder, _ = made
    results = read_results(folder, TINY)
    assert [(r.task.row, r.task.seed) for r in results] == [
        ("rq", 0),
        ("rq", 1),
        ("bspline+fm", 0),
        ("bspline+fm", 1),
    ]
    frames, kT = trajectory.read(data), molecule("ala2").kT
    # Two replicas alternate; of the 20 parts of 3 frames of each the 10th and the last are held back.
    rows = [2 * i + j for i in (27, 28, 29, 57, 58, 59) for j in (0, 1)]
    x, force = torch.from_numpy(frames.positions[rows]), torch.from_numpy(frames.forces[rows]) / kT
    for result in results:
        generator = BoltzmannGenerator.load(folder / result.task.folder / "model.safetensors")
        q, _ = generator.internal(x)
        with torch.no_grad():
            nll = -(generator.flow.log_prob(q) - generator.coordinates.paper_ladj(q)).mean()
        assert result.measures["nll"] == pytest.approx(float(nll), rel=1e-5)
        moved = x.clone().requires_grad_()
        (own,) = torch.autograd.grad(generator.log_prob(moved).sum(), moved)
        fme = (own - force).double().square().mean() / 1e4
        assert result.measures["fme"] == pytest.approx(float(fme), rel=1e-3)
        assert result.parameters == sum(p.numel() for p in generator.parameters())
        assert result.seconds is not None and result.seconds > 0
        assert (result.refused, result.diverged) == (0, None)
        assert set(result.measures) == set(table1.MEASURES)


def test_seeds_differ_and_force_matching_is_on(made) -> None:
    _, folder, _ = made
    nll = [result.measures["nll"] for result in read_results(folder, TINY)]
    assert len(set(nll)) == 4
    logs = {row: (folder / f"{row}-0-rec" / "log.csv").read_text() for row in ("rq-nll", "bspline-fm")}
    assert "force_matching" in logs["bspline-fm"] and ",force_matching" not in logs["rq-nll"]


def test_what_is_done_is_not_done_again(made, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folder, _ = made
    before, said = read_results(folder, TINY), []
    monkeypatch.setattr(FlowModule, "training_step", None)
    monkeypatch.setattr(table1, "evaluate", None)
    assert run(data, folder, TINY, TODO, say=said.append) == before
    assert said[2] == "run 3 of 4: RQ-spline, seed 1: finished before" and len(said) == 4


def test_a_model_without_its_evaluation_gets_it(made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, or made of other frames or samples: measured again, with the same numbers; never trained."""
    data, folder, _ = made
    metrics = folder / "rq-nll-1-rec" / "metrics.json"
    before = read_json(metrics)
    monkeypatch.setattr(FlowModule, "training_step", None)
    other = read_json(metrics)
    other["about"]["data"]["rows"] = "all"
    for content in (None, json.dumps(other)):
        metrics.unlink() if content is None else metrics.write_text(content)
        assert len(read_results(folder, TINY)) == 3
        assert len(run(data, folder, TINY, TODO, say=lambda text: None)) == 4
        assert read_json(metrics)["measures"] == before["measures"]


def test_the_evaluation_of_another_version_is_shown_and_made_again_when_asked_for(made, tmp_path) -> None:
    data, folder, _ = made
    name, said = "rq-nll-0-rec", []
    shutil.copytree(folder / name, tmp_path / name)
    metrics = tmp_path / name / "metrics.json"
    found = read_json(metrics)
    found["about"]["knotflow"] = "0.0.1"
    metrics.write_text(json.dumps(found))
    before = read_results(tmp_path, TINY)
    assert [result.task for result in before] == [Task("rq", 0)]
    assert run(data, tmp_path, TINY, [Task("rq", 0)], say=said.append) == before
    assert said == ["run 1 of 1: RQ-spline, seed 0"], "evaluated, with the same numbers"
    assert read_json(metrics)["about"]["knotflow"] == knotflow.__version__


def test_a_model_that_came_without_its_history(made, tmp_path: Path, monkeypatch) -> None:
    data, folder, _ = made
    name = "bspline-fm-1-rec"
    (tmp_path / name).mkdir()
    for file in ("model.safetensors", "config.json"):
        shutil.copy(folder / name / file, tmp_path / name)
    monkeypatch.setattr(FlowModule, "training_step", None)
    (found,) = run(data, tmp_path, TINY, [Task("bspline+fm", 1)], say=lambda text: None)
    assert found == replace(read_results(folder, TINY)[3], refused=None)


def test_a_run_that_diverges_is_noted_and_the_others_go_on(made, tmp_path, monkeypatch) -> None:
    data, _, _ = made
    judged, accepts = [], Guard.accepts

    def judge(self: Guard, loss: float, norm: float) -> bool:
        judged.append(loss)
        return accepts(self, math.nan if len(judged) == 3 else loss, norm)

    monkeypatch.setattr(Guard, "accepts", judge)
    monkeypatch.setattr(guard, "PATIENCE", 1)
    monkeypatch.setattr(guard, "RETURNS", 0)
    said, todo = [], tasks(["bspline", "rq"], 1, published=True)
    lost, found = run(data, tmp_path, TINY, todo, say=said.append)
    assert (lost.task, lost.diverged, lost.measures) == (Task("rq", 0, True), 2, {})
    assert found.task == Task("bspline", 0, True) and math.isfinite(found.measures["nll"])
    assert any(
        text.startswith("RQ-spline, seed 0, as published diverged at step 2: training") for text in said
    )
    assert "became unstable 1 times" in read_json(tmp_path / "rq-nll-0-pub/diverged.json")["reason"]

    monkeypatch.setattr(FlowModule, "training_step", None)
    again = []
    assert run(data, tmp_path, TINY, todo, say=again.append) == [lost, found]
    assert again[0] == "run 1 of 2: RQ-spline, seed 0, as published: diverged before"
    diverged = tmp_path / "rq-nll-0-pub/diverged.json"
    said_before = read_json(diverged)
    diverged.write_text(json.dumps({**said_before, "choice": {**said_before["choice"], "compile": True}}))
    assert run(data, tmp_path, TINY, todo) == [lost, found], "earlier versions compiled"
    with pytest.raises(ValueError, match="rq-nll-0-pub holds a run made with epochs"):
        run(data, tmp_path, replace(TINY, epochs=4.0), todo)
    write_report(tmp_path, [lost, found], {})
    text = (tmp_path / "table1.md").read_text()
    assert "| RQ-spline | as published, 1 seed | diverged at step 2 | – | – | – | – | – | – |" in text
    assert "| rq-nll-0-pub | diverged at step 2 |" in text and not (tmp_path / "seeds.png").exists()
    assert [run["diverged"] for run in read_json(tmp_path / "table1.json")["runs"]] == [
        2,
        None,
    ]


def test_the_report_of_a_folder(made) -> None:
    data, folder, _ = made
    results = read_results(folder, TINY)
    written = write_report(folder, results, {"scale": "small", "data": data.name})
    assert [path.name for path in written] == ["table1.md", "table1.json", "seeds.png"]
    assert (folder / "seeds.png").read_bytes().startswith(b"\x89PNG")
    found = read_json(folder / "table1.json")
    assert [(line["row"], line["trained"]) for line in found["table"]] == [
        ("rq", "recipe"),
        ("rq", "paper"),
        ("bspline+fm", "recipe"),
        ("bspline+fm", "paper"),
    ]
    nll = [result.measures["nll"] for result in results[2:]]
    assert found["table"][2]["measures"]["nll"] == pytest.approx([np.mean(nll), 2 * sem(nll)])
    text = (folder / "table1.md").read_text()
    assert "scale: small, data: ala2.h5" in text
    assert f"| B-spline+FM | recipe, 2 seeds | {number(np.mean(nll), 2 * sem(nll))} |" in text
    for path in written:
        path.unlink()


def test_the_paper_is_quoted_as_printed() -> None:
    results = [Result(Task(row, 0), dict.fromkeys(table1.MEASURES, 0.5), 1, 1.0) for row in ROWS]
    cells = {line.cells()[0]: line.cells()[2:5] for line in table(results) if line.trained == "paper"}
    assert cells == {
        "RQ-spline": ["-210.28 ± 0.05", "79.95 ± 92.80", "385.22 ± 8.05"],
        "Smooth": ["-210.87 ± 0.05", "1.34 ± 0.07", "192.57 ± 0.22"],
        "Smooth+FM": ["-210.25 ± 0.09", "0.909 ± 0.002", "196.85 ± 1.02"],
        "B-spline": ["-211.03 ± 0.03", "4.59 ± 5.11", "192.62 ± 0.31"],
        "B-spline+FM": ["-209.45 ± 1.78", "0.812 ± 0.345", "228.09 ± 54.60"],
    }


def test_lines_of_the_table() -> None:
    measures = {"nll": -210.0, "fme": 1.5, "kld": 200.0, "excess": 2.5, "ess": 0.025}
    recipe = [Result(Task("bspline+fm", i), measures | {"nll": -210.0 - i}, 7, 10.0 + i) for i in range(3)]
    lost = [Result(Task("bspline+fm", i, True), diverged=50 * i) for i in (4, 6)]
    saved = Result(Task("bspline+fm", 5, True), measures | {"fme": 2e7, "excess": math.nan}, 7, 12.0)
    before, after, paper = (line.cells() for line in table([*recipe, lost[0], saved, lost[1]]))
    assert before[:4] == ["B-spline+FM", "as published, 3 seeds, 2 diverged", "-210.00", "2e+07"]
    assert before[5:] == ["–", "2.50", "7", "12"]
    assert after[1:5] == [
        "recipe, 3 seeds",
        f"-211.00 ± {2 * sem([0, 1, 2]):.2f}",
        "1.50 ± 0.00",
        "200.00 ± 0.00",
    ]
    assert after[8] == "11" and paper[1] == "paper" and paper[5:] == ["–", "–", "380,982", "–"]
    assert table(lost)[0].cells()[1:3] == ["as published, 2 seeds", "diverged at step 200, 300"]


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (-210.284, math.nan, "-210.28"),
        (0.0123, 0.4, "0.012 ± 0.400"),
        (0.99996, math.nan, "1.00"),
        (12345.678, math.nan, "12,345.68"),
        (3.0, 1.5e6, "3 ± 1.5e+06"),
        (math.nan, 1.0, "–"),
        (math.inf, math.nan, "inf"),
    ],
)
def test_numbers_as_text(value: float, error: float, text: str) -> None:
    assert number(value, error) == text


def test_folders_are_named_after_their_tasks() -> None:
    assert Task("bspline+fm", 3).folder == "bspline-fm-3-rec"
    assert Task("smooth", 12, True).folder == "smooth-nll-12-pub"
    for task in (Task(row, seed, pub) for row in ROWS for seed in (0, 10) for pub in (False, True)):
        assert Task.of(task.folder) == task
    for name in ("rq-fm-0-rec", "bspline-fm-01-rec", "bspline-fm--1-rec", "bspline-fm-0-new", "tensorboard"):
        assert Task.of(name) is None
    assert tasks(["bspline+fm", "rq"], 2)[:2] == [Task("rq", 0), Task("bspline+fm", 0)]


def test_the_choices_are_the_papers() -> None:
    for name in ("small", "paper"):
        assert Task("bspline+fm", 4).choice(SCALES[name]) == MoleculeTraining(
            preset="paper", transform="bspline", forces=True, seed=4, epochs=10.0, published=False
        )
    assert Task("rq", 0, True).choice(SCALES["small"]).published
    coordinates = internal_coordinates(molecule("ala2"), "paper")
    for row in PAPER:
        config = flow_config(Task(row, 0).choice(SCALES["paper"]), coordinates, torch.empty(0))
        count = sum(p.numel() for p in config.build().parameters())
        assert count == PAPER_PARAMETERS[paper_name(row)]


def test_data_that_do_not_suit_are_refused(made, tmp_path: Path) -> None:
    data, folder, _ = made
    with pytest.raises(
        ValueError, match=r"Table 1 is about alanine dipeptide.* holds chain; train that with"
    ):
        run(chain_data(tmp_path / "chain.h5", n=100), tmp_path / "runs", TINY, TODO)
    with pytest.raises(ValueError, match=r"900,000 training frames, .*ala2.h5 has 108; .*knotflow simulate"):
        run(data, tmp_path / "runs", SCALES["paper"], TODO)
    with pytest.raises(FileNotFoundError, match="make one with `knotflow simulate` or `knotflow import`"):
        run(tmp_path / "none.h5", tmp_path / "runs", TINY, TODO)
    assert not (tmp_path / "runs").exists()
    other = ala2_data(tmp_path / "other.h5", frames=50)
    with pytest.raises(ValueError, match=r"holds a run made with data ala2.h5 \(120 frames\), but you"):
        run(other, folder, TINY, TODO)
    with pytest.raises(ValueError, match=r"rq-nll-0-rec holds a run made with bins 4, epochs 3.0, but you"):
        run(data, folder, replace(TINY, bins=5, epochs=1.0), TODO)
    with pytest.raises(ValueError, match="holds no finished run"):
        write_report(tmp_path, [], {})
