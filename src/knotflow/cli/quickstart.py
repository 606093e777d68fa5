"""``knotflow quickstart``: see all of it work on a small molecule."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.extras import MODULES, need
from knotflow.progress import Progress


class ScaleName(StrEnum):
    """How much of everything."""

    full = "full"
    smoke = "smoke"


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/quickstart"),
    scale: Annotated[
        ScaleName,
        typer.Option(help="full: two minutes on two cores; smoke: less than one, to see that it works."),
    ] = ScaleName.full,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of all random numbers.")] = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """See it work: simulate a small molecule, learn its Boltzmann distribution, sample, evaluate, report.

    Alanine dipeptide is simulated for a minute or two, and a flow learns from the frames and their forces.
    Its samples are weighted by the force field and compared with frames it has not seen; molecules move on
    the learned energy; and everything is shown on one page, report.html. You can stop with Ctrl-C; the same
    command continues. All other commands accept the folder, as in `knotflow sample runs/quickstart`.

    Example: knotflow quickstart --out runs/first
    """
    need("the quickstart", *MODULES)
    from knotflow.workflows.quickstart import STEPS, run
    from knotflow.workflows.quickstart_job import SCALES, Quickstart
    from knotflow.workflows.quickstart_lines import facts, lines

    output = Output(as_json=as_json, quiet=quiet)
    job = Quickstart(out, SCALES[scale.value](seed))
    # Steps count in the seconds that they are expected to take.
    with working(output, expected=1.0) as progress:
        made = run(job, _Steps(progress, [step.doing for step in STEPS], job.scale.seconds))
    if not made:
        output.tell(f"everything is done already; remove {out} to start again")
    found = facts(job)
    told = lines(job, found)
    output.document({"lines": told, "page": job.page, "samples": job.samples, "found": found})
    for what, sentence in told.items():
        output.say(f"{what + ':':<9}{sentence}")


class _Steps:
    """Turns steps into one piece of work, for `knotflow.workflows.quickstart.run`.

    Args:
        progress: Called with the expected seconds of what is done, and of everything.
        doing: What each step does.
        seconds: Expected for each step.
    """

    def __init__(self, progress: Progress, doing: Sequence[str], seconds: Sequence[float]) -> None:
        self.progress, self.doing, self.seconds = progress, doing, seconds
        self.number = -1

    def begin(self, number: int) -> None:
        """A step begins."""
        self.number = number
        self.tell(0.0)

    def tell(self, part: float) -> None:
        """A part of it is done."""
        done = sum(self.seconds[: self.number]) + part * self.seconds[self.number]
        title = f"step {self.number + 1} of {len(self.doing)}: {self.doing[self.number]}"
        self.progress(title, done, sum(self.seconds))

    def end(self, number: int) -> None:
        """It is done, now or earlier."""
        if number == self.number:
            self.tell(1.0)
