"""Peak memory of ``sample --weights`` and ``train``: a hundredth, a tenth and all of very many rows.

Samples are drawn, weighted and written in pieces, and training data stay on the disk, so the memory of the
process should not grow with their number. Each row is a process of its own. *Peak memory* is the largest
resident memory. The system counts with it what is cached of mapped files, and takes that back when others
need memory; *of its own* is the rest.

The frames are a few thousand of the pretrained model, repeated with noise: their number is what matters.
They and the training data need 1.5 kB of disk for each: 15 GB for all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.report import Table

REPLICAS = 20
AT_ONCE = 100_000
"""Frames written at a time."""
DIFFERENT = 4_000
"""Frames that are repeated."""
NOISE = 1e-4
"""In nm."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    samples: int = 10_000_000
    frames: int = 10_000_000
    steps: int = 20
    """Of the training."""

    @classmethod
    def quick(cls) -> Settings:
        return cls(samples=2_000, frames=20_000, steps=5)


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """The tables, and a record of every row."""
    drawn, trained = [], []
    for samples in sizes(settings.samples):
        console.print(f"memory: {samples:,} samples")
        drawn.append(sampled(samples))
    for frames in sizes(settings.frames):
        console.print(f"memory: training on {frames:,} frames")
        trained.append(trained_on(frames, settings.steps))
    tables = [table("sample --weights", "samples", drawn), table("train --preset quick", "frames", trained)]
    return tables, drawn + trained


def sizes(most: int) -> tuple[int, int, int]:
    """A hundredth, a tenth and all."""
    return most // 100, most // 10, most


def table(command: str, what: str, records: list[dict[str, Any]]) -> Table:
    rows = [
        [f"{r[what]:,}", f"{r['own_mb']:,.0f}", f"{r['peak_mb']:,.0f}", f"{r['file_mb']:,.1f}",
         f"{r['seconds']:,.0f}"]
        for r in records
    ]  # fmt: skip
    columns = [what, "of its own, MB", "peak memory, MB", "file, MB", "seconds"]
    return Table(f"Memory of {command}", columns, rows)


def sampled(samples: int) -> dict[str, Any]:
    """Draw and weight samples of alanine dipeptide in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "samples.h5"
        words = ["sample", "ala2", "--weights", "--samples", str(samples), "--out", str(out)]
        return {"samples": samples, **measured(words), "file_mb": out.stat().st_size / 1e6}


def trained_on(frames: int, steps: int) -> dict[str, Any]:
    """Train some steps on so many frames in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.h5"
        write_frames(data, frames)
        epochs = steps * 256 / (0.9 * frames)  # a tenth is held out
        words = ["train", str(data), "--preset", "quick", f"--epochs={epochs}", "--out", f"{folder}/run"]
        return {"frames": frames, **measured(words), "file_mb": data.stat().st_size / 1e6}


def write_frames(path: Path, n: int) -> None:
    """A trajectory of alanine dipeptide of so many frames."""
    from knotflow.energies import force_field
    from knotflow.flows.boltzmann import BoltzmannGenerator
    from knotflow.molecules import MolecularSystem
    from knotflow.storage import trajectory
    from knotflow.storage.trajectory import Frames

    model, random = BoltzmannGenerator.pretrained("ala2"), np.random.default_rng(0)
    system = MolecularSystem.parse(model.molecule)
    x = model.sample(DIFFERENT, generator=torch.Generator().manual_seed(0))
    with force_field(system) as energy:
        u, force = (system.kT * found.double().numpy() for found in energy.energy_and_force(x))
    trajectory.create(path, system, {"command": "benchmarks memory"})
    for start in range(0, n, AT_ONCE):
        rows = np.arange(start, min(start + AT_ONCE, n))
        which = random.integers(DIFFERENT, size=len(rows))
        noise = NOISE * random.standard_normal((len(rows), *x.shape[1:]), dtype=np.float32)
        positions, replica = x.numpy()[which] + noise, rows * REPLICAS // n
        trajectory.append(path, Frames(positions, force[which], u[which], replica, rows, rows), at=start)


def measured(words: list[str]) -> dict[str, float]:
    """Run a command in a new process; its peak memory in MB, with and without mapped files, and its time."""
    command = [sys.executable, "-m", "knotflow", *words, "-q"]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    began, own = time.perf_counter(), 0
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    while True:
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            break
        found = re.search(r"RssAnon:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        own = max(own, int(found[1]) if found else 0)
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    seconds = time.perf_counter() - began
    # Linux gives kilobytes.
    return {"own_mb": own / 1000, "peak_mb": usage.ru_maxrss / 1000, "seconds": seconds}
