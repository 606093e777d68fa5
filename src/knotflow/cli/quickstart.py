"""``knotflow quickstart``: see the library work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from knotflow import BSpline, Bump, Circle, Interval, Line, RationalQuadratic, Transform
from knotflow.cli.figure import draw_transforms

POINTS = 20_000
REPEATS = 5


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/quickstart"),
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
) -> None:
    """Draw random transforms, invert them, and print how smooth, exact and fast they are.

    Example: knotflow quickstart --out runs/first
    """
    console = Console()
    picture = out / "transforms.png"
    draw_transforms(picture, order=4, bins=8, maps=7, scale=1.5, seed=seed)
    angle, bond, energy = Circle(-math.pi, math.pi), Interval(0.05, 0.3), Line(-5.0, 5.0)
    families: list[Transform] = [
        BSpline(32, 4, angle),
        BSpline(32, 4, bond),
        BSpline(32, 4, energy),
        BSpline(32, 6, angle),
        RationalQuadratic(32, angle),
        Bump(8, angle),
    ]
    table = Table(
        "transform", "domain", "smooth", "raw", "round trip", "forward", "inverse",
        title=f"{POINTS:,} points, each with its own random map, float32",
        caption=(
            "smooth: continuous derivatives; raw: parameters of a map; round trip: largest error as a "
            "fraction of the domain; times in ns per point, eager PyTorch"
        ),
    )  # fmt: skip
    for f in track(families, "trying the transforms", console=console, transient=True):
        table.add_row(*_measure(f, seed))
    console.print(table)
    typer.echo(
        f"Picture of random B-splines and their slopes: {picture}\n"
        "Use one:  f = knotflow.BSpline(bins=32, order=4, domain=knotflow.Circle(-math.pi, math.pi))\n"
        "          y, log_slope = f.forward(x, raw);  x, minus_log_slope = f.inverse(y, raw)\n"
        "Next:     docs/choose.md says which transform to choose; make docs builds the documentation."
    )


def _measure(f: Transform, seed: int) -> tuple[str, ...]:
    generator = torch.Generator().manual_seed(seed)
    low, high = f.domain.low, f.domain.high
    x = (low + (high - low) * torch.rand(POINTS, generator=generator)).clamp(low, high)
    raw = 2 * torch.randn(POINTS, f.n_parameters, generator=generator)
    with torch.no_grad():
        y, _ = f.forward(x, raw)
        error = f.domain.distance(f.inverse(y, raw)[0], x)
        forward = _nanoseconds(lambda: f.forward(x, raw))
        inverse = _nanoseconds(lambda: f.inverse(y, raw))
    name = f"BSpline k={f.order}" if isinstance(f, BSpline) else type(f).__name__
    smoothness = "all" if math.isinf(f.smoothness) else f"{f.smoothness:.0f}"
    domain = type(f.domain).__name__
    worst = f"{error.max() / f.domain.length:.0e}"
    return name, domain, smoothness, str(f.n_parameters), worst, f"{forward:.0f}", f"{inverse:.0f}"


def _nanoseconds(call: Callable[[], object]) -> float:
    """Median time of a call, per point."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[REPEATS // 2] / POINTS * 1e9
