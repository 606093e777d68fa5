"""Output of commands: results on standard output as text or JSON, progress on standard error."""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from knotflow.json_values import plain

PANEL: Final = "Output"

JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        rich_help_panel=PANEL,
        help="Print the results as one JSON document for scripts; progress goes to standard error.",
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        rich_help_panel=PANEL,
        help="Print only warnings, errors and, with --json, the document.",
    ),
]


class Output:
    """The output of a command.

    Args:
        as_json: Print one JSON document to standard output and nothing else.
        quiet: Print neither progress nor text.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.results = plain_console(quiet=as_json or quiet)
        """Tables and sentences, to standard output."""
        # A console that is no terminal shows no bars.
        self.progress = plain_console(stderr=True, quiet=quiet, force_terminal=False if quiet else None)
        """Bars, and lines where there is no terminal, to standard error."""

    def show(self, table: RenderableType) -> None:
        """Print a table among the results."""
        self.results.print(table)

    def say(self, sentence: str) -> None:
        """Print a sentence among the results."""
        print_line(self.results, sentence)

    def tell(self, sentence: str) -> None:
        """Print a sentence about the work in progress."""
        print_line(self.progress, sentence)

    def document(self, results: Mapping[str, Any]) -> None:
        """Print results as JSON if the user asked for it."""
        if self.as_json:
            typer.echo(json.dumps(plain(results), indent=1, allow_nan=False))


@contextmanager
def only_results() -> Iterator[None]:
    """Drop what libraries in C print to standard output, as MDTraj's reader of DCD files does."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield
    finally:
        with suppress(OSError, TypeError):
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


class _PlainConsole(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_printable(text), **options)


def plain_console(**options: Any) -> Console:
    """A console that shows all text as it is, in tables too: a name may be "[/x]" or ":x:".

    Control characters are shown as in Python. What is to be coloured is a `rich.text.Text`.
    """
    return _PlainConsole(markup=False, emoji=False, **options)


def print_line(console: Console, text: str | Text) -> None:
    """Print text as it is: no markup, no colours, no line breaks but its own."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def print_error(error: Exception | str) -> None:
    """Print the sentence of an error to standard error."""
    line = Text.assemble(("Error:", "bold red"), " ", " ".join(_printable(str(error)).split("\n")))
    print_line(plain_console(stderr=True), line)


def _printable(text: str) -> str:
    """Text without control characters, which could change what the terminal shows."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )


def align_right(table: Table, columns: slice = slice(1, None)) -> Table:
    """Align columns of numbers to the right, by default all but the first; returns the table."""
    for column in table.columns[columns]:
        column.justify = "right"
    return table


def deviation(value: float) -> str:
    """A deviation in error bars, for a table; NaN if there are none."""
    return "not known" if math.isnan(value) else f"{value:.2f}"
