"""Deviations between simulations: near one error bar for the same distribution, far for another."""

from pathlib import Path

import numpy as np

from knotflow.analysis.agreement import agreement, observe
from knotflow.storage import trajectory
from knotflow.storage.trajectory import Frames
from tests.molecules.molecules import molecule


def made_up(path: Path, seed: int, *, energy: float = 0.0, stretch: float = 1.0) -> Path:
    """Frames around the structure of ala2, with replicas that differ as a whole, as slow modes make them."""
    system, random = molecule("ala2"), np.random.default_rng(seed)
    replicas, length = 40, 50
    n = replicas * length
    positions = stretch * system.positions + 0.01 * random.normal(size=(n, 22, 3))
    replica = np.repeat(np.arange(replicas), length)
    energies = energy + random.normal(size=n) + random.normal(size=replicas)[replica]
    trajectory.create(path, system, {})
    time = np.tile(np.arange(length), replicas)
    frames = Frames(positions, np.zeros_like(positions), energies * system.kT, replica, time, time)
    trajectory.append(path, frames, at=0)
    return path


def test_same_distribution_is_within_error_bars(tmp_path: Path) -> None:
    a, b = observe(made_up(tmp_path / "a.h5", 1)), observe(made_up(tmp_path / "b.h5", 2))
    z = agreement(a, b)
    assert abs(z.energy) < 4
    assert 0.5 < z.bonds < 1.6 and z.n_bonds == 42
    assert z.n_bins > 0 and z.right_histogram < 3


def test_other_distributions_are_noticed(tmp_path: Path) -> None:
    a = observe(made_up(tmp_path / "a.h5", 1))
    assert abs(agreement(a, observe(made_up(tmp_path / "b.h5", 2, energy=2.0))).energy) > 6
    assert agreement(a, observe(made_up(tmp_path / "c.h5", 3, stretch=1.03))).bonds > 4
