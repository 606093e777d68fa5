"""Peak memory of ``knotflow sample --weights``: a hundredth, a tenth and all of very many samples.

Samples are drawn, weighted and written in pieces, so the memory of the process should not grow with their
number. Each row is a process of its own; its peak is that of its resident memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import Table


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    samples: int = 10_000_000

    @classmethod
    def quick(cls) -> Settings:
        return cls(samples=2_000)


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """The table, and a record of every row."""
    records = []
    for samples in (settings.samples // 100, settings.samples // 10, settings.samples):
        console.print(f"memory: {samples:,} samples")
        records.append(measured(samples))
    rows = [
        [f"{r['samples']:,}", f"{r['peak_mb']:,.0f}", f"{r['file_mb']:,.1f}", f"{r['seconds']:,.0f}"]
        for r in records
    ]
    columns = ["samples", "peak memory, MB", "file, MB", "seconds"]
    return [Table("Memory of sample --weights", columns, rows)], records


def measured(samples: int) -> dict[str, Any]:
    """Draw and weight samples of alanine dipeptide in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "samples.h5"
        command = [sys.executable, "-m", "knotflow", "sample", "ala2", "--weights", "-q"]
        command += ["--samples", str(samples), "--out", str(out)]
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        began = time.perf_counter()
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return {
            "samples": samples,
            "peak_mb": usage.ru_maxrss / 1000,  # Linux gives kilobytes
            "file_mb": out.stat().st_size / 1e6,
            "seconds": time.perf_counter() - began,
        }
