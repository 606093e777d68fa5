"""Progress of commands: a bar with the time left on a terminal, lines in a file or pipe; and Ctrl-C."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from knotflow.cli.output import Output, print_line
from knotflow.cli.stopping import exit_status

Clock = Callable[[], float]

WINDOW: Final = 600.0
"""Seconds; the pace of earlier work does not count."""
TRUST: Final = 30.0
"""Seconds after which the measured pace has as much weight as the expected one."""
FASTEST: Final = 0.5
"""Work that seems more than twice as fast as expected may have been read from a file; this is the limit."""
SHORT_PAUSE: Final = 10.0
"""Least number of seconds between two lines, unless a stage begins or ends."""
LONG_PAUSE: Final = 60.0
"""Largest number of seconds between two lines."""


class TimeLeft:
    r"""An estimate of the time that a piece of work still takes, from its recent pace.

    The pace is measured over the second half of the work since the first report, but at most over the last
    ten minutes. So a slow start is soon forgotten, and the work of an earlier process does not count. With an
    expected pace $p$, in seconds per unit of work, $w$ units in $t$ seconds give the pace $(t + c)/(w + c/p)$
    with $c$ = `TRUST`.

    Args:
        clock: Returns the time in seconds.
        expected: The expected pace; None if unknown.
        deadline: When the work will be over, because it was planned so, however slow its beginning is.
    """

    def __init__(
        self,
        clock: Clock = time.monotonic,
        expected: float | None = None,
        deadline: float | None = None,
    ) -> None:
        self.clock, self.expected, self.deadline = clock, expected, deadline
        self._reports: deque[tuple[float, float]] = deque()
        self._first = 0.0
        self._state: tuple[float, float | None] = (clock(), None)
        """Time of the last report, and the seconds left at that time."""

    def report(self, done: float, total: float) -> None:
        """Note how much is done."""
        now, reports = self.clock(), self._reports
        if not reports or done < reports[-1][1]:
            reports.clear()
            self._first = done
        reports.append((now, done))
        half = (self._first + done) / 2
        while len(reports) > 2 and (reports[1][1] <= half or reports[1][0] <= now - WINDOW):
            reports.popleft()
        seconds, worked, pace = now - reports[0][0], done - reports[0][1], None
        if self.expected is not None:
            pace = (seconds + TRUST) / (worked + TRUST / self.expected)
            pace = max(FASTEST * self.expected, pace)
        elif worked > 0:
            pace = seconds / worked
        self._state = now, None if pace is None else pace * (total - done)

    @property
    def seconds(self) -> float | None:
        """Seconds left; None if unknown. Between reports they count down, to half of the last estimate."""
        when, left = self._state
        if left is None:
            return None
        left -= min(self.clock() - when, left / 2)
        planned = 0.0 if self.deadline is None else self.deadline - self.clock()
        return min(left, planned) if planned > 0 else left

    def __str__(self) -> str:
        if (seconds := self.seconds) is None:
            return ""
        return "a few seconds left" if seconds < 10 else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """A time in a suitable unit: 0.7 s, 40 s, 3 min, 2.5 h, 4 days."""
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
    """Shows progress while its ``with`` block runs; a `knotflow.progress.Progress`.

    A terminal shows a bar for the current stage, and keeps one line for each stage that has ended. Elsewhere
    a line is printed when a stage begins, as soon as the time left is known, for every tenth of the work or
    every minute, and when the stage ends. If the work itself says nothing for a minute, a thread prints that
    it goes on.

    Args:
        console: The console to print to.
        clock: Returns the time in seconds.
        expected: Expected seconds per unit of work; None if unknown.
        limit: Seconds that the work will take at most, if it is planned so.
    """

    def __init__(
        self,
        console: Console,
        *,
        clock: Clock = time.monotonic,
        expected: float | None = None,
        limit: float | None = None,
    ) -> None:
        self.console, self.clock, self.expected = console, clock, expected
        self.deadline = None if limit is None else clock() + limit
        self.left = TimeLeft(clock, expected, self.deadline)
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn("{task.percentage:.0f} %"),
            TextColumn("{task.fields[left]}"),  # formatted at each refresh, so it counts down
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=None, visible=False, note="", left="")
        self._doing, self._done, self._total = "", 0.0, 0.0
        self._began = self._said = clock()
        self._tenth, self._estimated = 0, False
        self._names: set[str] = set()
        """Names of the stages in the current piece of work."""
        self._lock, self._over = Lock(), Event()
        self._watcher = Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self.bar.start()
        if not self.console.is_terminal:
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self.bar.stop()

    def __call__(self, doing: str, done: float, total: float, note: str = "") -> None:
        with self._lock:
            self._report(doing, done, total, note)

    def _watch(self) -> None:
        while not self._over.wait(SHORT_PAUSE):
            self.go_on()

    def go_on(self) -> None:
        """Print that the work goes on, if nothing was printed for `LONG_PAUSE`."""
        with self._lock:
            if self._over.is_set() or not self._doing or self.clock() - self._said < LONG_PAUSE:
                return
            if 0 < self._total <= self._done:
                self._say("done, the work goes on")
            else:
                percent = f"{int(100 * self._done / self._total)} %" if self._total and self._done else ""
                left = str(self.left) if self._total else ""
                self._say(percent, left, f"{duration(self.clock() - self._began)} so far")

    def _report(self, doing: str, done: float, total: float, note: str) -> None:
        goes_on = total == self._total and done >= self._done
        ended = 0 < self._total <= self._done
        if goes_on and ended and doing == self._doing:
            return
        begins = doing != self._doing or not goes_on
        if not goes_on or ended or not total:
            self.left = TimeLeft(self.clock, self.expected, self.deadline)
            self._began, self._names = self.clock(), set()
        self._names.add(doing)
        self._doing, self._done, self._total = doing, done, total
        if total:
            self.left.report(done, total)
        is_done = 0 < total <= done
        self.bar.update(
            self._task, description=doing, completed=done, total=total or None, visible=not is_done
        )
        self.bar.update(self._task, note=note, left=self.left)
        if is_done:
            self._end(begins, note)
        elif not self.console.is_terminal and (begins or self._is_due()):
            percent = f"{int(100 * done / total)} %" if total and done else ""
            self._say(percent, str(self.left) if total else "", note)

    def _end(self, begins: bool, note: str) -> None:
        """Print how long it took, unless that was only a moment and the stage has been printed already."""
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
        print_line(self.console, line)


AGAIN: Final = "run the same command again to continue."


@contextmanager
def working(
    output: Output,
    stopped: str | Callable[[], str] = AGAIN,
    *,
    expected: float | None = None,
    limit: float | None = None,
) -> Iterator[Display]:
    """Show progress while a command works. Ctrl-C and SIGTERM end it with a sentence, statuses 130 and 143.

    Args:
        output: Where the command prints.
        stopped: The sentence after "Stopped;": what is left of the work, and how to continue.
        expected: Expected seconds per unit of work; None if unknown.
        limit: Seconds that the work will take at most, if it is planned so.
    """
    try:
        with Display(output.progress, expected=expected, limit=limit) as display:
            yield display
    except KeyboardInterrupt as stop:
        output.tell(f"\nStopped; {stopped if isinstance(stopped, str) else stopped()}")
        raise typer.Exit(exit_status(stop)) from None
