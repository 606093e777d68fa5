"""Progress: a bar on a terminal, lines elsewhere, the time left in both, and Ctrl-C."""

import os
import threading
from io import StringIO

import pytest
import typer
from rich.console import Console

from knotflow.cli.output import Output
from knotflow.cli.progress import Display, TimeLeft, duration, working
from knotflow.progress import silent, titled


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


def console(terminal: bool) -> Console:
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return Console(
        file=StringIO(), force_terminal=terminal, width=100, _environ={**environment, "TERM": "xterm"}
    )


def shown(clock: Clock, *reports: tuple, expected: float | None = None) -> list[str]:
    """Lines in a file, of reports after so many seconds each."""
    to = console(False)
    with Display(to, clock=clock, expected=expected) as progress:
        for seconds, *report in reports:
            clock.time += seconds
            progress(*report)
    return to.file.getvalue().splitlines()


# --- the time left -----------------------------------------------------------------------------------


def test_planned_work_ends_when_it_was_planned_to(clock: Clock) -> None:
    """A slow beginning says nothing of the rest; once the time is over, the pace counts again."""
    left = TimeLeft(clock, expected=1.0, deadline=clock() + 100)
    left.report(0, 100)
    assert left.seconds == pytest.approx(100)
    clock.time += 60
    left.report(1, 100)
    assert left.seconds == pytest.approx(40)
    clock.time += 50
    left.report(90, 100)
    assert left.seconds == pytest.approx(10 * 80 / 120, rel=0.5)


def test_steady_work_takes_as_long_as_it_took(clock: Clock) -> None:
    left = TimeLeft(clock)
    left.report(0, 100)
    assert left.seconds is None and str(left) == ""
    for done in range(1, 101):
        clock.time += 6
        left.report(done, 100)
        assert left.seconds == pytest.approx(6 * (100 - done))


def test_a_slow_start_is_forgotten(clock: Clock) -> None:
    left = TimeLeft(clock)
    left.report(0, 1000)
    clock.time += 300  # compilation
    left.report(1, 1000)
    for done in range(2, 5):
        clock.time += 1
        left.report(done, 1000)
    assert left.seconds == pytest.approx(996)


def test_resumed_work_is_not_thought_fast(clock: Clock) -> None:
    left = TimeLeft(clock)
    left.report(900, 1000)
    clock.time += 10
    left.report(905, 1000)
    assert left.seconds == pytest.approx(190)


def test_the_pace_is_that_of_late(clock: Clock) -> None:
    left = TimeLeft(clock)
    for done in range(5001):  # more than an hour at one a second
        left.report(done, 10_000)
        clock.time += 1
    for done in range(5001, 5201):  # the machine gets busy: one in four seconds
        clock.time += 4
        left.report(done, 10_000)
    assert left.seconds == pytest.approx(4 * 4800, rel=0.01)


def test_silence_does_not_use_up_the_time(clock: Clock) -> None:
    left = TimeLeft(clock)
    left.report(0, 2)
    clock.time += 100
    left.report(1, 2)
    seen = []
    for _ in range(10):
        clock.time += 10
        seen.append(left.seconds)
    assert seen[:5] == [90, 80, 70, 60, 50] and set(seen[5:]) == {50}


def test_work_that_begins_again_forgets_what_it_was(clock: Clock) -> None:
    left = TimeLeft(clock)
    for done in (0, 50, 10):
        left.report(done, 100)
        clock.time += 10
    left.report(20, 100)
    assert left.seconds == pytest.approx(80)


@pytest.mark.parametrize("slower", [1.0, 2.0, 5.0])
def test_an_expected_pace_is_where_it_begins(clock: Clock, slower: float) -> None:
    left = TimeLeft(clock, expected=1.0)
    left.report(0, 1000)
    assert left.seconds == 1000
    for done in range(1, 601):
        clock.time += slower
        left.report(done, 1000)
    assert left.seconds == pytest.approx(400 * slower, rel=0.2)


def test_more_than_twice_as_fast_as_expected_is_not_believed(clock: Clock) -> None:
    left = TimeLeft(clock, expected=1.0)
    left.report(0, 1000)
    left.report(900, 1000)  # it was there, in a file
    assert left.seconds == 50


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0.4 s"), (40, "40 s"), (100, "2 min"), (3600, "60 min"), (9000, "2.5 h"), (4e5, "5 days")],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- lines -------------------------------------------------------------------------------------------


def test_lines_for_stages_tenths_and_minutes(clock: Clock) -> None:
    lines = shown(
        clock,
        (0, "boiling", 0, 1000, "20 K"),
        (5, "boiling", 110, 1000, "21 K"),  # a tenth, but too soon
        (5, "boiling", 120, 1000, "22 K"),
        (30, "boiling", 130, 1000, "23 K"),
        (30, "boiling", 140, 1000, "24 K"),  # no tenth, but a minute
        (30, "boiling", 1000, 1000, "100 K"),
        (5, "boiling", 1000, 1000, "100 K"),
        (0, "eating", 0, 3),
        (1, "eating", 3, 3),
        (0, "washing up", 0, 3),
        (0.5, "washing up", 3, 3),
    )
    assert lines[0] == "boiling: 20 K"
    assert lines[1].startswith("boiling: 12 %, about ") and lines[1].endswith(" left, 22 K")
    assert lines[2].startswith("boiling: 14 %, about ") and lines[2].endswith(" left, 24 K")
    assert lines[3:] == ["boiling: done in 2 min, 100 K", "eating", "eating: done in 1.0 s", "washing up"]


