"""The toy experiments at the smallest scale: everything but the quality of the result."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import knotflow as kf
from knotflow.cli import app
from knotflow.energies import Mixed, Rings
from knotflow.files import read_json
from knotflow.paper import mixed5d, toy2d
from knotflow.paper.toy2d import write_report
from knotflow.training.module import FlowModule

RUN = ["reproduce", "toy2d", "--scale", "smoke"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("toy2d")
    for arguments in (["--model", "bspline", "--model", "rq"], ["--preset", "best", "--domain", "interval"]):
        done = CliRunner().invoke(app, [*RUN, *arguments, "--out", str(out)], catch_exceptions=False)
        assert done.exit_code == 0
    return out


def test_everything_lands_in_one_folder(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    scenarios = {f"{m}-{d}" for m in ("bspline", "rq") for d in ("interval", "circle")} | {"best-interval"}
    pictures = {"figure1.png", "figure2.png", "figure5.png", "training-interval.png", "training-circle.png"}
    assert names == scenarios | pictures | {"index.html", "results.json", "results.csv", "toy2d.toml"}
    results = json.loads((folder / "results.json").read_text())
    assert [(r["model"], r["domain"]) for r in results] == [
        ("bspline", "interval"),
        ("bspline", "circle"),
        ("rq", "interval"),
        ("rq", "circle"),
        ("best", "interval"),
    ]
    with (folder / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 5
    page = (folder / "index.html").read_text()
    assert page.count("data:image/png;base64") == 5 and "B-spline, best" in page


def test_numbers_are_those_of_the_saved_flows(folder: Path) -> None:
    """Mass, divergence and force error once more, from the model file, by sums over a grid of our own."""
    found = toy2d.read_results(folder)[0]
    flow = toy2d.read_flow(folder, "bspline", "interval").double()
    n = toy2d.SCALES["smoke"].grid
    axis = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    x = torch.cartesian_prod(axis, axis)
    energy = Rings()
    with torch.no_grad():
        p = torch.softmax(-energy.energy(x), 0)
        log_q = flow.log_prob(x)
        kl = (p * (p.log() + 2 * np.log(n) - log_q)).nansum()
        error = (p * (flow.score(x) - energy.force(x)).square().sum(-1)).sum().sqrt()
    assert found.mass == pytest.approx(float(log_q.exp().mean()), rel=1e-6)
    assert found.kl == pytest.approx(float(kl), rel=1e-6)
    assert found.force_rms == pytest.approx(float(error), rel=1e-6)
    assert abs(found.mass - 1) < 0.01


def test_jumps_tell_the_transforms_apart(folder: Path) -> None:
    jumps = {(r.model, r.domain): r.force_jump for r in toy2d.read_results(folder)}
    for domain in ("interval", "circle"):
        assert jumps["rq", domain] > 0.1
        assert jumps["bspline", domain] < 1e-6


def test_what_is_done_is_not_done_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "bspline-circle" / "result.json").read_bytes()
    monkeypatch.setattr(FlowModule, "training_step", None)
    monkeypatch.setattr(toy2d, "evaluate", None)
    arguments = [*RUN, "--model", "bspline", "--domain", "circle", "--out", str(folder)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and "index.html" in done.output
    assert (folder / "bspline-circle" / "result.json").read_bytes() == before


def test_results_of_other_inputs_or_earlier_versions_are_made_again(folder: Path, monkeypatch) -> None:
    place, scale = folder / "bspline-circle", toy2d.SCALES["smoke"]
    kept = read_json(place / "result.json")
    monkeypatch.setattr(FlowModule, "training_step", None)
    for inputs in (None, {**kept["inputs"], "grid": 7}):
        (place / "result.json").write_text(json.dumps({**kept, "inputs": inputs}))
        assert toy2d.read_results(folder)[1].kl == kept["kl"], "shown as it is"
        said: list[str] = []
        found = toy2d.run_scenario("bspline", "circle", scale, place, say=said.append)
        assert found.kl == kept["kl"] and said[-1].endswith("exact errors on a grid of 100 x 100")
        assert read_json(place / "result.json")["inputs"] == kept["inputs"]


def test_fields_are_kept_for_one_model_and_size(folder: Path, monkeypatch) -> None:
    for n in (60, 20):
        density, force = toy2d.learned_field(folder, "rq", "interval", n)
        assert density.shape == (n, n) and force.shape == (n, n, 2)
    monkeypatch.setattr(toy2d, "field", None)
    again = toy2d.learned_field(folder, "rq", "interval", 20)
    np.testing.assert_array_equal(again[0], density)


def test_settings_and_results_for_scripts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowModule, "training_step", None)
    again = ["reproduce", "toy2d", "--config", str(folder / "toy2d.toml")]
    done = CliRunner().invoke(app, [*again, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["page"] == str(folder / "index.html")
    assert found["results"] == json.loads((folder / "results.json").read_text())
    done = CliRunner().invoke(app, [*again, "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0 and done.output == ""


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    both = CliRunner().invoke(app, [*RUN, "--preset", "best", "--model", "rq", "--out", str(tmp_path)])
    assert isinstance(both.exception, ValueError) and "--preset best" in str(both.exception)
    unknown = CliRunner().invoke(app, ["reproduce", "toy2d", "--scale", "huge"])
    assert unknown.exit_code == 2 and "smoke" in unknown.output
    with pytest.raises(ValueError, match="holds no finished scenario"):
        write_report(tmp_path, "smoke")
    assert not list(tmp_path.iterdir())


def test_accumulated_maps_are_those_of_the_flow(folder: Path) -> None:
    x, y, slopes = toy2d.accumulated_maps(toy2d.read_flow(folder, "bspline", "interval"), points=3, grid=50)
    assert y.shape == slopes.shape == (4 * 3, 50)
    assert (np.diff(y) > 0).all() and np.allclose(y[:, [0, -1]], [0, 1])
    around = toy2d.accumulated_maps(toy2d.read_flow(folder, "bspline", "circle"), points=3, grid=50)
    assert np.allclose(around[2][:, 0], around[2][:, -1]), "slopes agree at both ends of a circle"
    assert len(x) == 50


@pytest.mark.parametrize("model", toy2d.MODELS)
@pytest.mark.parametrize("domain", toy2d.DOMAINS)
def test_the_papers_architecture(model: str, domain: str) -> None:
    config = toy2d.flow_config(model, domain, toy2d.SCALES["paper"])
    if model != "best":
        assert len(config.couplings) == 4
        assert all(c.conditioner.hidden == (100, 100) for c in config.couplings)
    training = toy2d.training_config(model, toy2d.SCALES["paper"], 0)
    assert (training.steps, training.batch_size) == (8000, 1000) or model == "best"


def test_five_coordinates_of_mixed_kinds(tmp_path: Path) -> None:
    arguments = ["reproduce", "mixed5d", "--scale", "smoke", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and "effective sample size" in done.stdout
    metrics = read_json(tmp_path / "metrics.json")
    done = CliRunner().invoke(app, [*arguments, "--json", "--quiet"], catch_exceptions=False)
    assert json.loads(done.stdout)["result"] == metrics and done.stderr == ""
    untrained = mixed5d.evaluate(kf.Flow.on(Mixed().domains), Mixed(), 2000, 0.0)
    assert metrics["kl"] < 0.5 * untrained.kl
    assert metrics["score_error"] < untrained.score_error
