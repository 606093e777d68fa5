"""A run's parts: time shared out, amounts decided once, numbers in words. All of it: tests/cli."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from knotflow.files import read_json
from knotflow.molecules import MolecularSystem, ala2
from knotflow.statistics.estimates import Estimate
from knotflow.training.config import TrainingConfig
from knotflow.training.refinement import EVALUATIONS
from knotflow.workflows import whole_run
from knotflow.workflows.run_plan import SHARES, Amounts
from knotflow.workflows.run_summary import Facts, lines, populations
from knotflow.workflows.whole_run import NOTE, PASSES, Run, complete


def measure(value: float | None, error: float | None = 0.0, note: str = "") -> dict:
    return {"value": value, "error": error, "note": note}


def found(
    reweighted: dict, simulated: Estimate, *, ess: float = 0.3125, k: float = 0.4, chains: dict | None = None
) -> Facts:
    """Results as files have them."""
    metrics = {
        "about": {
            "atoms": 22,
            "temperature": 300.0,
            "samples": 5000,
            "data": {"frames_in_file": 10080},
        },
        "measures": {
            "ess": measure(ess),
            "pareto_k": measure(k),
            "force_error_1e4": measure(0.6216, 0.0136),
        },
        "residues": {"ALA2": {"side_difference_reweighted": reweighted}},
    }
    return Facts(metrics, {"ALA2": simulated}, chains or {})


def job(folder: Path = Path("runs/run"), **amounts: object) -> Run:
    return Run(folder, ala2(), 0.5, given=Amounts.parse(amounts))


def test_the_whole_time_is_shared_out() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    steps = job().steps()
    assert len(steps) == len(SHARES) and sum(step.seconds for step in steps) == pytest.approx(1800)


def test_tasks_have_one_size_and_enough_replicas_to_hold_some_back(tmp_path: Path) -> None:
    simulation = Run(tmp_path, ala2(), 0.2).simulation(100)
    plan, tasks = simulation.plan, simulation._shares()
    sizes = {len(range(plan.replicas)[task]) * len(simulation.ladder) for task in tasks}
    # Every size is compiled for anew. Vectors have 16 numbers.
    assert len(sizes) == 1 and sizes.pop() % 16 == 0
    assert plan.replicas >= 20 and simulation.ladder[0] == simulation.system.temperature


BATCH = 100


class Ready:
    """A training whose steps take so long."""

    def __init__(self, seconds: float, steps_in_a_pass: float = 1000.0) -> None:
        self.seconds, self.steps_in_a_pass = seconds, steps_in_a_pass
        self.training, self.flow = TrainingConfig(steps=1, batch_size=BATCH), SimpleNamespace(dim=60)

    def seconds_per_step(self) -> float:
        return self.seconds


def refining(step: float, rate: float) -> float:
    """Seconds of a step of the refinement."""
    return step + EVALUATIONS * BATCH / rate


@pytest.mark.parametrize(
    ("step", "rate", "expected"),
    [
        (0.01, 1e6, (15_000, True)),  # no longer than pays
        (0.04, 1e5, (int(810 / (0.04 + 3.5 * refining(0.04, 1e5))), True)),
        # Time for one cycle.
        (0.1, 100.0, (int(810 / (0.1 + 0.5 * refining(0.1, 100.0))), True)),
        (0.126, 10.0, (6428, False)),  # the refinement would take hours
        (0.99, 10.0, (818, False)),
    ],
)
def test_the_training_fits_into_its_time(tmp_path, monkeypatch, step, rate, expected) -> None:
    untils = list[float]()
    monkeypatch.setattr(whole_run, "prepare", lambda *_, **__: Ready(step))
    monkeypatch.setattr(whole_run, "evaluations_per_second", lambda *_: rate)
    monkeypatch.setattr(whole_run, "train_generator", lambda *_, until, **__: untils.append(until))
    here = job(tmp_path)
    here.claim()
    began = time.time()
    here.train(lambda *_: None)
    assert (here.choice().steps, here.choice().refine) == expected
    monkeypatch.setattr(whole_run, "prepare", None)  # decided once
    here.plan.note(spent={"train": 300.0})  # before it was interrupted
    here.train(lambda *_: None)
    assert (here.choice().steps, here.choice().refine) == expected
    # The refinement takes what is left.
    assert [until - began for until in untils] == [pytest.approx(810, abs=60), pytest.approx(510, abs=60)]
    here.again("train")
    assert here.plan.amounts() == Amounts() and not here.plan.noted().spent


def test_few_frames_are_not_memorised(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(whole_run, "prepare", lambda *_, **__: Ready(0.1, 4.0))
    monkeypatch.setattr(whole_run, "evaluations_per_second", lambda *_: 500.0)
    # 60 steps leave time for the refinement, even with a slow energy.
    assert job(tmp_path)._training_plan() == (4 * PASSES, True)


def test_too_little_time_is_said_with_what_is_needed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(whole_run, "prepare", lambda *_, **__: Ready(9.9))
    monkeypatch.setattr(whole_run, "evaluations_per_second", lambda *_: 1e5)
    with pytest.raises(
        ValueError, match=r"0\.5 hours are too short for the training: .* 81 steps only; .*3\.09"
    ):
        job(tmp_path).train(lambda *_: None)
    with pytest.raises(ValueError, match=r"hours must be a positive number, got -1"):
        complete(Run(tmp_path, ala2(), -1.0))


@pytest.mark.parametrize(
    ("share", "k", "rows"), [(0.5, 0.5, 0), (0.1, 0.5, 400), (0.5, 0.9, 400), (None, None, 400)]
)
def test_chains_are_run_if_weights_are_not_good_enough(tmp_path, monkeypatch, share, k, rows) -> None:
    here = job(tmp_path)
    here.metrics.write_text(json.dumps({"measures": {"ess": measure(share), "pareto_k": measure(k)}}))
    monkeypatch.setattr(whole_run, "evaluations_per_second", lambda *_: 1e6)
    assert here._rows() == rows
    monkeypatch.setattr(whole_run, "evaluations_per_second", lambda *_: 10.0)
    assert here._rows() == 0, "no time for chains that mean something"


def test_a_stage_again_removes_it_and_what_follows(tmp_path: Path) -> None:
    here = Run(tmp_path, ala2(), 0.5)
    here.claim()
    here.plan.decide(frames=100, steps=200, samples=1000, rows=0)
    for file in (here.data, here.model, here.samples, here.metrics, here.page):
        file.write_bytes(b"content")
    (tmp_path / "refinement").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    here.again("train")
    left = {"data.h5", "plan.json", "mine.txt"}
    assert {file.name for file in tmp_path.iterdir()} == left
    assert here.plan.amounts() == Amounts(frames=100)


def test_five_lines_tell_the_numbers() -> None:
    said = lines(job(), found(measure(3.91, 0.08), Estimate(4.1, 0.11), chains={"ALA2": Estimate(3.8, 0.1)}))
    assert list(said) == ["Learned", "Samples", "Answer", "Look at", "Next"]
    assert "10,080 frames" in said["Learned"] and "22 atoms" in said["Learned"]
    assert "effective sample size 31 %; 5,000 samples are worth 1,562" in said["Samples"]
    assert "is right: 3.910 ± 0.080 kT reweighted, 4.10 ± 0.11 kT in the data; exact" in said["Answer"]
    assert "exact chains give 3.80 ± 0.10 kT for ALA2." in said["Answer"]
    assert "squared error of 0.622 ± 0.014 · 10⁴ (kT/nm)²" in said["Learned"]
    assert str(Path("runs/run/report.html")) in said["Look at"]
    assert "trust" not in said["Samples"] + said["Answer"]
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in said.values())


def test_bad_news_is_told() -> None:
    far = lines(job(), found(measure(2.0, 0.1), Estimate(4.0, 0.3), ess=0.001))
    assert "wastes nearly all samples" in far["Samples"]
    assert "phi of ALA2 is wrong: 2.00 ± 0.10 kT reweighted" in far["Answer"]
    assert "do not trust it yet" in far["Answer"] and "more --hours" in far["Answer"]
    doubtful = lines(job(), found(measure(2.0, 0.1), Estimate(4.0, 0.3), k=1.2))
    assert "neither can reweighted results" in doubtful["Samples"] and "is wrong" not in doubtful["Answer"]


def test_weights_whose_error_bars_leave_all_open_are_not_trusted() -> None:
    """A sample with most of the weight: an effective sample size of 0.6 ± 3.1 %."""
    vague = found(measure(4.0, 0.1), Estimate(4.0, 0.3), k=0.66)
    vague.metrics["measures"]["ess"] = measure(0.006, 0.031)  # type: ignore[index]
    said = lines(job(), vague)
    assert "error bars leave open whether that is fair or poor" in said["Samples"]
    assert "do not trust it yet" in said["Answer"]
    no_tail = found(measure(4.0, 0.1), Estimate(4.0, 0.3), ess=0.99)
    no_tail.metrics["measures"]["pareto_k"] = measure(None, None)  # type: ignore[index]
    assert "trust" not in lines(job(), no_tail)["Answer"]


def test_of_many_free_energies_the_worst_is_told() -> None:
    several = found(measure(3.9, 0.1), Estimate(4.0, 0.1))
    residues = several.metrics["residues"]
    far = {**residues["ALA2"], "side_difference_reweighted": measure(1.0, 0.1)}
    many = replace(
        several,
        metrics={**several.metrics, "residues": {**residues, "ALA3": far, "ALA4": residues["ALA2"]}},
        simulated={name: Estimate(4.0, 0.1) for name in ("ALA2", "ALA3", "ALA4")},
    )
    answer = lines(job(), many)["Answer"]
    assert "phi of ALA3 is wrong" in answer and "is right" not in answer and "2 more free energies" in answer


def test_populations_answer_for_a_molecule_without_phi() -> None:
    def group(name: str, **shares: float) -> dict:
        states = [
            {
                "name": state,
                "definition": f"torsion {state}",
                "population": {"reweighted": measure(share, 0.01), "exact": measure(share, 0.002)},
            }
            for state, share in shares.items()
        ]
        return {"group": name, "states": states}

    none = found(measure(3.9, 0.1), Estimate(4.0, 0.1))
    groups = [group("C1-C2", cis=0.01, trans=0.99), group("C2-C3", anti=0.6, gauche=0.4, unseen=0.0)]
    butane = replace(none, metrics={**none.metrics, "residues": {}, "states": groups}, simulated={})
    answer = lines(job(), butane)["Answer"]
    assert "populations around C2-C3: anti 0.600 ± 0.010, gauche 0.400 ± 0.010 (by weighted" in answer
    assert "unseen" not in answer and "shows those around C1-C2" in answer
    assert "0.6000 ± 0.0020" in populations(butane.metrics, "exact")[0]
    assert "populations around" not in lines(job(), none)["Answer"]


def test_time_that_a_stage_does_not_need_goes_to_the_next(tmp_path: Path) -> None:
    here = Run(tmp_path, ala2(), 1.0)
    here.claim()
    assert here.plan.seconds("simulate") == pytest.approx(0.3 * 3600)
    assert here.plan.seconds("train") == pytest.approx(0.45 * 3600), "as planned until the simulation is over"
    here.plan.timed("simulate", lambda _: None)(lambda *_: None)
    assert here.plan.seconds("train") == pytest.approx(0.45 / 0.7 * 3600, rel=1e-3)
    plan = read_json(here.plan.path)
    here.plan.path.write_text(json.dumps({**plan, "spent": {"simulate": 3600.0}}))
    assert here.plan.seconds("train") == pytest.approx(0.45 / 2 * 3600), "a late simulation leaves half of it"
    here.claim()  # the time spent is no setting
    here.again("simulate")
    assert here.plan.seconds("train") == pytest.approx(0.45 * 3600)


def test_the_time_of_an_interrupted_stage_counts(tmp_path: Path) -> None:
    here = Run(tmp_path, ala2(), 1.0)
    here.claim()

    def interrupted(_) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            here.plan.timed("simulate", interrupted)(lambda *_: None)
    assert 0 < here.plan.noted().spent["simulate"] < 60


@pytest.mark.parametrize("name", ["data.h5", "model.safetensors", "samples.h5", "report.html"])
@pytest.mark.parametrize("again", [None, "simulate", "report"])
def test_files_of_others_are_neither_used_nor_removed(tmp_path: Path, name: str, again: str | None) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(OSError if again is None else ValueError, match=r"no plan\.json|there is no run in"):
        complete(job(tmp_path), again=again)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(name, b"mine")]


SETTINGS = {"molecule": "ala2", "temperature": 300.0, "hours": 0.5, "seed": 0}


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"amounts": 3},
        {**SETTINGS, "amounts": {"frames": "x"}},
        {**SETTINGS, "amounts": {"frames": -1}},
        {**SETTINGS, "amounts": {}, "spent": 3},
        {**SETTINGS, "amounts": {}, "spent": {"simulate": "a"}},
        {**SETTINGS, "amounts": {}, "hours": None},
    ],
)
def test_a_plan_of_something_else_is_refused_by_name(tmp_path: Path, plan: dict) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match=r"plan\.json is not the plan of a run"):
        complete(job(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_what_cannot_be_leaves_no_folder(tmp_path: Path) -> None:
    """So that the same folder may have other settings."""
    hot = MolecularSystem.parse({**ala2().plain(), "temperature": 1e6})
    with pytest.raises(ValueError, match="the highest temperature of a ladder must be above the lowest"):
        complete(Run(tmp_path / "here", hot, 0.5))
    with pytest.raises(ValueError, match="too short for the simulation"):
        complete(Run(tmp_path / "here", ala2(), 1e-4))
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("reweighted", "simulated", "sentence"),
    [
        (
            measure(3.0),
            Estimate(np.inf, np.nan),
            "cannot be compared: in the data, phi > 0 is never visited.",
        ),
        (
            measure(2.8, 0.1),
            Estimate(6.4, np.nan),
            "6.4 kT (without an error bar) in the data; error",
        ),
        (measure(None, None, "no weight at all."), Estimate(4.0, 0.5), "in samples, no weight at all."),
        (measure(3.5, None), Estimate(4.0, 0.5), "3.5 kT (without an error bar) reweighted, 4.00 ± 0.50 kT"),
    ],
)
def test_what_is_not_known_is_said(reweighted, simulated, sentence) -> None:
    said = lines(job(), found(reweighted, simulated))["Answer"]
    assert said.startswith("Free energy, ALA2: ") and sentence in said and "nan" not in said


def test_a_page_is_written_anew_when_what_it_shows_has_changed(tmp_path: Path) -> None:
    here = job(tmp_path, samples=100)
    page = here.steps()[-1]
    assert not page.is_done
    for file in (here.model, here.metrics):
        file.write_bytes(b"content")
    here.page.write_text("<html></html>")
    assert not page.is_done, "a page that does not say of what it was made"
    here.page.write_text(f"<html></html>{NOTE}{json.dumps(here.page_inputs())} -->\n")
    assert page.is_done
    here.metrics.write_bytes(b"new")
    assert not page.is_done
