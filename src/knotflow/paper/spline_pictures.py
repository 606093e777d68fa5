"""A picture of random transforms."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from knotflow.report.figures import save
from knotflow.report.map_plots import MapPanel, draw_maps
from knotflow.resources import check_memory
from knotflow.transforms import BSpline, Circle, Interval, Line


def draw_transforms(out: Path, order: int, bins: int, maps: int, scale: float, seed: int) -> None:
    """Draw random B-splines of an interval, a circle and the line, with their slopes, into a file."""
    if maps < 1:
        raise ValueError(f"--maps must be at least 1, got {maps}.")
    if not math.isfinite(scale):
        raise ValueError(f"--scale must be a finite number, got {scale:g}.")
    check_memory(f"{maps:,} maps of {bins:,} bins", 8 * maps * (3600 + 6 * bins))
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
        marks = (domain.high,) if isinstance(domain, Circle) else (domain.low, domain.high)
        panels.append(MapPanel(title, x.numpy(), images, ladj.exp().numpy(), marks))
    save(draw_maps(panels), out)
