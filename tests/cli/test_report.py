"""``knotflow report``: a page and its verdicts, with and without data, and refusals."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import knotflow as kf
from tests.analysis.generators import chain_data, chain_generator


@pytest.fixture
def run(run_here) -> Callable[..., tuple[int, str]]:
    return partial(run_here, "report")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with data and the run on it."""
    folder = tmp_path_factory.mktemp("made")
    data = chain_data(folder / "chain.h5", n=200)
    split = {"file": data.name, "frames": 200, "kind": "time", "validation": [[100, 200]]}
    (folder / "run").mkdir()
    chain_generator().save(folder / "run" / "model.safetensors", split=split)
    return folder


def test_a_page_beside_the_model_then_from_its_numbers(run, made: Path) -> None:
    status, said = run(str(made / "run"), str(made / "chain.h5"), "--samples", "200")
    assert status == 0
    page = made / "run" / "report.html"
    assert f"All numbers: {made / 'run' / 'metrics.json'} Page: {page}" in said
    assert "Weights: good: weights are reliable: Pareto k" in said
    assert "distances and error bars" in said and "pictures" in said
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")

    before = (made / "run" / "metrics.json").read_bytes()
    status, said = run(str(made / "run"), "--samples", "200", "--out", "new/again.html")
    assert status == 0 and "distances and error bars" not in said and "All numbers" not in said
    assert f"Training data: {(made / 'chain.h5').resolve()}" in said and "Page: new/again.html" in said
    again = Path("new/again.html").read_text(encoding="utf-8")
    assert "numbers from 200 samples" in again
    assert (made / "run" / "metrics.json").read_bytes() == before

    status, said = run(str(made / "run"), "--samples", "100", "--out", "new/again.html")
    assert status == 0 and f"All numbers: {made / 'run' / 'metrics.json'}" in said
    assert "numbers from 100 samples" in Path("new/again.html").read_text(encoding="utf-8")


def test_without_data_it_says_what_to_do(run, made: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.safetensors").write_bytes((made / "run" / "model.safetensors").read_bytes())
    status, said = run("alone.safetensors", "--samples", "50", "--seed", "4")
    assert status == 0 and "Page: report.html" in said
    assert (
        "No data: give a trajectory to compare with, as in `knotflow report alone.safetensors DATA.h5`"
        in said
    )
    assert (tmp_path / "report.html").is_file() and not (tmp_path / "metrics.json").exists()


def test_bad_input_is_explained_and_writes_nothing(run, made: Path, tmp_path: Path) -> None:
    model, data = str(made / "run"), str(made / "chain.h5")
    (tmp_path / "folder").mkdir()
    kf.save(kf.Flow.on([kf.Interval()] * 2), tmp_path / "flow.safetensors")
    before = sorted(tmp_path.iterdir())
    for arguments, message in (
        (["none.safetensors"], "there is no model file none.safetensors; models that come with knotflow: "),
        (["folder"], "there is no model.safetensors in folder"),
        (["flow.safetensors"], "flow.safetensors holds a flow without a molecule"),
        ([model, "none.h5"], "there is no trajectory none.h5"),
        (
            [model, data, "--out", "folder"],
            "--out must be a file, such as report.html, but folder is a folder.",
        ),
        ([model, data, "--samples", "1"], "Invalid value for '--samples'"),
    ):
        status, said = run(*arguments)
        assert status == 2 and message in said, said
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("package", ["jinja2", "ot"])
def test_a_missing_package_is_named_at_once(run, made: Path, monkeypatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    status, said = run(str(made / "run"), str(made / "chain.h5"), "--out", "page.html")
    assert status == 2 and "pip install 'knotflow[" in said and "densities" not in said
    assert not Path("page.html").exists()
