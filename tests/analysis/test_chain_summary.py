"""Memory and averages of chains that are known, in files whose rows are in no particular order."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from knotflow.analysis.chain_summary import summarise_chains
from knotflow.analysis.free_energy import side_of_frames
from knotflow.statistics.estimates import student
from knotflow.storage import trajectory
from knotflow.storage.trajectory import Frames
from tests.analysis.generators import chain
from tests.molecules.molecules import molecule


def write(path: Path, system, positions: np.ndarray, energies: np.ndarray, order: np.ndarray) -> Path:
    """Frames of tables (rows, chains), in any order; energies in kT."""
    rows, chains = energies.shape
    replica = np.tile(np.arange(chains), rows)[order]
    frame = np.repeat(np.arange(rows), chains)[order]
    x = positions.reshape(rows * chains, -1, 3)[order]
    trajectory.create(path, system, {})
    frames = Frames(x, np.zeros_like(x), energies.reshape(-1)[order] * system.kT, replica, frame, frame)
    trajectory.append(path, frames, at=0)
    return path


def test_a_known_memory(tmp_path: Path) -> None:
    """An autoregressive process x' = a x + noise has the autocorrelation time (1 + a)/(1 - a)."""
    random, a, rows, chains = np.random.default_rng(0), 0.6, 400, 40
    table = np.empty((rows, chains))
    table[0] = random.normal(size=chains)
    for row in range(1, rows):
        table[row] = a * table[row - 1] + math.sqrt(1 - a**2) * random.normal(size=chains)
    x = np.tile(chain().positions, (rows * chains, 1, 1))
    path = write(tmp_path / "a.h5", chain(), x, 3 + table, random.permutation(rows * chains))
    found = summarise_chains(path)
    assert (found.n_chains, found.n_rows, found.sides) == (chains, rows, {})
    assert found.memory["energy"].time == pytest.approx((1 + a) / (1 - a), rel=0.06)
    assert found.memory["energy"].samples == pytest.approx(rows * chains * (1 - a) / (1 + a), rel=0.06)
    assert found.energy.value == pytest.approx(3 + table.mean())
    assert found.energy.error == pytest.approx(student(chains) * stats.sem(table.mean(0)))
    assert found.too_short == []


def test_sides_of_a_torsion(tmp_path: Path) -> None:
    """A mirror image has phi of the other sign; chains here are independent draws of the two."""
    system, random, rows, chains, share = molecule("ala2"), np.random.default_rng(1), 40, 100, 0.2
    mirrored = random.random((rows, chains)) < share
    x = system.positions * np.where(mirrored.reshape(-1), -1.0, 1.0)[:, None, None]
    x = x + 1e-3 * random.normal(size=x.shape)
    path = write(tmp_path / "a.h5", system, x, random.normal(size=(rows, chains)), np.arange(rows * chains))
    found = summarise_chains(path)
    (residue,) = found.sides
    assert list(found.memory) == ["energy", f"phi {residue}", f"psi {residue}"]
    assert [group.group.name for group in found.states] == [f"phi {residue}", f"psi {residue}"]
    shares = [found.states[0].population(s.name, "chains").value for s in found.states[0].group.states]
    assert shares == pytest.approx([1 - mirrored.mean(), mirrored.mean()])
    positive = mirrored.mean()  # phi of the structure is negative
    difference = found.sides[residue]
    assert difference.value == pytest.approx(math.log((1 - positive) / positive), abs=1e-9)
    # To first order, the spread of a share p of n independent draws: sqrt(p (1 - p) / n) / (p (1 - p)).
    expected = 1 / math.sqrt(share * (1 - share) * rows * chains)
    assert difference.error == pytest.approx(expected, rel=0.25)
    assert found.memory[f"phi {residue}"].time == pytest.approx(1.0, abs=0.1)
    assert found.memory[f"phi {residue}"].samples <= rows * chains


def test_chains_that_are_too_short_or_never_move(tmp_path: Path) -> None:
    system, random = molecule("ala2"), np.random.default_rng(2)
    drift = np.linspace(0, 1, 10)[:, None] + 0.01 * random.normal(size=(10, 5))
    x = np.tile(system.positions, (50, 1, 1))
    found = summarise_chains(write(tmp_path / "a.h5", system, x, drift, np.arange(50)))
    assert found.too_short == list(found.memory) and len(found.too_short) == 3
    (residue,) = found.sides
    assert found.memory[f"phi {residue}"].time == math.inf and found.memory[f"phi {residue}"].samples == 0
    assert found.sides[residue].value == math.inf and math.isnan(found.sides[residue].error)
    one_row = summarise_chains(write(tmp_path / "b.h5", system, x[:5], drift[:1], np.arange(5)))
    assert math.isnan(one_row.memory["energy"].time) and "energy" in one_row.too_short
    trajectory.create(tmp_path / "c.h5", system, {})
    with pytest.raises(ValueError, match="has no frames yet"):
        summarise_chains(tmp_path / "c.h5")


def test_sides_have_errors_from_replicas_not_from_frames() -> None:
    random = np.random.default_rng(3)
    sign = np.where(random.random(50) < 0.5, -1.0, 1.0)  # every replica stays where it began
    found = side_of_frames(np.repeat(sign, 100), np.repeat(np.arange(50), 100))
    assert found.error == pytest.approx(1 / math.sqrt(0.25 * 50), rel=0.25)
