"""What the commands have in common: scales, rows of Table 1, and how they end when they are stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import typer

from knotflow.cli.output import Output


class ScaleName(StrEnum):
    """How much work to do."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


class ShortScale(StrEnum):
    """How much work to do, where the paper has no counterpart."""

    smoke = "smoke"
    small = "small"


class RowName(StrEnum):
    """Models of Table 1; fm: forces are matched."""

    rq = "rq"
    smooth = "smooth"
    smooth_fm = "smooth+fm"
    bspline = "bspline"
    bspline_fm = "bspline+fm"


@contextmanager
def stoppable(output: Output) -> Iterator[None]:
    """Ctrl-C ends the command with a sentence: what is done is in files."""
    try:
        yield
    except KeyboardInterrupt:
        output.tell("\nStopped; the same command goes on.")
        raise typer.Exit(130) from None
