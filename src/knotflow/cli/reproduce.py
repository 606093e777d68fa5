"""``knotflow reproduce``: the figures and tables of the paper."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from knotflow.cli import exact
from knotflow.cli.dynamics import CompileName, Shown
from knotflow.cli.model import TransformName, model_file
from knotflow.cli.settings import ConfigOption, kept

app = typer.Typer(help="Reproduce figures and tables of the paper.", no_args_is_help=True)
app.command("exact")(exact.reproduce)


class ScaleName(StrEnum):
    """How much work to do."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


class ShortScale(StrEnum):
    """How much work to do, where the paper has no counterpart."""

    smoke = "smoke"
    small = "small"


class DataScale(StrEnum):
    """How much work to do, where the data are given."""

    small = "small"
    paper = "paper"


class RowName(StrEnum):
    """Models of Table 1; fm: forces are matched."""

    rq = "rq"
    smooth = "smooth"
    smooth_fm = "smooth+fm"
    bspline = "bspline"
    bspline_fm = "bspline+fm"


class DomainName(StrEnum):
    """Domains of the toy example."""

    interval = "interval"
    circle = "circle"


class Preset(StrEnum):
    """Which flows."""

    paper = "paper"
    best = "best"


@app.callback()
def _group() -> None:
    """Reproduce figures and tables of the paper."""


@app.command()
def toy2d(
    scale: Annotated[
        ScaleName,
        typer.Option(
            help="smoke: seconds, only to see that all works; small: minutes; paper: 8,000 steps each."
        ),
    ] = ScaleName.small,
    preset: Annotated[
        Preset,
        typer.Option(help="paper: four couplings for each transform; best: our own flow, as one more row."),
    ] = Preset.paper,
    model: Annotated[
        list[TransformName] | None, typer.Option(help="Only this transform; may be repeated.")
    ] = None,
    domain: Annotated[
        list[DomainName] | None, typer.Option(help="Only this domain; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default runs/toy2d-SCALE.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data, weights and training.")] = 0,
) -> None:
    """Train B-spline, RQ-spline and smooth flows on rings: figures 1, 2 and 5, and exact errors.

    Run again, it goes on where it stopped; table and page show everything finished in the folder.

    Examples:
        knotflow reproduce toy2d --scale smoke

        knotflow reproduce toy2d --scale paper --model bspline --domain circle

        knotflow reproduce toy2d --scale paper --preset best
    """
    from knotflow.experiments import toy2d as experiment
    from knotflow.experiments import toy2d_report as report

    if preset is Preset.best and model:
        raise ValueError("--preset best is a flow of its own; leave --model out, or use --preset paper.")
    report.check_tools()
    folder = out or Path("runs") / f"toy2d-{scale.value}"
    models = ["best"] if preset is Preset.best else [m.value for m in model or list(TransformName)]
    console = Console()
    for where in domain or list(DomainName):
        for which in models:
            experiment.run_scenario(
                which,
                where.value,
                experiment.SCALES[scale.value],
                folder / f"{which}-{where.value}",
                seed=seed,
                say=lambda text: console.print(text, highlight=False),
            )
    page = report.write_report(folder, scale.value)
    table = Table(*(report.COLUMNS[i] for i in report.BRIEF), title=f"rings, scale {scale.value}")
    for row in report.rows(experiment.read_results(folder)):
        table.add_row(*(str(row[i]) for i in report.BRIEF))
    console.print(table)
    console.print(f"Figures, table and explanations: {page}", highlight=False, soft_wrap=True)


@app.command()
def mixed5d(
    ctx: typer.Context,
    scale: Annotated[
        ShortScale, typer.Option(help="smoke: seconds, only to see that all works; small: minutes.")
    ] = ShortScale.small,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default runs/mixed5d-SCALE.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data, weights and training.")] = 0,
    config: ConfigOption = None,
) -> None:
    """Train the default flow on two circles, two intervals and a line, with likelihood and forces.

    The density is known exactly (knotflow.physics.Mixed), so the errors are those of the flow alone.

    Example: knotflow reproduce mixed5d --scale smoke
    """
    from knotflow.experiments import mixed5d as experiment

    folder = out or Path("runs") / f"mixed5d-{scale.value}"
    with kept(ctx, folder / "mixed5d.toml"):
        result = experiment.run(folder, scale.value, seed=seed)
    table = Table("measure", "value", title=f"five coordinates of mixed kinds, scale {scale.value}")
    table.add_row("KL (nats)", f"{result.kl:.4f} ± {result.kl_error:.4f}")
    table.add_row("score error, relative", f"{100 * result.score_error:.1f} %")
    table.add_row("  for each coordinate", ", ".join(f"{100 * e:.1f}" for e in result.score_errors))
    table.add_row("effective sample size", f"{100 * result.ess:.1f} %")
    table.add_row("training", f"{result.training_seconds:.0f} s")
    console = Console()
    console.print(table)
    console.print(f"Model and numbers: {folder}", highlight=False, soft_wrap=True)


