"""``--json`` and ``--quiet``: one document and nothing else, nothing at all, and the numbers of the files."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

import knotflow as kf
from knotflow.cli.output import Output
from knotflow.files import read_json
from knotflow.json_values import plain
from knotflow.kernels.library import engine
from knotflow.storage import trajectory
from knotflow.storage.samples import read_samples
from tests.analysis.generators import chain, chain_data, chain_generator


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with data, a run on them, and a flow without a molecule."""
    folder = tmp_path_factory.mktemp("made")
    chain_data(folder / "chain.h5", n=200)
    (folder / "run").mkdir()
    chain_generator().float().save(folder / "run" / "model.safetensors")
    kf.save(kf.Flow.on([kf.Circle()] * 2, transform="rq"), folder / "flow.safetensors")
    return folder


def samples(found: dict[str, Any], made: Path) -> bool:
    drawn = read_samples(found["files"][0])
    w = [math.exp(x - drawn.log_weights.max()) for x in drawn.log_weights]
    share = sum(w) ** 2 / sum(x**2 for x in w) / len(w)
    return found["samples"] == len(drawn) == 40 and found["effective_share"] == pytest.approx(share)


def chains(found: dict[str, Any], made: Path) -> bool:
    frames = trajectory.read("e.h5")
    mean = frames.energies.mean() / chain().kT
    flow = found["acceptance"]["flow"]
    return (
        found["samples"] == len(frames) == 40
        and found["energy"]["value"] == pytest.approx(mean, rel=1e-6)
        and 0 < flow <= 1
        and found["acceptance"]["hmc"] is None
    )


def checks(found: dict[str, Any], made: Path) -> bool:
    rows = [row for row in found["checks"] if row["limit"] is not None and row["value"] is not None]
    return (
        found["ok"] is True
        and found["engine"] == engine()
        and len(rows) > 3
        and all(row["ok"] == (row["value"] <= row["limit"]) for row in rows)
    )


def page(found: dict[str, Any], made: Path) -> bool:
    return Path(found["page"]).is_file() and {"subject", "level", "sentence", "rule"} == set(
        found["verdicts"][0]
    )


EXACT = ("--chains", "20", "--burn-in", "2", "--every", "1", "--hmc-moves", "0", "--out", "e.h5")
SHORT = ("--replicas", "2", "--dt", "0.5", "--equilibration", "0.01", "--production", "0.02", "--every", "4")
CASES = {
    "sample": (["{run}", "-n", "40", "--weights", "--overwrite", "--out", "s.h5"], samples),
    "exact": (["{run}", "-n", "40", *EXACT], chains),
    "check": (["{flow}", "--frames", "50"], checks),
    "evaluate": (
        ["{run}", "{data}", "--samples", "50", "--out", "m.json"],
        lambda found, made: found == read_json(Path("m.json")),
    ),
    "dynamics": (
        ["{run}", "{data}", *SHORT, "--out", "d"],
        lambda found, made: found == read_json(Path("d/drift.json")),
    ),
    "report": (["{run}", "--samples", "50", "--out", "r.html"], page),
}


@pytest.mark.parametrize("command", CASES)
def test_json_is_the_whole_output_and_quiet_is_silent(command: str, run_apart, made: Path) -> None:
    arguments, agrees = CASES[command]
    names = {"run": made / "run", "data": made / "chain.h5", "flow": made / "flow.safetensors"}
    arguments = [word.format(**names) for word in arguments]
    status, out, errors = run_apart(command, *arguments, "--json")
    assert status == 0 and errors  # progress
    assert agrees(json.loads(out), made), out
    assert run_apart(command, *arguments, "--quiet") == (0, "", "")


def test_errors_are_not_silenced(run_apart, tmp_path: Path) -> None:
    status, out, errors = run_apart("sample", "none.safetensors", "--json", "--quiet")
    assert (status, out) == (2, "") and errors.startswith("Error: there is no model file none.safetensors")


def test_a_broken_promise_in_json(run_apart, tmp_path: Path) -> None:
    import torch

    flow = kf.Flow.on([kf.Circle()] * 2, transform="rq")
    with torch.no_grad():
        next(flow.parameters()).fill_(math.nan)
    kf.save(flow, tmp_path / "flow.safetensors")
    status, out, errors = run_apart("check", "flow.safetensors", "--frames", "20", "--json", "--quiet")
    found = json.loads(out)
    assert status == 1 and found["ok"] is False and not errors
    assert any(row["value"] is None and row["ok"] is False for row in found["checks"])


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("quiet", [False, True])
def test_what_goes_where(capsys, as_json: bool, quiet: bool) -> None:
    output = Output(as_json=as_json, quiet=quiet)
    table = Table("number")
    table.add_row("12")
    output.show(table)
    output.say("a [bold] result")
    output.tell("how it goes")
    output.document({"number": 12})
    out, errors = capsys.readouterr()
    assert ("12" in out) == (as_json or not quiet)
    assert ("a [bold] result" in out) == (not as_json and not quiet)
    assert errors == ("" if quiet else "how it goes\n")
    if as_json:
        assert json.loads(out) == {"number": 12}


def test_plain_values() -> None:
    @dataclass
    class Pair:
        mean: float
        file: Path

    value = {"a": [Pair(math.nan, Path("x/y"))], "b": (1, True, "ü", None), "c": -math.inf, 3: 0.1}
    expected = {"a": [{"mean": None, "file": "x/y"}], "b": [1, True, "ü", None], "c": None, "3": 0.1}
    assert plain(value) == expected
