"""``knotflow reproduce all``: every figure and table of the paper on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from knotflow.cli.options import AlanineOption, Scale, results_option
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, kept
from knotflow.extras import MODULES, need


def all_results(
    ctx: typer.Context,
    data: AlanineOption = None,
    scale: Annotated[
        Scale,
        typer.Option(
            help="smoke: about a minute, to see that it works, with data of its own; small: hours; paper: as "
            "long as in the paper, with at least 900,000 training frames."
        ),
    ] = "small",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Trainings per model of Table 1.")] = 1,
    toy2d: Annotated[
        Path | None,
        typer.Option(help="Show this folder of `knotflow reproduce toy2d` instead of making a new one."),
    ] = None,
    table1: Annotated[
        Path | None,
        typer.Option(
            help="Show this folder of `knotflow reproduce table1`; --data must be its training data."
        ),
    ] = None,
    dynamics: Annotated[
        Path | None, typer.Option(help="Show this folder of `knotflow reproduce dynamics`.")
    ] = None,
    out: Annotated[Path | None, results_option("all")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Put every figure and table of the paper on one page, with its numbers and ours, and why they differ.

    There are five parts: the rings, Table 1, pictures of its models, dynamics on them, and their speed. You
    can stop with Ctrl-C; the same command continues and repeats nothing. Existing folders of `knotflow
    reproduce toy2d`, `table1` and `dynamics` can be shown instead of new ones.

    To make data for --scale small, run `knotflow simulate --out data/ala2.h5 --engine torch --ns 100`; for
    --scale paper, use --ns 1000. `knotflow import` reads trajectories of other programs.

    Examples:
        knotflow reproduce all --scale smoke

        knotflow reproduce all --data data/ala2.h5

        knotflow reproduce all --data data/ala2.h5 --table1 runs/table1 --toy2d runs/toy2d-paper
    """
    need("all tables and figures", *MODULES)
    from knotflow.paper import all_page as report
    from knotflow.paper import all_results as experiment

    output = Output(as_json=as_json, quiet=quiet)
    folder = out or Path("runs") / f"all-{scale}"
    folders = {"toy2d": toy2d, "table1": table1, "dynamics": dynamics}
    given = {part: path for part, path in folders.items() if path is not None}
    job = experiment.Job(folder, scale, data, given, seeds)
    with working(output) as progress, kept(ctx, folder / "all.toml"):
        found = experiment.run(job, say=output.tell, progress=progress)
        output.tell("writing the page")
        page = report.write_report(found)
    output.document({"page": page, **report.numbers(found)})
    table = Table(*report.CLAIMS, title=f"scale {scale}")
    for claim in report.claims(found):
        table.add_row(*claim)
    output.show(table)
    if scale == "smoke":
        output.say("At --scale smoke the numbers mean nothing; it only shows that everything works.")
    output.say(f"Every figure and table: {page}")