@app.command()
def engines(
    ctx: typer.Context,
    scale: Annotated[
        ShortScale,
        typer.Option(help="smoke: a minute or two, only to see that all works; small: most of an hour."),
    ] = ShortScale.small,
    reference: Annotated[
        Path | None,
        typer.Option(help="Another trajectory of ala2 at 300 K to compare with, from knotflow import."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default runs/engines-SCALE.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Sample alanine dipeptide with OpenMM, with torch and by tempering, and compare the distributions.

    Run again, it goes on where it stopped.

    Example: knotflow reproduce engines --scale smoke
    """
    from knotflow.cli.simulate import Shown
    from knotflow.experiments import engines as experiment

    folder = out or Path("runs") / f"engines-{scale.value}"
    console = Console()
    with kept(ctx, folder / "engines.toml"), Shown(console) as shown:
        runs, pairs = experiment.run(folder, scale.value, reference=reference, progress=shown.titled)
    table = Table("run", "frames", "replicas", "energy, kT", "temperature, K", "phi > 0")
    for run in runs:
        table.add_row(
            run.name,
            f"{run.n_frames:,}",
            str(run.n_replicas),
            str(run.energy),
            str(run.temperature or ""),
            str(run.left),
        )
        if run.exchange_rates:
            rates = ", ".join(f"{100 * rate:.0f}" for rate in run.exchange_rates)
            table.caption = f"tempering: exchange rates {rates} %, {run.round_trips:,} round trips"
    console.print(table)
    columns = ("pair", "energy", "phi > 0", "(phi, psi)", "phi < 0: energy", "(phi, psi)", "bonds")
    deviations = Table(
        *columns, title="deviations in error bars; of several observables, their root mean square"
    )
    for pair in pairs:
        z = pair.agreement
        values = (z.energy, z.left, z.histogram, z.right_energy, z.right_histogram, z.bonds)
        deviations.add_row(" - ".join(pair.names), *(f"{value:.2f}" for value in values))
    console.print(deviations)
    console.print(f"Trajectories and numbers: {folder}", highlight=False, soft_wrap=True)


@app.command()
def table1(
    ctx: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(help="Trajectory of alanine dipeptide (.h5), from knotflow simulate or import."),
    ] = None,
    scale: Annotated[
        DataScale,
        typer.Option(help="small: the data as they are; paper: at least 900,000 training frames."),
    ] = DataScale.small,
    rows: Annotated[
        list[RowName] | None, typer.Option(help="Only this model; may be repeated. fm: forces are matched.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each model: seeds 0, 1, ...")] = 1,
    epochs: Annotated[
        float | None, typer.Option(min=0.01, help="Passes through the data; by default 10, as in the paper.")
    ] = None,
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            help="As published, not by our recipe: floors of 1e-6, no start from marginals, no clipping, no "
            "average, no warm-up.",
        ),
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the table.")] = Path("runs/table1"),
    config: ConfigOption = None,
) -> None:
    """Train the paper's flows of alanine dipeptide and put them beside its Table 1.

    Each model is judged on frames that were held back. Run again, it goes on where it stopped; the table
    shows everything finished in the folder. A training that cannot be kept stable is noted as diverged; to
    try it again, remove its folder.

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
    from knotflow.experiments import table1 as experiment
    from knotflow.experiments import table1_report as report

    if seeds > 1:
        report.check_tools()
    console = Console()
    work = experiment.SCALES[scale.value]
    if epochs is not None:
        work = replace(work, epochs=epochs)
    with kept(ctx, out / "table1.toml"):
        results = experiment.run(
            data,
            out,
            work,
            experiment.tasks([row.value for row in rows or list(RowName)], seeds, published=published),
            say=lambda text: console.print(text, highlight=False, soft_wrap=True, markup=False),
        )
    written = report.write_report(
        out, results, {"scale": scale.value, "epochs": work.epochs, "data": data.name}
    )
    table = Table(
        *(report.COLUMNS[i] for i in report.BRIEF), title=f"Table 1, {work.epochs:g} epochs of {data.name}"
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for line in report.table(results):
        cells = line.cells()
        table.add_row(*(cells[i] for i in report.BRIEF), end_section=line.trained == "paper")
    console.print(table)
    for note in report.NOTES:
        console.print(note, highlight=False, soft_wrap=True, markup=False)
    console.print(f"All of it: {', '.join(map(str, written))}", highlight=False, soft_wrap=True, markup=False)


@app.command()
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
        CompileName, typer.Option(help="What to compile; auto: what pays for so many steps.")
    ] = CompileName.auto,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default runs/dynamics-SCALE.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Move molecules on flows of Table 1 and on the force field: figure 4, and how well energy is conserved.

    Ten molecules in each, from the same frames, with a thermostat and then without. Run again, it goes on
    where it stopped.

    Examples:
        knotflow reproduce dynamics --scale smoke

        knotflow reproduce dynamics --data data/ala2.h5 --models runs/table1 --best runs/ala2
    """
    from knotflow.experiments import dynamics as experiment
    from knotflow.experiments import dynamics_report as report

    report.check_tools()
    console, work = Console(), experiment.SCALES[scale.value]
    folder = out or Path("runs") / f"dynamics-{scale.value}"
    wanted = [row.value for row in rows] if rows else list(experiment.FIGURE)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    try:
        with kept(ctx, folder / "dynamics.toml"):
            if models is None and work.training is not None:
                own, models = experiment.make_models(folder, wanted, work, say=say)
                data = data or own
            todo = experiment.entries(
                models or Path("runs/table1"), wanted, None if best is None else model_file(best)
            )
            if data is None:
                raise ValueError(
                    "dynamics start from frames of alanine dipeptide: give --data FILE.h5, the one that the "
                    "models were trained on."
                )
            with Shown(Console(stderr=True)) as shown:
                results = experiment.run(
                    folder, work, todo, data, compile=compile.value, say=say, progress=shown.titled
                )
    except KeyboardInterrupt:
        say("\nStopped; the same command goes on.")
        raise typer.Exit(130) from None
    page = report.write_report(folder, results, scale.value)
    table = Table(*report.COLUMNS, title=f"dynamics, scale {scale.value}")
    for cells in report.rows(results):
        table.add_row(*cells)
    console.print(table)
    for note in report.NOTES:
        say(note)
    say(f"Figure, table and explanations: {page}")
