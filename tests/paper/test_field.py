"""The benchmark beside the field: all steps at the scale smoke, resuming, costs, states, refusals."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from knotflow.analysis.measures import effective_in
from knotflow.energies import force_field
from knotflow.files import read_json
from knotflow.flows.io import notes
from knotflow.paper import costs, field, field_report, field_results
from knotflow.paper.costs import spent
from knotflow.paper.field import SCALES, SYSTEMS, Task, run
from knotflow.paper.field_results import Result, read_result
from knotflow.paper.field_torsions import STATES, states_of, torsional
from knotflow.simulation import run as simulation_run
from knotflow.statistics.estimates import Estimate
from knotflow.storage.observables import Observables
from tests.analysis.test_measures import data, samples


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Iterator[tuple[Path, Result, list[str]]]:
    folder, said = tmp_path_factory.mktemp("field"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation_run, "SPREAD_STEPS", 200)
        (task,) = run(folder, "smoke", ["ala2"], say=said.append)
        yield folder, read_result(task), said


def test_all_steps_from_the_bare_molecule(finished) -> None:
    _, result, said = finished
    assert said == ["molecule 1 of 1: ala2"]
    assert (result.name, result.coordinates, result.samples, result.frames) == ("ala2", 60, 200, 480)
    for key in (
        "ess",
        "ess_clipped",
        "forward_kl",
        "force_error_1e4",
        "energy_w2",
        "histogram_tv",
        "torus_w2",
    ):
        assert math.isfinite(result.measures[key].value)
    assert set(result.free_energies["ALA2"]) == {"weights", "data", "chains"}
    assert list(result.states["ALA2"]) == list(STATES)
    assert sum(state["samples"] for state in result.states["ALA2"].values()) <= 200
    plan, chains = SCALES["smoke"].plan, SCALES["smoke"].chains
    steps = plan.frames * plan.interval + plan.equilibration
    assert result.evaluations["simulation"] == steps + 200  # the last to spread
    assert result.evaluations["exact chains"] == chains.evaluations
    assert result.evaluations["training"] == 1000 * 2  # watched twice
    assert result.evaluations["measures"] == 200 + 32 and result.gradient_steps > 0
    assert set(result.core_minutes) == {"simulation", "training", "measures", "exact chains"}
    assert all(minutes > 0 for minutes in result.core_minutes.values())


def test_finished_steps_are_not_repeated(finished, monkeypatch) -> None:
    folder, result, _ = finished
    for name in ("train_generator", "evaluate", "Simulation.run"):
        owner, _, attribute = name.rpartition(".")
        monkeypatch.setattr(field if not owner else field.Simulation, attribute, None)
    spent_before, said = (folder / "ala2" / "costs.json").read_text(), []
    (again,) = run(folder, "smoke", ["ala2"], say=said.append)
    assert said == ["molecule 1 of 1: ala2: finished before"]
    assert str(read_result(again)) == str(result)
    assert (folder / "ala2" / "costs.json").read_text() == spent_before


def test_an_interrupted_benchmark_goes_on_where_it_stopped(finished, tmp_path: Path, monkeypatch) -> None:
    """Without its measures, a molecule counts as unfinished, and only they are made again."""
    folder, result, _ = finished
    (folder / "ala2" / "measures.json").rename(tmp_path / "measures.json")
    assert not Task("ala2", folder / "ala2", SCALES["smoke"]).finished
    before = read_json(folder / "ala2" / "costs.json")
    monkeypatch.setattr(field, "train_generator", None)
    (task,) = run(folder, "smoke", ["ala2"], say=lambda _: None)
    again = read_result(task)
    assert str((again.measures, again.states)) == str((result.measures, result.states))
    after = read_json(folder / "ala2" / "costs.json")
    assert after["measures"]["cpu"] > before["measures"]["cpu"] and after["training"] == before["training"]


def test_other_settings_are_refused(finished, tmp_path: Path) -> None:
    folder, _, _ = finished
    with pytest.raises(ValueError, match="seed 0, but you asked for seed 1"):
        run(folder, "smoke", ["ala2"], seed=1)
    with pytest.raises(ValueError, match="molecule must be one of ala2, ala2-ff96, AAA, AAAAA, got 'GGG'"):
        run(tmp_path, "smoke", ["GGG"])
    with pytest.raises(ValueError, match="scale must be one of smoke, small, full"):
        run(tmp_path, "huge")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError, match="must be a folder"):
        run(file, "smoke")


def test_every_molecule_can_be_made_and_has_published_figures() -> None:
    for name in SYSTEMS:
        system = field.molecule(name)
        assert 3 * system.n_atoms - 6 == field_report.COORDINATES[name]
        assert not system.openmm_system().getNumConstraints()
    assert set(field_report.PUBLISHED) == set(SYSTEMS)
    solvent = [f for f in field.molecule("ala2-ff96").openmm_system().getForces() if "GB" in type(f).__name__]
    (obc,) = solvent
    assert type(obc).__name__ == "GBSAOBCForce" and obc.getSolventDielectric() == 78.3


def test_full_scale_grows_with_the_molecule() -> None:
    tasks = [Task(name, Path("x"), SCALES["full"], 3) for name in SYSTEMS]
    assert [task.plan.frames for task in tasks] == [3000, 3000, 2000, 1600]
    assert {task.plan.seed for task in tasks} == {task.choice.seed for task in tasks} == {3}
    assert [task.exact is not None for task in tasks] == [True, True, False, False]
    assert sum(step.seconds for step in tasks[-1].steps()) == pytest.approx(12 * 3600)


def test_states_are_a_partition_and_have_their_own_effective_size() -> None:
    phi, psi = np.random.default_rng(0).uniform(-np.pi, np.pi, (2, 1000))
    assert (sum(inside(phi, psi).astype(int) for inside in STATES.values()) == 1).all()
    drawn = samples(2000)
    found = states_of(drawn, "ALA2", 0)
    inside = drawn.torsions["ALA2"][:, 0] > 0
    log_w = np.where(drawn.handed, -drawn.energy - drawn.log_prob, -np.inf)[inside]
    w = np.exp(log_w)
    assert found["phi > 0"]["samples"] == inside.sum()
    assert found["phi > 0"]["ess"]["value"] == pytest.approx(w.sum() ** 2 / (w**2).sum() / inside.sum())
    assert 0 < found["phi > 0"]["ess"]["error"] < 0.1
    assert math.isnan(effective_in(np.zeros(24), 0).value) and effective_in(np.zeros(25), 0).value == 1


def test_the_worst_residue_is_not_known_if_one_has_hardly_any_samples(finished) -> None:
    _, result, _ = finished

    def worst(*shares: float | None) -> Estimate:
        states = {
            str(n): {"phi > 0": {"ess_clipped": {"value": s, "error": 0.01}}} for n, s in enumerate(shares)
        }
        return replace(result, states=states).worst_left

    assert worst(0.5, 0.3, 0.4) == Estimate(0.3, 0.01)
    assert math.isnan(worst(0.5, None).value) and math.isnan(worst().value)


def test_coarse_histograms_compare_with_all_frames() -> None:
    """Two basins with the shares 0.4 and 0.1: the variation is 0.3, and the weights take it away."""
    drawn, frames = samples(6000), data(6000)
    columns = Observables(frames.energy, frames.replica, np.zeros(6000, np.int64), frames.torsions, bonds={})
    found = torsional(drawn, columns, 0)["histograms"]["ALA2"]
    assert found["histogram_tv"]["value"] == pytest.approx(0.3, abs=0.03)
    assert found["histogram_tv_reweighted"]["value"] < 0.06 > found["histogram_tv_data"]["value"]


def test_costs_add_up_over_interruptions(tmp_path: Path, monkeypatch) -> None:
    file, reported = tmp_path / "costs.json", []
    with pytest.raises(KeyboardInterrupt), spent(file, "training") as meter:
        meter.evaluations += 5
        raise KeyboardInterrupt
    first = read_json(file)["training"]
    monkeypatch.setattr(costs, "SAVE_SECONDS", -1.0)
    system = field.molecule("ala2")
    x = torch.from_numpy(system.positions).repeat(2, 3, 1, 1)
    with spent(file, "training", lambda *what: reported.append(what)) as meter, force_field(system) as energy:
        counted = meter.counted(energy)
        assert torch.equal(counted.energy(x), energy.energy(x))
        assert torch.equal(counted.force(x[0]), energy.force(x[0]))
        meter.progress("steps", 1, 2)
        now = read_json(file)["training"]  # also if it is killed here
        assert now["evaluations"] == 5 + 6 + 3 and now["wall"] > first["wall"]
    assert reported == [("steps", 1, 2, "")]
    with spent(file, "measures"):
        pass
    assert set(read_json(file)) == {"training", "measures"}


def test_a_model_that_is_still_to_be_refined_is_not_finished(finished, monkeypatch) -> None:
    folder, result, _ = finished
    refined = replace(SCALES["smoke"], training=SCALES["smoke"].training.model_copy(update={"refine": True}))
    task, model = Task("ala2", folder / "ala2", refined), notes(folder / "ala2" / "model.safetensors")
    noted = {**model, "choice": {**model["choice"], "refine": True}}
    monkeypatch.setattr(field, "notes", lambda _: noted)
    assert not task.steps()[1].is_done
    noted["refinement"] = [{"steps": 10}, {"steps": 20}]
    assert task.steps()[1].is_done
    monkeypatch.setattr(field_results, "notes", lambda _: noted)
    assert read_result(task).gradient_steps == result.gradient_steps + 30


def test_the_report_has_published_figures_beside_ours(finished, tmp_path: Path) -> None:
    _, result, _ = finished
    better = replace(result, measures=result.measures | {"ess_clipped": Estimate(0.971, 0.002)})
    page, text, file = field_report.write_report(tmp_path, [better], "smoke")
    table = {row[0]: row for row in field_report.beside([better])}
    assert table["ala2"][1:7] == ["60", "82.1", "94.8", "95.8", "97.7", "97.10 ± 0.20"]
    assert table["AAA"][5:] == ["68.6", "not yet measured", "not yet measured", "–"]
    written = text.read_text(encoding="utf-8")
    for sentence in (
        "mean nothing",
        "arXiv 2510.18460",
        "OBC I and an Amber prmtop",
        "| core-minutes from nothing",
    ):
        assert sentence in written
    found = json.loads(file.read_text())
    assert found["published"]["AAAAA"]["cmt"] == 29.6 and set(found["results"]) == {"ala2"}
    assert "97.10 ± 0.20" in page.read_text(encoding="utf-8")
