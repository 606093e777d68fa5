"""``knotflow reproduce all`` at its smallest scale, as a user runs it: every figure and table on one page."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from knotflow.cli import app
from knotflow.dynamics import Record
from knotflow.files import read_json
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.paper import all_results as everything
from knotflow.paper import molecule_figures, table2
from knotflow.storage import trajectory
from knotflow.training.module import FlowModule
from tests.analysis.generators import ala2_data

ALL = ("reproduce", "all", "--scale", "smoke")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, str]:
    """A folder, what was printed as JSON, and what was said meanwhile."""
    out = tmp_path_factory.mktemp("all")
    done = CliRunner().invoke(app, [*ALL, "--json", "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return out, json.loads(done.stdout), done.stderr


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing can be trained, sampled, evaluated or timed."""
    monkeypatch.setattr(FlowModule, "training_step", None)
    monkeypatch.setattr(molecule_figures, "save", None)
    monkeypatch.setattr(table2, "measure", None)
    monkeypatch.setattr(everything.toy2d, "evaluate", None)


def test_the_page_has_every_figure_and_table(made) -> None:
    out, found, said = made
    page = (out / "index.html").read_text()
    assert found["page"] == str(out / "index.html")
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    numbered = [heading.split(":")[0] for heading in headings[1:-1]]
    assert numbered == [
        *("Figure 1", "Figure 2", "Table 1", "Figure 3", "Figure 4", "Table 2", "Figure 5", "Figure 6"),
        *("Figure 7", "Figure 8", "Figure 9"),
    ]
    assert "no number and no picture on this page means anything" in page
    # Fields twice, maps, a column of forces for each model, dynamics, and six for each of three figures.
    assert page.count("data:image/png;base64") == 2 + 1 + 5 + 1 + 3 * 6
    assert not re.search(r'(src|href)="(?!data:|#)', page), "refers to nothing outside"
    assert page.count("Why it differs") == 10
    for paper in ("79.95 ± 92.80", "19.80 ± 0.26", "all ten fail", "-209.45 ± 1.78", "380,982", "0.086"):
        assert paper in page
    assert [line for line in said.splitlines() if line.startswith("part ")] == [
        f"part {number} of 5: {title}" for number, title in enumerate(everything.PARTS.values(), 1)
    ]
    names = {path.name for path in out.iterdir()}
    parts = {"ala2.h5", "ala2.h5.state", "toy2d", "table1", "looks", "dynamics", "table2"}
    assert names == parts | {"index.html", "all.json", "all.toml"}
    assert json.loads((out / "all.json").read_text()) == {k: v for k, v in found.items() if k != "page"}


def test_numbers_are_those_of_the_parts(made) -> None:
    """Each once more, from the files of its part."""
    out, found, _ = made
    assert found["data"] == {"file": "ala2.h5", "frames": 120}
    for result in found["rings"]:
        file = out / "toy2d" / f"{result['model']}-{result['domain']}" / "result.json"
        assert result == {k: v for k, v in read_json(file).items() if k != "inputs"}
    assert len(found["rings"]) == 6
    for name, numbers in found["dynamics"].items():
        record = Record.load(out / "dynamics" / name / "record.npz")
        assert record.potential.shape[1] == numbers["replicas"] == 3
    assert list(found["dynamics"]) == ["force-field", "rq-nll-0-rec", "smooth-fm-0-rec", "bspline-fm-0-rec"]
    for row in found["table2"]:
        folder = out / "table1" / f"{row['family']}-{'nll' if row['family'] == 'rq' else 'fm'}-0-rec"
        generator = BoltzmannGenerator.load(folder / "model.safetensors")
        assert row["parameters"] == sum(p.numel() for p in generator.parameters())
        assert row["reverse"][0] > 0 and row["forward"][0] > 0
    trained = {line["row"]: line for line in found["table1"] if line["trained"] == "recipe"}
    metrics = json.loads((out / "table1" / "smooth-nll-0-rec" / "metrics.json").read_text())
    assert trained["smooth"]["measures"]["fme"][0] == metrics["measures"]["force_error_1e4"]["value"]
    claims = {(row["claim"].split(",")[0], row["flow"]): row["here"] for row in found["claims"]}
    times = {row["family"]: row["reverse"][0] for row in found["table2"]}
    faster = times["smooth"] / times["bspline"]
    assert float(claims["sampling", "B-spline"]) == pytest.approx(faster, abs=0.06)


