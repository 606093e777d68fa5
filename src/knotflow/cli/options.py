"""Options that several commands share, other than those for molecules, models, output and settings."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from knotflow.config import Config

C = TypeVar("C", bound="Config")
Scale = Literal["smoke", "small", "paper"]
"""Amount of work."""
ShortScale = Literal["smoke", "small"]
"""Amount of work where the paper has no counterpart."""

RowName = StrEnum("RowName", ["rq", "smooth", "smooth+fm", "bspline", "bspline+fm"])
"""Models of Table 1; fm: trained with forces. An enumeration, because Typer reads no lists of literals."""

SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**62, help="Seed of all random numbers.")]
Float64Option = Annotated[bool, typer.Option("--float64", help="Compute in double precision.")]
SamplesOption = Annotated[int, typer.Option("-n", "--samples", min=1, help="Total number of samples.")]
DrawnOption = Annotated[int, typer.Option("--samples", min=2, help="Number of samples to draw.")]
AllFramesOption = Annotated[
    bool, typer.Option("--all-frames", help="Use all frames of DATA, even those the model was trained on.")
]
CompileOption = Annotated[
    Literal["auto", "on", "off"],
    typer.Option(
        "--compile",
        help="Compile the force field, which takes tens of seconds; auto: only if the run is long enough for "
        "that to pay.",
    ),
]
AlanineOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Trajectory of alanine dipeptide (.h5), made with `knotflow simulate` or `knotflow import`.",
    ),
]


def results_option(name: str) -> Any:
    """The option for a folder of results whose default name has a command and its scale."""
    return typer.Option(help=f"Folder for the results; by default runs/{name}-SCALE.")


def from_options(ctx: typer.Context, config: type[C], **others: Any) -> C:
    """A configuration from the options of a command that have the names of its fields, and other values."""
    options = {name: ctx.params[name] for name in config.model_fields if name in ctx.params}
    return config.parse({**options, **others})
