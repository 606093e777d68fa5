"""``knotflow quickstart``: see the library work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/quickstart"),
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
) -> None:
    """Draw random transforms, invert them, and print how smooth, exact and fast they are.

    Example: knotflow quickstart --out runs/first
    """
    from knotflow.experiments.transforms import FAMILIES, POINTS, draw_transforms, measure

    console = Console()
    picture = out / "transforms.png"
    draw_transforms(picture, order=4, bins=8, maps=7, scale=1.5, seed=seed)
    table = Table(
        "transform", "domain", "smooth", "raw", "round trip", "forward", "inverse",
        title=f"{POINTS:,} points, each with its own random map, float32",
        caption=(
            "smooth: continuous derivatives; raw: parameters of a map; round trip: largest error as a "
            "fraction of the domain; times in ns per point, eager PyTorch"
        ),
    )  # fmt: skip
    for f in track(FAMILIES, "trying the transforms", console=console, transient=True):
        table.add_row(*measure(f, seed))
    console.print(table)
    typer.echo(
        f"Picture of random B-splines and their slopes: {picture}\n"
        "Use one:  f = knotflow.BSpline(bins=32, order=4, domain=knotflow.Circle(-math.pi, math.pi))\n"
        "          y, log_slope = f.forward(x, raw);  x, minus_log_slope = f.inverse(y, raw)\n"
        "Next:     docs/choose.md says which transform to choose; make docs builds the documentation."
    )
