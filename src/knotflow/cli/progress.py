"""Progress of a command: a bar with the time left on a terminal, lines in a file or pipe; and Ctrl-C."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

from knotflow.cli.output import Output

Clock = Callable[[], float]

WINDOW: Final = 600.0
"""Seconds: the pace of earlier work does not count."""
TRUST: Final = 30.0
"""Seconds after which the measured pace counts as much as the expected one."""
FASTEST: Final = 0.5
"""Work is not believed to go more than twice as fast as expected: it may begin half-way, from a file."""
SHORT_PAUSE: Final = 10.0
"""Seconds between two lines at least, unless a stage begins or ends."""
LONG_PAUSE: Final = 60.0
"""Seconds between two lines at most, as long as the work reports."""


class TimeLeft:
    r"""How long a piece of work still takes, judged by its pace of late.

    The pace is that of the second half of what was done since the first report, and of the last ten minutes
    at most: a slow start is soon forgotten, and what an earlier process did does not count. With an expected
    pace $p$, in seconds for a unit of work, $w$ units in $t$ seconds give the pace $(t + c)/(w + c/p)$ with
    $c$ = `TRUST`.

    Args:
        clock: Tells the time in seconds.
        expected: The expected pace; None: it is not known.
    """

    def __init__(self, clock: Clock = time.monotonic, expected: float | None = None) -> None:
        self.clock, self.expected = clock, expected
        self._reports: deque[tuple[float, float]] = deque()
        self._first = 0.0
        self._state: tuple[float, float | None] = (clock(), None)
        """When the last report came, and the seconds left then."""

    def report(self, done: float, total: float) -> None:
        """So much is done."""
        now, reports = self.clock(), self._reports
        if not reports or done < reports[-1][1]:
            reports.clear()
            self._first = done
        reports.append((now, done))
        half = (self._first + done) / 2
        while len(reports) > 2 and (reports[1][1] <= half or reports[1][0] <= now - WINDOW):
            reports.popleft()
        pace = self._pace(now - reports[0][0], done - reports[0][1])
        self._state = now, None if pace is None else pace * (total - done)

    def _pace(self, seconds: float, worked: float) -> float | None:
        """Seconds for a unit of work."""
        if self.expected is not None:
            pace = (seconds + TRUST) / (worked + TRUST / self.expected)
            return max(FASTEST * self.expected, pace)
        return seconds / worked if worked > 0 else None

    @property
    def seconds(self) -> float | None:
        """None while nothing is known. Silent work is believed to go on, through half of what was left."""
        when, left = self._state
        return None if left is None else left - min(self.clock() - when, left / 2)

    def __str__(self) -> str:
        seconds = self.seconds
        if seconds is None:
            return ""
        return "a few seconds left" if seconds < 10 else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """A time in the unit that suits it: 0.7 s, 40 s, 3 min, 2.5 h, 4 days."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"


class Display:
    """Shows progress while its block runs; a `knotflow.progress.Progress`.

    On a terminal there is a bar for the present stage, and a line remains when a stage ends. Elsewhere there
    is a line when a stage begins, one as soon as the time left is known, one for every tenth of the work or
    every minute, and one when the stage ends.

    Args:
        console: Where to show it.
        clock: Tells the time in seconds.
        expected: Seconds expected for a unit of work, if they are known.
    """

    def __init__(
        self, console: Console, *, clock: Clock = time.monotonic, expected: float | None = None
    ) -> None:
        self.console, self.clock, self.expected = console, clock, expected
        self.left = TimeLeft(clock, expected)
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn("{task.percentage:.0f} %"),
            _LeftColumn(self),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=None, visible=False, note="")
        self._doing, self._done, self._total = "", 0.0, 0.0
        self._began = self._said = clock()
        self._tenth, self._estimated = 0, False
        self._names: set[str] = set()
        """What the present piece of work has been called."""

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, doing: str, done: float, total: float, note: str = "") -> None:
        goes_on = total == self._total and done >= self._done
        ended = 0 < self._total <= self._done
        if goes_on and ended and doing == self._doing:
            return
        begins = doing != self._doing or not goes_on
        if not goes_on or ended or not total:
            self.left, self._began, self._names = TimeLeft(self.clock, self.expected), self.clock(), set()
        self._names.add(doing)
        self._doing, self._done, self._total = doing, done, total
        if total:
            self.left.report(done, total)
        self.bar.update(
            self._task, description=doing, completed=done, total=total or None, note=note, visible=True
        )
        if 0 < total <= done:
            self.bar.update(self._task, visible=False)
            self._end(begins, note)
        elif not self.console.is_terminal and (begins or self._is_due()):
            percent = f"{int(100 * done / total)} %" if total and done else ""
            self._say(percent, str(self.left) if total else "", note)

    def _end(self, begins: bool, note: str) -> None:
        """Say how long it took, unless that was only a moment and the stage has been mentioned."""
        seconds = self.clock() - self._began
        if seconds >= 1 or begins or note:
            in_all = " in all" if len(self._names) > 1 else ""
            self._say(f"done in {duration(seconds)}{in_all}", note)

    def _is_due(self) -> bool:
        pause = self.clock() - self._said
        news = self._tenths() > self._tenth or (self.left.seconds is not None and not self._estimated)
        return pause >= LONG_PAUSE or (pause >= SHORT_PAUSE and news)

    def _tenths(self) -> int:
        return int(10 * self._done / self._total) if self._total else 0

    def _say(self, *parts: str) -> None:
        self._said, self._tenth = self.clock(), self._tenths()
        self._estimated = self.left.seconds is not None
        words = ", ".join(part for part in parts if part)
        line = f"{self._doing}: {words}" if words else self._doing
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)


class _LeftColumn(ProgressColumn):
    """The time left, counted down between reports."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self.display = display

    def render(self, task: Task) -> Text:
        return Text(str(self.display.left))


AGAIN: Final = "run the same command again to continue."


@contextmanager
def working(
    output: Output, stopped: str | Callable[[], str] = AGAIN, *, expected: float | None = None
) -> Iterator[Display]:
    """Show progress while a command works. Ctrl-C ends it with a sentence and exit status 130.

    Args:
        output: Where the command prints.
        stopped: What to say after "Stopped;": what became of the work, and how to go on.
        expected: Seconds expected for a unit of work, if they are known.
    """
    try:
        with Display(output.progress, expected=expected) as display:
            yield display
    except KeyboardInterrupt:
        output.tell(f"\nStopped; {stopped if isinstance(stopped, str) else stopped()}")
        raise typer.Exit(130) from None
