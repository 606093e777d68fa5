"""The benchmark of molecules on a few frames: that it runs, and that its figures mean what they say."""

import pytest
from rich.console import Console

from benchmarks.molecules import Run, Settings, evaluation_table, time_evaluations
from benchmarks.report import progress
from benchmarks.timing import Cell
from knotflow.physics.system import ala2


def test_evaluations_agree() -> None:
    """So few frames that no worker process starts."""
    settings = Settings(repeats=1, compiled=False)
    with progress(Console(quiet=True)) as bar:
        evaluations = time_evaluations(bar, ala2(), 4, settings)
    worst = {e.cell.candidate: (e.energy_difference, e.force_difference) for e in evaluations}
    assert worst["OpenMM Reference"] == (0, 0)
    assert max(worst["TorchForceField, float64"]) < 1e-8
    assert 0 < worst["TorchForceField, float32"][0] < 1e-3
    for row in evaluation_table(ala2(), evaluations).rows:
        assert float(row[2].replace(",", "")) > 0, row


def test_speed_of_a_simulation() -> None:
    """A microsecond in two hours is 12 µs a day, or 10⁹ steps in 7200 s."""
    cell = Cell("engine", True, "dynamics", "workers", elements=10**9, seconds=[[7200.0]])
    run = Run(cell, 2, 256, prepare=lambda: None, advance=lambda: None)
    assert run.hours_per_microsecond() == pytest.approx(2)
    assert run.nanoseconds_per_day() == pytest.approx(12_000)
    assert run.record()["steps_per_second"] == pytest.approx(138_888.9)
