"""Progress: bars on a terminal, a line for every tenth elsewhere."""

import os
from io import StringIO

import pytest
from rich.console import Console

from knotflow.cli.stages import Bars, Stages


@pytest.fixture(params=[False, True], ids=["file", "terminal"])
def console(request, monkeypatch) -> Console:
    monkeypatch.delenv("NO_COLOR", raising=False)
    environment = {**os.environ, "TERM": "xterm"}
    return Console(file=StringIO(), force_terminal=request.param, width=100, _environ=environment)


def test_a_bar_or_a_line_for_every_tenth(console: Console) -> None:
    with Bars(console, "{task.percentage:.0f}% {task.fields[state]}") as bars:
        bar = bars.add("boiling: cold")
        for done in (0, 5, 9, 10, 19, 55, 100):
            bar.show("boiling", done, 100, f"{done} degrees", f"at {done} degrees" if done == 55 else None)
            bars.bar.refresh()
    said = console.file.getvalue()
    if console.is_terminal:
        assert "boiling" in said and "19% 19 degrees" in said and "100% 100 degrees" in said
        assert "% done" not in said
    else:
        assert said.splitlines() == [
            "boiling: 0 % done, 0 degrees",
            "boiling: 10 % done, 10 degrees",
            "boiling: 50 % done, at 55 degrees",
            "boiling: 100 % done, 100 degrees",
        ]


def test_a_line_for_every_stage(console: Console) -> None:
    with Stages(console) as stages:
        for doing, total in (("boiling", 2000), ("eating", 3)):
            for done in (0, 1, total):
                stages(doing, done, total)
                stages.bar.refresh()
    said = console.file.getvalue()
    if console.is_terminal:
        assert "2000/2000" in said and "3/3" in said and "time left" in said
    else:
        assert said.splitlines() == ["boiling (2,000)", "eating (3)"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_bars_end_with_an_error(console: Console, error: type[BaseException]) -> None:
    bars = Bars(console)
    with pytest.raises(error), bars:
        bars.add("boiling")
        raise error
    assert bars.bar.live.is_started is False
