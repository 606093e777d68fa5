"""``knotflow reproduce all``: every figure and table of the paper on one page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from knotflow.cli.dynamics import Shown
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.reproduce.common import ScaleName, stoppable
from knotflow.cli.settings import ConfigOption, kept
from knotflow.cli.stages import Stages
from knotflow.extras import MODULES, need


def everything(
    ctx: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Trajectory of alanine dipeptide (.h5), from knotflow simulate or import; at the scale "
            "smoke a tiny one is made.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        ScaleName,
        typer.Option(
            help="smoke: about a minute, only to see that all works; small: hours, with the data as they "
            "are; paper: as long as in the paper, and at least 900,000 training frames."
        ),
    ] = ScaleName.small,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each model of Table 1.")] = 1,
    toy2d: Annotated[
        Path | None,
        typer.Option(
            help="Show this folder of `knotflow reproduce toy2d` as it is, instead of making one.",
            show_default=False,
        ),
    ] = None,
    table1: Annotated[
        Path | None,
        typer.Option(
            help="Show this folder of `knotflow reproduce table1` as it is; --data is the file it was "
            "trained on.",
            show_default=False,
        ),
    ] = None,
    dynamics: Annotated[
        Path | None,
        typer.Option(help="Show this folder of `knotflow reproduce dynamics` as it is.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for page and results; by default runs/all-SCALE.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Every figure and table of the paper on one page, its numbers beside ours, and why they differ.

    Five parts, one after another: rings, Table 1, pictures of its models, dynamics on them, their speed.
    Ctrl-C is safe: run again, it goes on where it stopped, and what is finished is not done again. Folders of
    `knotflow reproduce toy2d`, `table1` and `dynamics` that are there already can be shown instead.

    Data for the scale small come from `knotflow simulate --out data/ala2.h5 --engine torch --ns 100`, for the
    scale paper with --ns 1000; `knotflow import` takes those of others.

    Examples:
        knotflow reproduce all --scale smoke

        knotflow reproduce all --data data/ala2.h5

        knotflow reproduce all --data data/ala2.h5 --table1 runs/table1 --toy2d runs/toy2d-paper
    """
    need("all tables and figures", *MODULES)
    from knotflow.paper import all_page as report
    from knotflow.paper import all_results as experiment

    output = Output(as_json=as_json, quiet=quiet)
    folder = out or Path("runs") / f"all-{scale.value}"
    folders = {"toy2d": toy2d, "table1": table1, "dynamics": dynamics}
    job = experiment.Job(
        folder,
        scale.value,
        data,
        {part: path for part, path in folders.items() if path is not None},
        seeds,
    )

    @contextmanager
    def steps() -> Iterator[Any]:
        with Shown(output.progress) as shown:
            yield shown.titled

    listener = experiment.Listener(output.tell, lambda: Stages(output.progress), steps, training=not quiet)
    with stoppable(output), kept(ctx, folder / "all.toml"):
        found = experiment.run(job, listener)
        output.tell("the page")
        page = report.write_report(found)
    output.document({"page": page, **report.numbers(found)})
    table = Table(*report.CLAIMS, title=f"scale {scale.value}")
    for claim in report.claims(found):
        table.add_row(*claim)
    output.show(table)
    if scale is ScaleName.smoke:
        output.say("At the scale smoke numbers mean nothing: it only shows that everything works.")
    output.say(f"Every figure and table: {page}")
