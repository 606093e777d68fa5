"""Records for MDTraj, and trajectories of MDTraj as frames to start from."""

from pathlib import Path

import mdtraj
import numpy as np
import pytest
import torch

from knotflow.dynamics import DynamicsConfig, Record, run
from knotflow.dynamics.record import from_mdtraj, to_mdtraj
from knotflow.energies import OpenMMEnergy
from tests.analysis.generators import chain
from tests.dynamics.wrong_flows import exact_chain

CONFIG = DynamicsConfig(replicas=2, dt=5e-4, equilibration=0.005, production=0.01, every=5)


@pytest.fixture(scope="module")
def record() -> Record:
    return run(OpenMMEnergy(chain(), workers=1), chain(), exact_chain(3), CONFIG)


@pytest.mark.parametrize("ending", ["h5", "dcd", "pdb", "xtc"])
def test_records_are_trajectories(record: Record, tmp_path: Path, ending: str) -> None:
    made = record.trajectory(chain())
    assert made.n_frames == 2 * len(record.time) and made.topology == chain().topology
    path = str(tmp_path / f"t.{ending}")
    made.save(path)
    found = mdtraj.load(path, **({} if ending in ("h5", "pdb") else {"top": chain().topology}))
    expected = np.concatenate([record.positions[:, 0], record.positions[:, 1]])
    assert found.xyz == pytest.approx(expected, abs=1e-3)
    if ending in ("h5", "xtc"):
        assert found.time == pytest.approx(np.tile(record.time, 2), abs=1e-5)


def test_replicas_that_stopped_end_there(record: Record) -> None:
    positions = record.positions.copy()
    positions[3:, 0] = np.nan
    found = to_mdtraj(positions, chain(), record.time)
    assert found.n_frames == 3 + len(record.time)
    assert found.time == pytest.approx([*record.time[:3], *record.time])
    np.testing.assert_array_equal(found.xyz[3:], record.positions[:, 1])


def test_any_positions_are_trajectories() -> None:
    """As those of Monte Carlo chains: tensors, with or without an axis of chains."""
    x = exact_chain(6)
    found = to_mdtraj(x.reshape(3, 2, 4, 3), chain())
    np.testing.assert_array_equal(found.xyz, x[[0, 2, 4, 1, 3, 5]].float().numpy())
    assert found.time.tolist() == [0, 1, 2, 0, 1, 2]
    assert to_mdtraj(x, chain()).n_frames == 6
    with pytest.raises(ValueError, match=r"shape \(frames, 4, 3\).*got \(6, 3, 3\)"):
        to_mdtraj(x[:, :3], chain())
    with pytest.raises(ValueError, match=r"and \(2,\)"):
        to_mdtraj(x, chain(), [0.0, 1.0])


def test_runs_start_from_trajectories(record: Record) -> None:
    frames = to_mdtraj(exact_chain(3), chain())
    found = run(OpenMMEnergy(chain(), workers=1), chain(), frames, CONFIG)
    np.testing.assert_allclose(found.positions[0], record.positions[0], atol=1e-6)
    assert torch.equal(torch.from_numpy(from_mdtraj(frames, chain())), exact_chain(3).float())
    other = mdtraj.Trajectory(np.zeros((5, 3, 3)), chain().topology.subset(range(3)))
    with pytest.raises(ValueError, match="are not those of chain: expected C C C C, got C C C;"):
        run(OpenMMEnergy(chain(), workers=1), chain(), other, CONFIG)
