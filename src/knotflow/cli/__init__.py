"""The command line ``knotflow``: one file per command."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Annotated

import typer

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
from knotflow.cli.output import print_error
from knotflow.cli.stopping import terminable
from knotflow.errors import TrainingError
from knotflow.files import NO_SPACE
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
    with terminable():
        try:
            _refuse_empty(sys.argv[1:])
            ranks.run(app)
        except (ValueError, OSError, ModuleNotFoundError, TrainingError, WorkerError) as error:
            print_error(_sentence(error))
        except (MemoryError, RuntimeError) as error:
            if not _is_memory(error):
                raise
            print_error(
                "there is not enough memory for this; ask for less at a time, or use a larger machine."
            )
        sys.exit(2)


def _refuse_empty(words: list[str]) -> None:
    """Refuse an option without a value, such as a variable of a script that is not set."""
    for before, word in pairwise(["", *words]):
        option = before if not word else word.removesuffix("=")
        if option.startswith("--") and (not word or word.endswith("=")):
            raise ValueError(f"{option} has an empty value; give one, or leave the option out.")


def _sentence(error: Exception) -> str:
    """What the error says; those of the system and of libraries have no sentence yet."""
    if isinstance(error, OSError) and error.errno in NO_SPACE and error.strerror:
        where = f" for {error.filename}" if error.filename else ""
        return (
            f"there is no space left{where} ({error.strerror}); free some, then run the same command again."
        )
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename} cannot be used ({error.strerror}); check it, or give another name."
    if type(error).__name__ == "ValidationError":  # of pydantic, which is imported only where it is used
        from knotflow.config import first_problem

        return first_problem(error)
    return str(error)


def _is_memory(error: Exception) -> bool:
    """Whether memory ran out, in Python, NumPy or torch."""
    return isinstance(error, MemoryError) or "not enough memory" in str(error)