def test_the_first_estimate_does_not_wait_for_a_tenth(clock: Clock) -> None:
    lines = shown(clock, *((2, "sampling", done, 1000) for done in range(12)))
    assert lines == ["sampling", "sampling: 0 %, about 33 min left"]


def test_the_time_left_is_in_every_line(clock: Clock) -> None:
    reports = [(18, "sampling", done, 10, "10 of 10 whole") for done in range(11)]
    lines = shown(clock, *reports)
    assert lines[4] == "sampling: 40 %, about 2 min left, 10 of 10 whole"
    assert lines[9] == "sampling: 90 %, about 18 s left, 10 of 10 whole"
    assert lines[10] == "sampling: done in 3 min, 10 of 10 whole" and len(lines) == 11


def test_stages_that_count_on_are_one_piece_of_work(clock: Clock) -> None:
    lines = shown(
        clock,
        (0, "compiling", 0, 0, "about a minute"),
        (60, "spreading", 1, 100),
        (10, "spreading", 11, 100),
        (10, "sampling", 21, 100),
        (79, "sampling", 100, 100),
    )
    assert lines == [
        "compiling: about a minute",
        "spreading: 1 %",
        "spreading: 11 %, about 89 s left",
        "sampling: 21 %, about 79 s left",
        "sampling: done in 2 min in all",
    ]


def test_a_file_shows_that_silent_work_goes_on(clock: Clock) -> None:
    to = console(False)
    with Display(to, clock=clock) as progress:
        progress.go_on()  # nothing has begun
        for name, *reports in (("judging", (0, 0)), ("training", (0, 8), (2, 8)), ("training", (8, 8))):
            for done, total in reports:
                progress(name, done, total)
                clock.time += 30
                progress.go_on()  # too early
                clock.time += 40
                progress.go_on()
    progress.go_on()  # it is over
    assert to.file.getvalue().splitlines() == [
        "judging", "judging: 70 s so far", "training", "training: 70 s so far",
        "training: 25 %, about 2 min left, 2 min so far",
        "training: done in 2 min", "training: done, the work goes on",
    ]  # fmt: skip
    assert "progress" not in [thread.name for thread in threading.enumerate()]


def test_work_of_unknown_length(clock: Clock) -> None:
    lines = shown(clock, *((30, "importing", n, 0, f"{n} frames") for n in (0, 100, 200, 300)))
    assert lines == ["importing: 0 frames", "importing: 200 frames"]


def test_steps_that_are_expected_to_take_so_long(clock: Clock) -> None:
    lines = shown(
        clock,
        (0, "step 2 of 3: boiling", 200, 480),
        (40, "step 2 of 3: boiling", 240, 480),
        (40, "step 3 of 3: eating", 280, 480),
        expected=1.0,
    )
    assert lines[0] == "step 2 of 3: boiling: 41 %, about 5 min left"
    assert lines[2] == "step 3 of 3: eating: 58 %, about 3 min left"


def test_a_title_goes_before_the_stage() -> None:
    seen: list[tuple] = []
    titled("run 1", lambda *report: seen.append(report))("training", 1, 2, "loss 3")
    assert seen == [("run 1: training", 1, 2, "loss 3")]
    silent("training", 1, 2)


# --- bars, and the end -------------------------------------------------------------------------------


def test_a_bar_on_a_terminal(clock: Clock) -> None:
    to = console(True)
    with Display(to, clock=clock) as progress:
        for done in range(5):
            clock.time += 45
            progress("boiling", done, 4, f"{done} [degrees]")
            progress.bar.refresh()
    said = to.file.getvalue()
    assert "boiling" in said and "50 %" in said and "about 2 min left" in said and "2 [degrees]" in said
    assert "boiling: done in 3 min, 4 [degrees]" in said and "boiling: 50 %" not in said
    assert progress.bar.live.is_started is False


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_says_what_became_of_the_work(terminal: bool, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1" if terminal else "")
    for stopped in ("nothing was written.", lambda: "nothing was written."):
        with pytest.raises(typer.Exit) as end, working(Output(), stopped) as progress:
            progress("boiling", 1, 2)
            raise KeyboardInterrupt
        assert end.value.exit_code == 130 and progress.bar.live.is_started is False
        assert "Stopped; nothing was written." in capsys.readouterr().err
    with pytest.raises(ValueError, match="mine"), working(Output(quiet=True)) as progress:
        raise ValueError("mine")
    assert progress.bar.live.is_started is False and not capsys.readouterr().err
