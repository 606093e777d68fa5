"""``knotflow figure``: pictures of the transforms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from knotflow import BSpline, Circle, Domain, Interval, Line
from knotflow.report import plots

app = typer.Typer(help="Draw pictures of the transforms.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Draw pictures of the transforms."""


@app.command()
def transforms(
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .pdf or .svg.")] = Path("transforms.png"),
    order: Annotated[int, typer.Option(help="Order k of the splines; 4 is cubic.")] = 4,
    bins: Annotated[int, typer.Option(help="Number of bins.")] = 8,
    maps: Annotated[int, typer.Option(help="Number of random maps in each panel.")] = 7,
    scale: Annotated[float, typer.Option(help="Standard deviation of the raw parameters.")] = 1.5,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
) -> None:
    """Draw random B-spline transforms of an interval, a circle and the line, with their slopes.

    Example: knotflow figure transforms --order 5 --bins 12 --out splines.svg
    """
    draw_transforms(out, order, bins, maps, scale, seed)
    typer.echo(f"wrote {out}")


def draw_transforms(out: Path, order: int, bins: int, maps: int, scale: float, seed: int) -> None:
    """Write the picture of `transforms`."""
    if maps < 1:
        raise ValueError(f"--maps must be at least 1, got {maps}.")
    generator = torch.Generator().manual_seed(seed)
    panels = []
    for title, domain, low, high in (
        ("interval: onto, free end slopes", Interval(), 0.0, 1.0),
        ("circle, two turns: smooth at the seam", Circle(-math.pi, math.pi), -math.pi, 3 * math.pi),
        ("line: joins the identity", Line(-2.0, 2.0), -3.0, 3.0),
    ):
        f = BSpline(bins, order, domain)
        raw = scale * torch.randn(maps, 1, f.n_parameters, generator=generator, dtype=torch.float64)
        x = torch.linspace(low, high, 1201, dtype=torch.float64)
        y, ladj = f.forward(x.expand(maps, -1), raw)
        # A circle is drawn over two turns, its images continued over the seam.
        images = np.unwrap(y.numpy(), period=domain.length) if isinstance(domain, Circle) else y.numpy()
        panels.append(plots.MapPanel(title, x.numpy(), images, ladj.exp().numpy(), _marks(domain)))
    plots.save(plots.draw_maps(panels), out)


def _marks(domain: Domain) -> tuple[float, ...]:
    return (domain.high,) if isinstance(domain, Circle) else (domain.low, domain.high)
