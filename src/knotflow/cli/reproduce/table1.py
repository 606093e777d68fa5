"""``knotflow reproduce table1``: the paper's Table 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from knotflow.cli.options import AlanineOption, RowName
from knotflow.cli.output import JsonOption, Output, QuietOption, align_right
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, kept
from knotflow.extras import MODULES, need


def table1(
    ctx: typer.Context,
    data: AlanineOption = None,
    scale: Annotated[
        Literal["small", "paper"],
        typer.Option(help="small: any data; paper: at least 900,000 training frames."),
    ] = "small",
    rows: Annotated[
        list[RowName] | None, typer.Option(help="Only this model; may be repeated. fm: trained with forces.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Trainings per model: seeds 0, 1, ...")] = 1,
    epochs: Annotated[
        float | None, typer.Option(min=0.01, help="Passes through the data; by default 10, as in the paper.")
    ] = None,
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            help="Train as published instead of with our recipe: bins as narrow as 1e-6, no start from "
            "marginals, no clipping, no averaging, no warm-up.",
        ),
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the table.")] = Path("runs/table1"),
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train the paper's flows on alanine dipeptide and compare them with its Table 1.

    Each model is evaluated on frames that were held out. A stopped run is continued by the same command. The
    table shows all models in the folder that are finished. A training that becomes unstable is marked as
    diverged; to repeat it, remove its folder.

    Examples:
        knotflow reproduce table1 --data data/ala2.h5

        knotflow reproduce table1 --data data/ala2.h5 --rows bspline+fm --seeds 10

        knotflow reproduce table1 --data data/ala2.h5 --rows bspline+fm --seeds 10 --published
    """
    if data is None:
        raise ValueError(
            "Table 1 needs a trajectory of alanine dipeptide: give --data FILE.h5, made with `knotflow "
            "simulate --out FILE.h5` or with `knotflow import`."
        )
    need("Table 1", *MODULES)
    from knotflow.files import read_json
    from knotflow.paper import table1 as experiment
    from knotflow.paper import table1_report as report

    output = Output(as_json=as_json, quiet=quiet)
    work = experiment.SCALES[scale]
    if epochs is not None:
        work = replace(work, epochs=epochs)
    with working(output) as progress, kept(ctx, out / "table1.toml"):
        results = experiment.run(
            data,
            out,
            work,
            experiment.tasks([row.value for row in rows or RowName], seeds, published=published),
            say=output.tell,
            progress=progress,
        )
    written = report.write_report(out, results, {"scale": scale, "epochs": work.epochs, "data": data.name})
    table = Table(
        *(report.COLUMNS[i] for i in report.BRIEF), title=f"Table 1, {work.epochs:g} epochs of {data.name}"
    )
    align_right(table, slice(2, None))
    for line in report.table(results):
        cells = line.cells()
        table.add_row(*(cells[i] for i in report.BRIEF), end_section=line.trained == "paper")
    output.document(read_json(out / "table1.json"))
    output.show(table)
    for note in report.NOTES:
        output.say(note)
    output.say(f"Results: {', '.join(map(str, written))}")
