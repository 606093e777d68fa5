"""``knotflow reproduce toy2d``: rings in two dimensions, figures 1, 2 and 5 of the paper."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from knotflow.cli.options import Scale, SeedOption, results_option
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, kept
from knotflow.extras import need

# Typer reads lists of enumerations, but not of literals.
ModelName = StrEnum("ModelName", ["bspline", "rq", "smooth"])
DomainName = StrEnum("DomainName", ["interval", "circle"])


def toy2d(
    ctx: typer.Context,
    scale: Annotated[
        Scale,
        typer.Option(
            help="smoke: seconds, to see that it works; small: minutes; paper: 8,000 steps per training."
        ),
    ] = "small",
    preset: Annotated[
        Literal["paper", "best"],
        typer.Option(help="paper: four couplings of each transform; best: our own flow, as another row."),
    ] = "paper",
    model: Annotated[
        list[ModelName] | None, typer.Option(help="Only this transform; may be repeated.")
    ] = None,
    domain: Annotated[
        list[DomainName] | None, typer.Option(help="Only this domain; may be repeated.")
    ] = None,
    out: Annotated[Path | None, results_option("toy2d")] = None,
    seed: SeedOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train B-spline, RQ-spline and smooth flows on rings: figures 1, 2 and 5, and exact errors.

    A stopped run is continued by the same command. Table and page show everything in the folder that is
    finished.

    Examples:
        knotflow reproduce toy2d --scale smoke

        knotflow reproduce toy2d --scale paper --model bspline --domain circle

        knotflow reproduce toy2d --scale paper --preset best
    """
    need("the rings", "plot", "train")
    from knotflow.paper import toy2d as experiment

    if preset == "best" and model:
        raise ValueError("--preset best is a flow of its own; leave --model out, or use --preset paper.")
    folder = out or Path("runs") / f"toy2d-{scale}"
    models = ["best"] if preset == "best" else [name.value for name in model or ModelName]
    output = Output(as_json=as_json, quiet=quiet)
    with working(output) as progress, kept(ctx, folder / "toy2d.toml"):
        for where in domain or DomainName:
            for which in models:
                experiment.run_scenario(
                    which,
                    where.value,
                    experiment.SCALES[scale],
                    folder / f"{which}-{where.value}",
                    seed=seed,
                    say=output.tell,
                    progress=progress,
                )
    page = experiment.write_report(folder, scale)
    table = Table(*(experiment.COLUMNS[i] for i in experiment.BRIEF), title=f"rings, scale {scale}")
    results = experiment.read_results(folder)
    for row in experiment.rows(results):
        table.add_row(*(str(row[i]) for i in experiment.BRIEF))
    output.document({"page": page, "results": results})
    output.show(table)
    output.say(f"Figures, table and explanations: {page}")
