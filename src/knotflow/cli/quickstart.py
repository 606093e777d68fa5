"""``knotflow quickstart``: everything at once, on a small molecule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.extras import MODULES, need


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/quickstart"),
    scale: Annotated[
        Literal["full", "smoke"],
        typer.Option(help="full: two minutes on two cores; smoke: less than one, to see that it works."),
    ] = "full",
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
    from knotflow.workflows.quickstart import SCALES, Quickstart, run
    from knotflow.workflows.quickstart_summary import facts, lines

    output = Output(as_json=as_json, quiet=quiet)
    job = Quickstart(out, SCALES[scale](seed))
    # Progress counts the seconds that each step is expected to take.
    with working(output, expected=1.0) as progress:
        made = run(job, progress)
    if not made:
        output.tell(f"everything is done already; remove {out} to start over")
    found = facts(job)
    summary = lines(job, found)
    output.document({"lines": summary, "page": job.page, "samples": job.samples, "found": found})
    for subject, sentence in summary.items():
        output.say(f"{subject + ':':<9}{sentence}")