def test_forces_are_those_of_the_frames_held_back(made) -> None:
    """The error of forces once more, from model and data; held out are 12 of 120 frames, see Table 1."""
    out, found, _ = made
    info, frames = trajectory.open_info(out / "ala2.h5"), trajectory.read(out / "ala2.h5")
    split = json.loads((out / "table1" / "bspline-fm-0-rec" / "split.json").read_text())
    rows = np.concatenate([np.arange(first, last) for first, last in split["validation"]])
    assert len(rows) == 12
    generator = BoltzmannGenerator.load(out / "table1" / "bspline-fm-0-rec" / "model.safetensors")
    x = torch.from_numpy(frames.positions[rows])
    error = generator.force(x).detach().double().numpy() - frames.forces[rows] / info.system.kT
    assert found["force_errors"]["bspline+fm"]["data"] == pytest.approx((error**2).mean(), rel=1e-3)
    each = np.median((error**2).mean((1, 2)))
    assert found["force_errors"]["bspline+fm"]["data_median"] == pytest.approx(each, rel=1e-3)


def test_what_is_done_is_not_done_again(made, idle, run_apart: Callable) -> None:
    out, found, _ = made
    status, printed, said = run_apart("reproduce", "all", "--config", str(out / "all.toml"), "--json")
    assert status == 0, said
    assert json.loads(printed) == found
    assert "run 4 of 4: B-spline+FM: finished before" in said


def test_folders_that_are_there_are_shown_quietly(made, idle, run_apart: Callable, monkeypatch) -> None:
    out, found, _ = made
    monkeypatch.setattr(molecule_figures, "run", lambda model, *_, **__: _looks_of(out, model))
    monkeypatch.setattr(
        table2, "run", lambda *_, **__: list(table2.read(out / "table2/table2.json").values())
    )
    given = [x for part in ("toy2d", "table1", "dynamics") for x in (f"--{part}", str(out / part))]
    assert run_apart(*ALL, *given, "--data", str(out / "ala2.h5"), "--out", "new", "-q") == (0, "", "")
    again = json.loads(Path("new/all.json").read_text())
    assert {key: again[key] for key in ("rings", "table1", "dynamics", "claims")} == {
        key: found[key] for key in ("rings", "table1", "dynamics", "claims")
    }
    assert f"As it is in {out / 'table1'}." in Path("new/index.html").read_text()


def _looks_of(out: Path, model: Path) -> molecule_figures.ShownFrames:
    names = {"fm": "{}+fm", "nll": "{}"}
    family, kind = model.parent.name.split("-")[:2]
    file = out / "looks" / f"{names[kind].format(family)}.npz"
    with np.load(file) as kept:
        about = str(kept["about"])
    found = molecule_figures.load(file, about)
    assert found is not None
    return found


def test_bad_input_is_explained_before_any_work(made, run_here: Callable, tmp_path: Path) -> None:
    out, _, _ = made
    other = str(ala2_data(tmp_path / "other.h5"))
    for arguments, message in (
        (
            ["reproduce", "all"],
            "need a trajectory: give --data FILE.h5, made with `knotflow simulate --out FILE.h5",
        ),
        (["reproduce", "all", "--data", "none.h5"], "there is no trajectory none.h5"),
        (["reproduce", "all", "--data", other, "--scale", "paper"], "needs 900,000 training frames"),
        (
            [*ALL, "--toy2d", "nowhere"],
            "nowhere holds no finished results of this scale; finish them with `knotflow reproduce toy2d",
        ),
        ([*ALL, "--dynamics", str(out / "toy2d")], "leave --dynamics out"),
        (
            [*ALL, "--table1", str(out / "table1"), "--data", other],
            "was trained on ala2.h5 (120 frames), not on other.h5",
        ),
    ):
        status, said = run_here(*arguments)
        assert status == 2 and message in said, said
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".h5"] in ([], ["other.h5.state"])


def test_ctrl_c_is_safe(run_here: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_, **__) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(everything.toy2d, "run_scenario", stopped)
    status, said = run_here(*ALL)
    assert status == 130 and "Stopped; run the same command again to continue." in said
    assert not Path("runs").exists(), "nothing had been begun"


@pytest.mark.parametrize(
    ("package", "extra"), [("ot", "analysis"), ("matplotlib", "plot"), ("jinja2", "plot")]
)
def test_a_missing_package_is_named_before_any_work(run_here, monkeypatch, package, extra) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    status, said = run_here(*ALL)
    assert status == 2 and f"pip install 'knotflow[{extra}]'" in said
    assert not list(Path().iterdir())
