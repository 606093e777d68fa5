"""``knotflow figure``: pictures of the transforms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from knotflow.cli.options import SeedOption

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Draw pictures of the transforms."""


@app.command()
def transforms(
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .pdf or .svg.")] = Path("transforms.png"),
    order: Annotated[int, typer.Option(help="Order k of the splines; 4 is cubic.")] = 4,
    bins: Annotated[int, typer.Option(help="Number of bins.")] = 8,
    maps: Annotated[int, typer.Option(help="Number of random maps per panel.")] = 7,
    scale: Annotated[float, typer.Option(help="Standard deviation of the raw parameters.")] = 1.5,
    seed: SeedOption = 0,
) -> None:
    """Draw random B-spline transforms of an interval, a circle and the line, with their slopes.

    Example: knotflow figure transforms --order 5 --bins 12 --out splines.svg
    """
    from knotflow.paper.spline_pictures import draw_transforms

    draw_transforms(out, order, bins, maps, scale, seed)
    typer.echo(f"wrote {out}")
