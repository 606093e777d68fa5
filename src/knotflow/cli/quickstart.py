"""``knotflow quickstart``: see all of it work on a small molecule."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import ProgressColumn, Task
from rich.text import Text

from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.stages import Bars
from knotflow.extras import MODULES, need

TRUST: Final = 30.0
"""Seconds after which the measured speed counts as much as the expected one."""
FASTEST: Final = 0.5
"""Speed is not believed to be more than twice the expected one: a step may begin half-way, from a file."""
PAUSE: Final = 20.0
"""Seconds from one line to the next, at least, where there is no terminal."""


class ScaleName(StrEnum):
    """How much of everything."""

    full = "full"
    smoke = "smoke"


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/quickstart"),
    scale: Annotated[
        ScaleName,
        typer.Option(help="full: two minutes on two cores; smoke: less than one, only shows that all works."),
    ] = ScaleName.full,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of all random numbers.")] = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """See it work: simulate a small molecule, learn its Boltzmann distribution, sample, judge, report.

    Alanine dipeptide is simulated for a minute or two. A flow learns from the frames and their forces, its
    samples are weighted by the force field and compared with frames it has not seen, molecules move on the
    learned energy, and all of it goes to one page, report.html. Ctrl-C is safe: the same command goes on
    where it was. The folder serves all other commands, as in `knotflow sample runs/quickstart`.

    Example: knotflow quickstart --out runs/first
    """
    need("the quickstart", *MODULES)
    from knotflow.workflows.quickstart import SCALES, Quickstart, run
    from knotflow.workflows.quickstart_summary import facts, lines

    output = Output(as_json=as_json, quiet=quiet)
    job = Quickstart(out, SCALES[scale.value](seed))
    began = time.monotonic()
    try:
        with Shown(output.progress, [step.doing for step in job.steps()], job.scale.seconds) as shown:
            made = run(job, shown)
    except KeyboardInterrupt:
        output.tell(f"\nStopped; the same command goes on where it was, in {out}.")
        raise typer.Exit(130) from None
    if made:
        output.tell(f"done in {(time.monotonic() - began) / 60:.1f} min")
    else:
        output.tell(f"all is done already; remove {out} to begin anew")
    found = facts(job)
    told = lines(job, found)
    output.document({"lines": told, "page": job.page, "samples": job.samples, "found": found})
    for what, sentence in told.items():
        output.say(f"{what + ':':<9}{sentence}")


class TimeLeft:
    """How long work in steps still takes: what they are expected to take, at the speed seen so far.

    With the seconds spent, t, and the seconds expected for what was done in them, w, all that is left takes
    (t + c)/(w + c) times as long as expected, c = `TRUST`.

    Args:
        seconds: Expected for each step.
        now: The clock.
    """

    def __init__(self, seconds: Sequence[float], now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.now = seconds, now
        self.parts = [0.0] * len(seconds)
        """Which part of each step is done."""
        self.current: int | None = None
        """The step that goes on."""
        self._spent, self._worked = 0.0, 0.0
        self._told = now()

    def begin(self, number: int) -> None:
        """A step begins."""
        self.current, self._told = number, self.now()

    def tell(self, part: float) -> None:
        """A part of the current step is done."""
        if self.current is None or part <= self.parts[self.current]:
            return
        now = self.now()
        self._spent += now - self._told
        self._worked += (part - self.parts[self.current]) * self.seconds[self.current]
        self._told, self.parts[self.current] = now, part

    def end(self, number: int) -> None:
        """A step is done, now or earlier."""
        if number == self.current:
            self.tell(1.0)
            self.current = None
        self.parts[number] = 1.0

    @property
    def pace(self) -> float:
        """Seconds that a second of expected work takes."""
        return max(FASTEST, (self._spent + TRUST) / (self._worked + TRUST))

    def left(self) -> float:
        """Seconds. Since the last word work is believed to go on, up to half of what was left of the step."""
        to_come = [(1 - part) * s for part, s in zip(self.parts, self.seconds, strict=True)]
        since = 0.0
        if self.current is not None:
            since = min(self.now() - self._told, 0.5 * self.pace * to_come[self.current])
        return self.pace * sum(to_come) - since

    def __str__(self) -> str:
        seconds = self.left()
        return "less than a minute left" if seconds < 45 else f"about {seconds / 60:.0f} min left in all"


class Shown(Bars):
    """Shows which step it is, and the time left of all of them; lines where there is no terminal.

    Args:
        console: Where.
        doing: What each step does.
        seconds: Expected for each.
    """

    def __init__(self, console: Console, doing: Sequence[str], seconds: Sequence[float]) -> None:
        self.doing, self.clock = doing, TimeLeft(seconds)
        super().__init__(console, _Left(self.clock), transient=True)
        self.task = self.bar.add_task("looking at what is there", total=sum(seconds))
        self.number, self._said = 0, 0.0

    def __call__(self, doing: str, done: float, total: float, note: str = "") -> None:
        """Show how far the steps are: seconds of expected work, of all of them together."""
        number = int(doing.split()[1]) - 1
        before, seconds = sum(self.clock.seconds[:number]), self.clock.seconds[number]
        if done == before or self.clock.current is None:
            for earlier in range(number):
                self.clock.end(earlier)
            self.begin(number)
        self.tell((done - before) / seconds)
        if done >= before + seconds:
            self.end(number)

    def begin(self, number: int) -> None:
        """A step begins."""
        self.number = number
        self.clock.begin(number)
        self.bar.update(self.task, description=self._title())
        self._say()

    def tell(self, part: float) -> None:
        """A part of it is done."""
        self.clock.tell(part)
        self._move()
        if time.monotonic() - self._said >= PAUSE:
            self._say()

    def end(self, number: int) -> None:
        """It is done."""
        self.clock.end(number)
        self._move()

    def _title(self) -> str:
        return f"step {self.number + 1} of {len(self.doing)}: {self.doing[self.number]}"

    def _move(self) -> None:
        done = sum(part * s for part, s in zip(self.clock.parts, self.clock.seconds, strict=True))
        self.bar.update(self.task, completed=done)

    def _say(self) -> None:
        self._said = time.monotonic()
        part = self.clock.parts[self.number]
        percent = f" ({100 * part:.0f} %)" if part else ""
        self.line(f"{self._title()}{percent}, {self.clock}")


class _Left(ProgressColumn):
    """The time left, looked at whenever it is drawn."""

    def __init__(self, clock: TimeLeft) -> None:
        super().__init__()
        self.clock = clock

    def render(self, task: Task) -> Text:
        return Text(str(self.clock))
