"""``knotflow reproduce dynamics``: figure 4 of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from knotflow.cli.options import AlanineOption, CompileOption, RowName, Scale, results_option
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, kept
from knotflow.extras import MODULES, need


def dynamics(
    ctx: typer.Context,
    data: AlanineOption = None,
    models: Annotated[
        Path | None, typer.Option(help="Folder of `knotflow reproduce table1`; by default runs/table1.")
    ] = None,
    best: Annotated[
        Path | None,
        typer.Option(help="An additional model: a .safetensors file or the folder of a training run."),
    ] = None,
    rows: Annotated[
        list[RowName] | None,
        typer.Option(
            help="Only this model of the table; may be repeated. By default those of figure 4: rq, "
            "smooth+fm, bspline+fm."
        ),
    ] = None,
    scale: Annotated[
        Scale,
        typer.Option(
            help="smoke: a minute, to see that it works, with models of its own; small: the paper's "
            "protocol; paper: the same, with models trained on 900,000 frames."
        ),
    ] = "small",
    compile: CompileOption = "auto",
    out: Annotated[Path | None, results_option("dynamics")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run dynamics on flows of Table 1 and on the force field: figure 4, and how well energy is conserved.

    In each run, ten molecules start from the same frames of --data, the trajectory the models were trained
    on. They move first with a thermostat, then without. A stopped run is continued by the same command.

    Examples:
        knotflow reproduce dynamics --scale smoke

        knotflow reproduce dynamics --data data/ala2.h5 --models runs/table1 --best runs/ala2
    """
    need("figure 4", *MODULES)
    from knotflow.files import read_json
    from knotflow.paper import figure4 as experiment
    from knotflow.workflows.models import model_file

    output, work = Output(as_json=as_json, quiet=quiet), experiment.SCALES[scale]
    folder = out or Path("runs") / f"dynamics-{scale}"
    wanted = [row.value for row in rows] if rows else list(experiment.FIGURE)
    with working(output) as progress, kept(ctx, folder / "dynamics.toml"):
        if models is None and work.training is not None:
            own, models = experiment.make_models(folder, wanted, work, say=output.tell)
            data = data or own
        todo = experiment.entries(
            models or Path("runs/table1"), wanted, None if best is None else model_file(best)
        )
        if data is None:
            raise ValueError(
                "dynamics start from frames of alanine dipeptide: give --data FILE.h5, the file that the "
                "models were trained on."
            )
        results = experiment.run(
            folder, work, todo, data, compile=compile, say=output.tell, progress=progress
        )
    page = experiment.write_report(folder, results, scale)
    table = Table(*experiment.COLUMNS, title=f"dynamics, scale {scale}")
    for cells in experiment.rows(results):
        table.add_row(*cells)
    output.document(read_json(folder / "results.json"))
    output.show(table)
    for note in experiment.NOTES:
        output.say(note)
    output.say(f"Figure, table and explanations: {page}")
