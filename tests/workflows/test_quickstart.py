"""The quickstart's parts: scales that fit, numbers in words, parts of steps. All of it: tests/cli."""

import json
from pathlib import Path

import numpy as np
import pytest

from knotflow.statistics.estimates import Estimate
from knotflow.workflows.quickstart import NOTE, SCALES, Quickstart, smoke
from knotflow.workflows.quickstart_summary import Facts, lines


def measure(value: float | None, error: float | None = 0.0, note: str = "") -> dict:
    return {"value": value, "error": error, "note": note}


def found(reweighted: dict, simulated: Estimate, *, ess: float = 0.3125, k: float = 0.4) -> Facts:
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
    drift = {"replicas": 4, "broken": 1, "about": {"config": {"production": 0.5}}}
    return Facts(metrics, drift, simulated)


def job(folder: Path = Path("runs/quickstart")) -> Quickstart:
    return Quickstart(folder, smoke())


@pytest.mark.parametrize("name", SCALES)
def test_scales_have_one_seed_and_a_time_for_every_step(name: str) -> None:
    scale = SCALES[name](7)
    assert {scale.plan.seed, scale.training.seed, scale.dynamics.seed} == {7}
    assert len(scale.seconds) == 6 and min(scale.seconds) > 0
    assert [step.seconds for step in Quickstart(Path("here"), scale).steps()] == list(scale.seconds)
    assert scale.training.forces and scale.training.preset == "quick"


def test_the_full_scale_has_tasks_of_one_size_and_enough_replicas_to_hold_some_back(tmp_path) -> None:
    simulation = Quickstart(tmp_path, SCALES["full"](0)).simulation()
    plan, tasks = simulation.plan, simulation._shares()
    sizes = {len(range(plan.replicas)[task]) * len(simulation.ladder) for task in tasks}
    # Every size is compiled for anew. Vectors have 16 numbers.
    assert len(sizes) == 1 and sizes.pop() % 16 == 0
    assert plan.replicas >= 20 and plan.replicas * plan.frames >= 10_000
    assert simulation.ladder[0] == simulation.system.temperature


def test_five_lines_tell_the_numbers() -> None:
    said = lines(job(), found(measure(3.91, 0.08), Estimate(4.1, 0.11)))
    assert list(said) == ["Learned", "Samples", "Forces", "Look at", "Next"]
    assert "10,080 frames" in said["Learned"] and "22 atoms" in said["Learned"]
    assert "effective sample size 31 %; 5,000 samples are worth 1,562" in said["Samples"]
    assert "is right: 3.910 ± 0.080 kT reweighted, 4.10 ± 0.11 kT in the data." in said["Samples"]
    assert "(FME) 0.622 ± 0.014 · 10⁴ (kT/nm)²" in said["Forces"]
    assert "3 of 4 molecules stayed whole for 0.5 ps" in said["Forces"]
    assert str(Path("runs/quickstart/report.html")) in said["Look at"]
    assert "trusted" not in said["Samples"]
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in said.values())


def test_bad_news_is_told() -> None:
    far = lines(job(), found(measure(2.0, 0.1), Estimate(4.0, 0.3), ess=0.001))["Samples"]
    assert "wastes nearly all samples" in far
    assert "phi of ALA2 is wrong: 2.00 ± 0.10 kT reweighted" in far
    doubtful = lines(job(), found(measure(2.0, 0.1), Estimate(4.0, 0.3), k=1.2))["Samples"]
    assert "neither can reweighted results" in doubtful and "is wrong" not in doubtful


@pytest.mark.parametrize(
    ("reweighted", "simulated", "sentence"),
    [
        (
            measure(3.0),
            Estimate(np.inf, np.nan),
            "cannot be compared: in the data, phi > 0 is never visited.",
        ),
        (measure(2.8, 0.1), Estimate(6.4, np.nan), "6.4 kT (without an error bar) in the data, which can be"),
        (measure(None, None, "no weight at all."), Estimate(4.0, 0.5), "in samples, no weight at all."),
        (measure(3.5, None), Estimate(4.0, 0.5), "3.5 kT (without an error bar) reweighted, 4.00 ± 0.50 kT"),
    ],
)
def test_what_is_not_known_is_said(reweighted, simulated, sentence) -> None:
    said = lines(job(), found(reweighted, simulated))["Samples"]
    assert sentence in said and "nan" not in said


def test_a_page_is_written_anew_when_what_it_shows_has_changed(tmp_path: Path) -> None:
    here = job(tmp_path)
    page = here.steps()[-1]
    assert not page.is_done
    here.dynamics_folder.mkdir()
    for file in (here.model, here.metrics, here.dynamics_folder / "record.npz"):
        file.write_bytes(b"content")
    here.page.write_text("<html></html>")
    assert not page.is_done, "a page that does not say of what it was made"
    here.page.write_text(f"<html></html>{NOTE}{json.dumps(here.page_inputs())} -->\n")
    assert page.is_done
    here.metrics.write_bytes(b"new")
    assert not page.is_done
