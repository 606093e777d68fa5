"""Table 2: the time that the flows of Table 1 take per sample, in both directions."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from knotflow.files import read_json, write_json
from knotflow.flows import Flow
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.inputs import file_fingerprint, made_of
from knotflow.paper.numbers import spread
from knotflow.version import __version__
from knotflow.workflows.steps import Say

FILE: Final = "table2.json"
FAMILIES: Final = {"rq": "RQ-spline", "smooth": "Smooth", "bspline": "B-spline"}
"""Rows of the table, in the order of the paper."""
BATCH: Final = 1_000
"""Samples at a time."""


@dataclass(frozen=True)
class Runtime:
    """A row of the table: milliseconds per sample, mean and two standard errors over repeats."""

    family: str
    """A key of `FAMILIES`."""
    parameters: int
    reverse: tuple[float, float]
    """From the base distribution to a sample and its log-density."""
    forward: tuple[float, float]
    """From a sample to its log-density."""
    samples: int
    """Samples per repeat."""
    repeats: int
    threads: int
    model: str
    """Fingerprint of the model file."""
    knotflow: str = ""
    """Version; empty if it was not noted, by an early version."""


PAPER: Final[dict[str, tuple[tuple[float, float], tuple[float, float]]]] = {
    "rq": ((0.59, 0.01), (0.49, 0.01)),
    "smooth": ((19.8, 0.26), (0.64, 0.01)),
    "bspline": ((1.12, 0.02), (0.72, 0.01)),
}
"""Table 2 of Hong & Chun (AAAI 2023), reverse and forward, on an RTX 3090, for comparison."""


def run(
    models: Mapping[str, Path], folder: Path, samples: int, repeats: int, *, say: Say = print
) -> list[Runtime]:
    """Time the flows that have not been timed yet, and keep the times in ``table2.json`` in a folder.

    Args:
        models: Model files by family.
        folder: For the file.
        samples: Samples per repeat.
        repeats: Number of repeats.
        say: Called with a line before each flow is timed.
    """
    kept, found = read(folder / FILE), []
    for family in FAMILIES:
        if family not in models:
            continue
        known, wanted = kept.get(family), runtime_inputs(models[family], samples, repeats)
        if known is None or not made_of(asdict(known), wanted):
            say(f"{FAMILIES[family]}: {repeats} times {samples:,} samples, there and back")
            known = kept[family] = measure(family, models[family], samples, repeats)
            write_json(folder / FILE, kept)
        found.append(known)
    return found


def runtime_inputs(model: Path, samples: int, repeats: int) -> dict[str, Any]:
    """Everything that the times of a model depend on, except the machine."""
    return {
        "model": file_fingerprint(model),
        "samples": samples,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "knotflow": __version__,
    }


def read(file: Path) -> dict[str, Runtime]:
    """The times that a file holds, by family; empty if there is no file."""
    if not file.exists():
        return {}
    found: dict[str, dict[str, Any]] = read_json(file)
    for row in found.values():
        for way in ("reverse", "forward"):
            row[way] = tuple(math.nan if value is None else value for value in row[way])
    return {family: Runtime(**row) for family, row in found.items()}


def measure(family: str, model: Path, samples: int, repeats: int) -> Runtime:
    """Time the flow of a model, without the step from internal to Cartesian coordinates."""
    flow = BoltzmannGenerator.load(model).flow
    times = time_flow(flow, samples, repeats)
    return Runtime(
        family=family,
        parameters=sum(p.numel() for p in flow.parameters()),
        reverse=spread([1e3 * reverse / samples for reverse, _ in times]),
        forward=spread([1e3 * forward / samples for _, forward in times]),
        **runtime_inputs(model, samples, repeats),
    )


@torch.no_grad()
def time_flow(flow: Flow, samples: int, repeats: int) -> list[tuple[float, float]]:
    """Seconds to draw this many samples with their log-densities, and to compute their log-densities alone.

    A first batch for warming up is not counted.
    """
    counts = [min(BATCH, samples - first) for first in range(0, samples, BATCH)]
    flow.log_prob(flow.sample(counts[-1]))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        drawn = [flow.sample_and_log_prob(n)[0] for n in counts]
        there = time.perf_counter()
        for x in drawn:
            flow.log_prob(x)
        times.append((there - began, time.perf_counter() - there))
    return times
