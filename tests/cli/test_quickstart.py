"""``knotflow quickstart``: all of it, stopped and gone on with; and the time it says is left."""

import json
import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from knotflow.cli.quickstart import Shown, TimeLeft
from knotflow.storage import trajectory
from knotflow.storage.samples import read_samples
from knotflow.workflows import quickstart

SMOKE = ("quickstart", "--scale", "smoke", "--out", "here")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_all_of_it(run_here: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch) -> None:
    here = tmp_path / "here"

    # Stopped in the fourth step, it says how to go on.
    with monkeypatch.context() as patch:
        patch.setattr(quickstart, "evaluate", interrupt)
        status, said = run_here(*SMOKE)
    assert status == 130 and said.endswith("Stopped; the same command goes on where it was, in here.")
    assert "step 1 of 6: simulating, " in said and "left" in said
    made = {name: (here / name).read_bytes() for name in ("ala2.h5", "model.safetensors", "samples.h5")}
    assert not (here / "metrics.json").exists() and not (here / "report.html").exists()

    # It goes on there, and leaves what was done.
    status, said = run_here(*SMOKE)
    assert status == 0
    assert "step 4 of 6: evaluating" in said and "step 3 of 6" not in said
    assert all((here / name).read_bytes() == content for name, content in made.items())
    assert len(trajectory.read(here / "ala2.h5").positions) == 120
    samples = read_samples(here / "samples.h5")
    assert len(samples) == 200 and np.isfinite(samples.log_weights).all()
    assert (here / "report.html").stat().st_size > 500_000
    assert not list(here.glob(".*"))  # neither locks nor parts

    # It ends with five lines, of the numbers in the files.
    metrics = json.loads((here / "metrics.json").read_text())
    drift = json.loads((here / "dynamics" / "drift.json").read_text())
    for what in ("Learned:", "Samples:", "Forces:", "Look at:", "Next:"):
        assert said.count(what) == 1
    assert "120 frames of a simulation" in said
    share = metrics["measures"]["ess"]["value"]
    assert f"effective sample size {100 * share:.2g} %" in said
    assert f"{drift['replicas'] - drift['broken']} of 2 molecules stayed whole" in said

    # Once more: nothing is left to do.
    page = (here / "report.html").stat().st_mtime_ns
    status, said = run_here(*SMOKE)
    assert status == 0 and "all is done already; remove here to begin anew" in said
    assert "step" not in said.split("Learned:")[0] and (here / "report.html").stat().st_mtime_ns == page

    # As JSON, the same; only what is missing is made again.
    (here / "samples.h5").unlink()
    status, said = run_here(*SMOKE, "--json", "--quiet")
    assert status == 0
    document = json.loads(said)
    assert document["found"]["metrics"]["measures"]["ess"]["value"] == share
    assert (here / "samples.h5").exists() and (here / "report.html").stat().st_mtime_ns == page

    # Other settings need another folder.
    status, said = run_here(*SMOKE, "--seed", "1")
    assert status == 2 and "made with seed 0, but you asked for seed 1" in said
    assert (here / "report.html").stat().st_mtime_ns == page


def test_a_file_is_no_folder(run_here, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("mine")
    status, said = run_here(*SMOKE)
    assert status == 2 and "--out must be a folder for the results, but here is a file." in said
    assert (tmp_path / "here").read_text() == "mine"


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_on_schedule_the_time_left_is_what_was_expected(clock: Clock) -> None:
    left = TimeLeft([100, 200, 60], clock)
    assert left.left() == 360
    left.begin(0)
    for second in range(1, 101):
        clock.time += 1
        left.tell(second / 100)
        assert left.left() == pytest.approx(360 - second)
    left.end(0)
    left.begin(1)
    clock.time += 50  # without a word
    assert left.left() == pytest.approx(210)
    assert str(left) == "about 4 min left in all"


@pytest.mark.parametrize("slower", [2.0, 5.0])
def test_a_slow_machine_is_noticed(clock: Clock, slower: float) -> None:
    left = TimeLeft([1000, 500], clock)
    left.begin(0)
    for part in np.linspace(0, 1, 101):
        left.tell(part)
        clock.time += 10 * slower
    assert left.left() == pytest.approx(500 * slower, rel=0.05)


def test_what_was_done_earlier_says_nothing_of_the_speed(clock: Clock) -> None:
    left = TimeLeft([1000, 500, 100], clock)
    left.end(0)
    assert left.pace == 1 and left.left() == 600
    left.begin(1)
    left.tell(0.9)  # it was stopped there
    assert left.pace == 0.5  # not nearly nothing
    left.end(1)
    left.begin(2)
    assert left.left() > 0


def test_silence_does_not_use_up_all_the_time(clock: Clock) -> None:
    left = TimeLeft([100, 40], clock)
    left.begin(0)
    seen = []
    for _ in range(50):
        clock.time += 10
        seen.append(left.left())
    assert seen == sorted(seen, reverse=True) and seen[-1] == 90
    left.end(0)
    left.end(1)
    assert left.left() == 0 and str(left) == "less than a minute left"


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_says_step_and_time(terminal: bool, monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, _environ={**os.environ, "TERM": "xterm"})
    with Shown(console, ["boiling", "eating"], [200, 280]) as shown:
        shown.begin(0)
        shown.bar.refresh()
        shown.tell(0.5)
        shown.end(0)
        shown.begin(1)
        shown.bar.refresh()
    said = text.getvalue()
    assert "step 1 of 2: boiling" in said and "step 2 of 2: eating" in said
    assert "about 8 min left in all" in said
    if not terminal:
        assert said.splitlines()[0] == "step 1 of 2: boiling, about 8 min left in all"
