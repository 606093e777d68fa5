"""Deviations between simulations: near one error bar for the same distribution, far for another."""

import math
from pathlib import Path

import mdtraj
import numpy as np
import pytest

from knotflow.analysis.agreement import agreement, observe
from knotflow.simulation.summary import Average, backbone_torsions, over_replicas, summarise
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


def test_error_bars_are_those_of_independent_replicas() -> None:
    """Replicas of unequal length with common shifts: the error bar covers the truth as often as it should."""
    random = np.random.default_rng(0)
    lengths = random.integers(5, 40, size=30)
    replica = np.repeat(np.arange(30), lengths)
    z = []
    for _ in range(400):
        values = random.normal(size=len(replica)) + random.normal(size=30)[replica]
        average = over_replicas(values, replica)
        z.append(average.mean / average.error)
    assert np.std(z) == pytest.approx(1.0, abs=0.15)


def test_one_replica_has_no_error_bar() -> None:
    average = over_replicas(np.arange(5.0), np.zeros(5, dtype=np.int32))
    assert average.mean == 2.0 and math.isnan(average.error) and str(average) == "2"
    assert str(Average(-23.8412, 0.0214)) == "-23.841 ± 0.021"
    assert str(Average.of(np.array([1.0, 3.0]))) == "2.0 ± 1.0"


def test_torsions_are_those_of_the_named_atoms() -> None:
    system = molecule("ala2")
    positions = np.asarray(system.positions[None], dtype=np.float32)
    (torsions,) = backbone_torsions(system, positions)
    frame = mdtraj.Trajectory(positions, system.topology)
    expected = mdtraj.compute_dihedrals(frame, [[4, 6, 8, 14], [6, 8, 14, 16]])[0]
    assert torsions.residue == "ALA2"
    np.testing.assert_allclose([torsions.phi[0], torsions.psi[0]], expected, atol=1e-6)
    peptide = molecule("GYDPETGTWG")
    assert len(backbone_torsions(peptide, peptide.positions[None].astype(np.float32))) == 10
    assert backbone_torsions(molecule("dimer"), np.zeros((1, 2, 3), dtype=np.float32)) == []


def test_summary_counts_frames(tmp_path: Path) -> None:
    summary = summarise(made_up(tmp_path / "a.h5", 1))
    assert summary.n_frames == 2000 and summary.n_replicas == 40
    assert list(summary.left_handed) == ["ALA2"]
