"""Deviations between simulations: near one error bar for the same distribution, far for another."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from knotflow.analysis.agreement import agreement, observe
from knotflow.statistics.estimates import Estimate
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


def test_what_was_visited_rarely_or_by_one_replica_is_not_compared(tmp_path: Path) -> None:
    a, b = observe(made_up(tmp_path / "a.h5", 1)), observe(made_up(tmp_path / "b.h5", 2))
    frames, replicas = a.counts["left"]
    assert frames == round(2000 * a.averages["left"].value) and replicas <= 40
    known = [replace(e, counts=e.counts | {"left": (100, 10)}) for e in (a, b)]
    some = {"left": Estimate(0.02, 0.002)}, {"left": Estimate(1 / 600, 1 / 600)}
    ours, theirs = (replace(e, averages=e.averages | s) for e, s in zip(known, some, strict=True))
    assert agreement(ours, theirs).left > 6
    assert math.isnan(agreement(ours, replace(theirs, counts=b.counts | {"left": (1, 1)})).left)
    lonely = replace(b, averages=b.averages | {"energy": Estimate(3.0)})
    assert math.isnan(agreement(a, lonely).energy)
