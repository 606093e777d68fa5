"""The benchmarks of molecules on a few frames: that they run, and that their figures mean what they say."""

import pytest
import torch
from rich.console import Console
from torch import Tensor

from benchmarks.generator import Settings as GeneratorSettings
from benchmarks.generator import frames, our_generator, peer_generator
from benchmarks.molecules import Run, Settings, evaluation_table, time_evaluations
from benchmarks.report import progress
from benchmarks.timing import Cell
from knotflow.physics import TorchForceField
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


def test_the_peer_of_a_generator_is_a_density_too() -> None:
    """Splines of other libraries in our couplings: maps there and back, and log-slopes that are slopes."""
    peer = peer_generator(0)
    assert sum(p.numel() for p in peer.parameters()) == 285_497
    q = peer.flow.sample(5)
    z, ladj = peer.flow.forward(q)
    back, inverse_ladj = peer.flow.inverse(z)
    assert float((back - q).abs().max()) < 1e-3
    assert float((ladj + inverse_ladj).abs().max()) < 1e-2


def test_frames_of_the_generator_benchmark_have_the_scores_of_the_force_field() -> None:
    """Along each coordinate the score is the slope of the log-density in internal coordinates."""
    batch = frames(GeneratorSettings(batch=2))
    coordinates = our_generator(0).coordinates
    field = TorchForceField(ala2(), compiled=False)

    def log_density(q: Tensor) -> Tensor:
        x, ladj = coordinates.inverse(q)
        return (ladj - field.energy(x)).sum()

    score = torch.func.grad(log_density)(batch.x.double())
    assert batch.force is not None
    assert float((score - batch.force).abs().max() / score.abs().max()) < 1e-3
