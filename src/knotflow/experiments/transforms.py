"""Random transforms: a picture of them, and how smooth, exact and fast they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import torch

from knotflow.report import plots
from knotflow.transforms import BSpline, Bump, Circle, Domain, Interval, Line, RationalQuadratic, Transform

POINTS: Final = 20_000
REPEATS: Final = 5

FAMILIES: Final[list[Transform]] = [
    BSpline(32, 4, Circle(-math.pi, math.pi)),
    BSpline(32, 4, Interval(0.05, 0.3)),
    BSpline(32, 4, Line(-5.0, 5.0)),
    BSpline(32, 6, Circle(-math.pi, math.pi)),
    RationalQuadratic(32, Circle(-math.pi, math.pi)),
    Bump(8, Circle(-math.pi, math.pi)),
]
"""What `knotflow quickstart` tries: a torsion, a bond length, an energy; other orders and families."""


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


def measure(f: Transform, seed: int) -> tuple[str, ...]:
    """A row of the table of `knotflow quickstart`: name, domain, smoothness, sizes, error and times."""
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
