"""``knotflow reproduce dynamics``: figure 4."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from knotflow.cli.dynamics import CompileName, Shown
from knotflow.cli.model import model_file
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.reproduce.common import RowName, ScaleName, stoppable
from knotflow.cli.settings import ConfigOption, kept
from knotflow.extras import MODULES, need


def dynamics(
    ctx: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(help="Trajectory of alanine dipeptide (.h5) to start from: that of the trainings."),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(
            help="Folder of `knotflow reproduce table1`; by default runs/table1.", show_default=False
        ),
    ] = None,
    best: Annotated[
        Path | None,
        typer.Option(help="One more model: a file (.safetensors) or the folder of a training run."),
    ] = None,
    rows: Annotated[
        list[RowName] | None,
        typer.Option(
            help="Models of the table, may be repeated; by default those of figure 4: rq, smooth+fm, "
            "bspline+fm.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        ScaleName,
        typer.Option(
            help="smoke: a minute, only to see that all works, models included; small: the paper's protocol; "
            "paper: the same, of models trained on 900,000 frames."
        ),
    ] = ScaleName.small,
    compile: Annotated[
        CompileName, typer.Option(help="Compile the force field; auto: if that pays for so many steps.")
    ] = CompileName.auto,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default runs/dynamics-SCALE.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Move molecules on flows of Table 1 and on the force field: figure 4, and how well energy is conserved.

    Ten molecules in each, from the same frames, with a thermostat and then without. Run again, it goes on
    where it stopped.

    Examples:
        knotflow reproduce dynamics --scale smoke

        knotflow reproduce dynamics --data data/ala2.h5 --models runs/table1 --best runs/ala2
    """
    need("figure 4", *MODULES)
    from knotflow.files import read_json
    from knotflow.paper import figure4 as experiment

    output, work = Output(as_json=as_json, quiet=quiet), experiment.SCALES[scale.value]
    folder = out or Path("runs") / f"dynamics-{scale.value}"
    wanted = [row.value for row in rows] if rows else list(experiment.FIGURE)
    with stoppable(output), kept(ctx, folder / "dynamics.toml"):
        if models is None and work.training is not None:
            own, models = experiment.make_models(folder, wanted, work, say=output.tell)
            data = data or own
        todo = experiment.entries(
            models or Path("runs/table1"), wanted, None if best is None else model_file(best)
        )
        if data is None:
            raise ValueError(
                "dynamics start from frames of alanine dipeptide: give --data FILE.h5, the one that the "
                "models were trained on."
            )
        with Shown(output.progress) as shown:
            results = experiment.run(
                folder, work, todo, data, compile=compile.value, say=output.tell, progress=shown.titled
            )
    page = experiment.write_report(folder, results, scale.value)
    table = Table(*experiment.COLUMNS, title=f"dynamics, scale {scale.value}")
    for cells in experiment.rows(results):
        table.add_row(*cells)
    output.document(read_json(folder / "results.json"))
    output.show(table)
    for note in experiment.NOTES:
        output.say(note)
    output.say(f"Figure, table and explanations: {page}")
