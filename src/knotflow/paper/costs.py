"""What work costs, time and energy evaluations, added up over interruptions."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from knotflow.energies import MolecularEnergy
from knotflow.files import read_json, write_json
from knotflow.progress import Progress, silent

SAVE_SECONDS: Final = 10.0
"""Seconds between saves."""


class Meter:
    """Counts what is spent on one kind of work, and writes it to a file: see `spent`."""

    def __init__(self, file: Path, name: str, progress: Progress) -> None:
        self.evaluations = 0
        """Energies that were evaluated."""
        self._file, self._name, self._progress = file, name, progress
        self._before: dict[str, dict[str, Any]] = read_json(file) if file.exists() else {}
        self._wall, self._cpu = time.perf_counter(), sum(os.times()[:4])
        self._saved = self._wall

    def progress(self, doing: str, done: float, total: float, note: str = "") -> None:
        """Pass progress on, and save now and then."""
        if time.perf_counter() - self._saved > SAVE_SECONDS:
            self.save()
        self._progress(doing, done, total, note)

    def save(self) -> None:
        """Write the file."""
        self._saved = time.perf_counter()
        now = {
            "wall": self._saved - self._wall,
            "cpu": sum(os.times()[:4]) - self._cpu,
            "evaluations": self.evaluations,
        }
        earlier = self._before.get(self._name, {})
        total = {key: earlier.get(key, 0) + value for key, value in now.items()}
        write_json(self._file, {**self._before, self._name: total})

    def counted(self, energy: MolecularEnergy) -> MolecularEnergy:
        """The same energy, whose evaluations are counted."""
        return _Counted(energy, self)


@contextmanager
def spent(file: Path, name: str, progress: Progress = silent) -> Iterator[Meter]:
    """Add what the ``with`` block costs to a file: ``{name: {"wall": s, "cpu": s, "evaluations": n}}``.

    ``cpu`` are seconds of all cores, those of processes that were started and have ended included. The file
    is written when the block ends in any way and, while it reports progress, every `SAVE_SECONDS`; so little
    is lost if it is killed.
    """
    meter = Meter(file, name, progress)
    try:
        yield meter
    finally:
        meter.save()


class _Counted(MolecularEnergy):
    def __init__(self, inner: MolecularEnergy, meter: Meter) -> None:
        self.n_atoms, self.temperature = inner.n_atoms, inner.temperature
        self._inner, self._meter = inner, meter

    def energy(self, x: Tensor) -> Tensor:
        self._meter.evaluations += math.prod(x.shape[:-2])
        return self._inner.energy(x)

    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self._meter.evaluations += math.prod(x.shape[:-2])
        return self._inner.energy_and_force(x)

    def expect(self, evaluations: float) -> None:
        self._inner.expect(evaluations)

    def close(self) -> None:
        self._inner.close()
