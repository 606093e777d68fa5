"""The command line ``knotflow``: one file per command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from knotflow import __version__, ranks
from knotflow.cli import (
    check,
    dynamics,
    evaluate,
    exact,
    figure,
    import_data,
    report,
    reproduce,
    reweight,
    run,
    sample,
    simulate,
    train,
)
from knotflow.errors import TrainingError
from knotflow.kernels.library import engine
from knotflow.workers import WorkerError

app = typer.Typer(
    name="knotflow",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run.run)
app.command()(run.quickstart)
app.command()(simulate.simulate)
app.command("import")(import_data.import_data)
app.command()(train.train)
app.command()(sample.sample)
app.command()(exact.exact)
app.command()(evaluate.evaluate)
app.command()(reweight.reweight)
app.command()(dynamics.dynamics)
app.command()(report.report)
app.command()(check.check)
app.add_typer(figure.app, name="figure")
app.add_typer(reproduce.app, name="reproduce")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"knotflow {__version__}\nengine: {engine()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print version and spline engine."
        ),
    ] = False,
) -> None:
    """Smooth normalizing flows for physics."""


def main() -> None:
    """Run the command line; user errors end in one sentence and exit status 2."""
    try:
        ranks.run(app)
    except (ValueError, OSError, ModuleNotFoundError, TrainingError, WorkerError) as error:
        message = f"[bold red]Error:[/] {escape(str(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)
