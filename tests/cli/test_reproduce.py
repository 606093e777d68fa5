"""``knotflow reproduce table1`` as a user runs it; the other experiments are in tests/experiments."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from knotflow.files import read_json
from knotflow.paper import table1
from knotflow.paper.table1 import Scale
from knotflow.training.module import FlowModule
from tests.analysis.generators import ala2_data

TINY = Scale(epochs=2.0, samples=50, bins=4)


@pytest.fixture
def run(run_here, monkeypatch) -> Callable[..., tuple[int, str]]:
    monkeypatch.setitem(table1.SCALES, "small", TINY)
    monkeypatch.setenv("COLUMNS", "160")
    return partial(run_here, "reproduce", "table1")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    return str(ala2_data(tmp_path_factory.mktemp("data") / "ala2.h5"))


def test_before_and_after_in_one_folder(run, data: str, monkeypatch) -> None:
    arguments = ["--data", data, "--rows", "bspline+fm", "--out", "out"]
    status, said = run(*arguments, "--published")
    assert status == 0 and "run 1 of 1: B-spline+FM, seed 0, as published" in said
    assert "as published, 1 seed" in said and "-209.45 ± 1.78" in said and "recipe," not in said
    written = {"bspline-fm-0-pub", "table1.md", "table1.json", "table1.toml"}
    assert {path.name for path in Path("out").iterdir()} == written

    status, said = run(*arguments, "--seeds", "2")
    assert (
        status == 0
        and "run 2 of 2: B-spline+FM, seed 1" in said
        and "seed 1: data: densities and forces" in said
    )
    assert "recipe, 2 seeds" in said and "as published, 1 seed" in said
    assert "Results: out/table1.md, out/table1.json, out/seeds.png" in said
    assert Path("out/seeds.png").read_bytes().startswith(b"\x89PNG")
    found = read_json(Path("out/table1.json"))
    assert (found["scale"], found["epochs"], found["data"]) == ("small", 2.0, "ala2.h5")
    assert [line["trained"] for line in found["table"]] == ["as published", "recipe", "paper"]
    config = {name: read_json(Path(f"out/bspline-fm-0-{name}/config.json")) for name in ("pub", "rec")}
    assert [config[name]["training"]["clip"] for name in ("pub", "rec")] == [None, 20.0]
    maps = [c["flow"]["couplings"][0]["transform"]["parametrisation"] for c in config.values()]
    assert [(m["min_width"], m["min_rise"]) for m in maps] == [(1e-6, 1e-6), (None, 1e-6)]

    monkeypatch.setattr(FlowModule, "training_step", None)
    status, said = run("--config", "out/table1.toml", "--json", "--quiet")
    assert status == 0 and json.loads(said) == found
    status, said = run("--config", "out/table1.toml")
    assert status == 0 and "run 2 of 2: B-spline+FM, seed 1: finished before" in said
    assert read_json(Path("out/table1.json")) == found
    status, said = run(*arguments, "--epochs", "3")
    assert status == 2 and "out/bspline-fm-0-pub holds a run made with epochs" in said


def test_bad_input_is_explained_and_writes_nothing(run, data: str) -> None:
    for arguments, message in (
        (
            [],
            "Table 1 needs a trajectory of alanine dipeptide: give --data FILE.h5, made with `knotflow sim",
        ),
        (["--data", "none.h5"], "there is no trajectory none.h5"),
        (["--data", data, "--scale", "paper"], "needs 900,000 training frames"),
        (["--data", data, "--rows", "rq+fm"], "'bspline+fm'"),
        (["--data", data, "--seeds", "0"], "Invalid value for '--seeds'"),
    ):
        status, said = run(*arguments)
        assert status == 2 and message in said, said
    assert not list(Path().iterdir())


@pytest.mark.parametrize(("package", "extra"), [("ot", "analysis"), ("matplotlib", "plot")])
def test_a_missing_package_is_named_before_the_training(run, data: str, monkeypatch, package, extra) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    status, said = run("--data", data, "--seeds", "2")
    assert status == 2 and f"pip install 'knotflow[{extra}]'" in said
    assert not list(Path().iterdir())
