"""Chains into a file: the right distribution, and the same samples whatever interrupts them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from knotflow.dynamics import chain_run as exact
from knotflow.dynamics.chain_run import ExactPlan, ExactRun, open_run
from knotflow.dynamics.flow_monte_carlo import FlowMonteCarlo
from knotflow.energies import OpenMMEnergy, TorchForceField
from knotflow.errors import ConfigError
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.ranks import piece_seed
from knotflow.storage import trajectory
from tests.analysis.generators import chain
from tests.dynamics.test_flow_monte_carlo import p_values
from tests.dynamics.wrong_flows import bent_chain_generator

PLAN = {"chains": 30, "rows": 5, "burn_in": 4, "every": 2, "flow_moves": 2, "md_steps": 5, "time_step": 0.003}


def field() -> TorchForceField:
    return TorchForceField(chain(), compiled=False)


def model() -> BoltzmannGenerator:
    return bent_chain_generator().float()


def new(path: Path, **changes: object) -> ExactRun:
    return ExactRun(path, model(), ExactPlan.parse(PLAN | changes), {"model": "a"})


def whole(path: Path, **changes: object) -> trajectory.Frames:
    run = new(path, **changes)
    run.run(field())
    assert run.finished
    return trajectory.read(path)


def assert_equal(a: trajectory.Frames, b: trajectory.Frames) -> None:
    for name in trajectory.COLUMNS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def test_the_file_holds_the_chains(tmp_path: Path) -> None:
    run = new(tmp_path / "a.h5")
    seen: list[tuple] = []
    run.run(field(), lambda *now: seen.append(now))
    found = trajectory.read(run.path)
    # The same by hand.
    sampler = FlowMonteCarlo(model(), field(), flow_moves=2, hmc_moves=1, md_steps=5, time_step=0.003)
    chains = sampler.run(sampler.run(sampler.start(30), 4).state, 10, every=2)
    np.testing.assert_array_equal(found.positions, chains.positions.flatten(0, 1).numpy())
    np.testing.assert_array_equal(found.replica, np.tile(np.arange(30), 5))
    np.testing.assert_array_equal(found.frame, np.repeat(np.arange(5), 30))
    np.testing.assert_array_equal(found.time, np.repeat([2, 4, 6, 8, 10], 30))
    assert run.moves == chains.moves and run.samples == 150 and run.cycles == 14
    assert run.evaluations == 30 * (14 * sampler.evaluations + 5) and sampler.evaluations == 2 + 6
    with OpenMMEnergy(chain(), workers=1) as energy:
        u, force = energy.energy_and_force(torch.from_numpy(found.positions).double())
    np.testing.assert_allclose(found.energies, u * chain().kT, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.forces, force * chain().kT, rtol=1e-3, atol=0.3)
    burning, sampling = (
        [("burning in", n, 14) for n in range(5)],
        [("sampling", n, 14) for n in range(6, 15, 2)],
    )
    assert [now[:3] for now in seen] == burning + sampling
    shares = ", ".join(f"{kind} {100 * moves.acceptance:.3g} %" for kind, moves in run.moves.items())
    assert seen[-1][3] == f"150 samples, accepted: {shares}"
    assert trajectory.open_info(run.path).provenance["time"] == "cycles" and run.seconds > 0


def test_samples_are_exact_though_the_flow_is_not(tmp_path: Path) -> None:
    found = whole(tmp_path / "a.h5", chains=1000, rows=1, burn_in=10, every=10, md_steps=10)
    assert min(p_values(torch.from_numpy(found.positions).double())) > 1e-3


@pytest.mark.parametrize("killed_at", ["burn-in", "row", "append", "state"])
def test_a_killed_run_ends_with_the_same_samples(tmp_path: Path, monkeypatch, killed_at: str) -> None:
    expected = whole(tmp_path / "whole.h5")
    calls = 0

    def dies(function, after: int):
        def called(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > after:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return called

    with monkeypatch.context() as patch:
        patch.setattr(exact, "SAVE_SECONDS", 0.0)  # one cycle or row at a time
        where, name, after = {
            "burn-in": (FlowMonteCarlo, "run", 2),
            "row": (FlowMonteCarlo, "run", 4 + 3),
            "append": (trajectory, "append", 2),
            "state": (ExactRun, "_save", 1 + 4 + 2),
        }[killed_at]
        patch.setattr(where, name, dies(getattr(where, name), after))
        with pytest.raises(KeyboardInterrupt):
            new(tmp_path / "a.h5").run(field())
    again = new(tmp_path / "a.h5")
    assert 0 < again.cycles < 14 and not again.finished
    again.run(field())
    assert_equal(trajectory.read(again.path), expected)
    assert again.moves == new(tmp_path / "whole.h5").moves


def test_more_rows_go_on(tmp_path: Path) -> None:
    expected = whole(tmp_path / "whole.h5")
    first = whole(tmp_path / "a.h5", rows=2)
    assert_equal(first, expected[:60])
    assert_equal(whole(tmp_path / "a.h5"), expected)
    # Fewer are there already.
    assert new(tmp_path / "a.h5", rows=3).finished and new(tmp_path / "a.h5", rows=3).samples == 150


def test_other_files_are_refused(tmp_path: Path) -> None:
    whole(tmp_path / "a.h5", rows=1)
    with pytest.raises(ValueError, match=r"made with every 2, seed 0, but you asked for every 3, seed 1;"):
        new(tmp_path / "a.h5", every=3, seed=1)
    plan = ExactPlan.parse(PLAN)
    with pytest.raises(ValueError, match="made with model a, but you asked for model b"):
        ExactRun(tmp_path / "a.h5", model(), plan, {"model": "b"})
    with pytest.raises(ValueError, match="made with dtype float32, but you asked for dtype float64"):
        ExactRun(tmp_path / "a.h5", model().double(), plan, {"model": "a"})
    trajectory.create(tmp_path / "b.h5", chain(), {"command": "simulate"})
    with pytest.raises(ValueError, match="does not hold chains"):
        new(tmp_path / "b.h5")
    (tmp_path / "a.h5.state").write_bytes(b"x")
    with pytest.raises(OSError, match="missing or damaged"):
        new(tmp_path / "a.h5")
    with pytest.raises(ConfigError, match="a cycle needs a move"):
        ExactPlan.parse({"flow_moves": 0, "hmc_moves": 0})


def test_a_state_that_is_ahead_of_its_file_is_refused(tmp_path: Path) -> None:
    whole(tmp_path / "a.h5", rows=1)
    early = (tmp_path / "a.h5").read_bytes()
    whole(tmp_path / "a.h5", rows=2)
    (tmp_path / "a.h5").write_bytes(early)
    with pytest.raises(OSError, match=r"has 30 frames, but its state a.h5.state counts 60"):
        new(tmp_path / "a.h5")


def test_runs_of_model_files(tmp_path: Path) -> None:
    model().save(tmp_path / "m.safetensors")
    plan = ExactPlan.parse(PLAN | {"rows": 1})
    open_run(tmp_path / "a.h5", tmp_path / "m.safetensors", plan).run(field())
    assert open_run(tmp_path / "a.h5", tmp_path / "m.safetensors", plan).finished
    with pytest.raises(ValueError, match="made with dtype float32, but you asked for dtype float64"):
        open_run(tmp_path / "a.h5", tmp_path / "m.safetensors", plan, double=True)
    bent_chain_generator(0.1).float().save(tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="holds chains made with fingerprint"):
        open_run(tmp_path / "a.h5", tmp_path / "m.safetensors", plan)


def test_groups_of_chains_are_chains_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "TOGETHER", 12)
    expected = whole(tmp_path / "whole.h5")
    sampler = FlowMonteCarlo(model(), field(), flow_moves=2, hmc_moves=1, md_steps=5, time_step=0.003)
    groups = [sampler.start(10, piece_seed(0, number)) for number in range(3)]
    rows = [sampler.run(sampler.run(group, 4).state, 10, every=2).positions for group in groups]
    np.testing.assert_array_equal(expected.positions, torch.cat(rows, 1).flatten(0, 1).numpy())
    whole(tmp_path / "a.h5", rows=2)
    assert_equal(whole(tmp_path / "a.h5"), expected)


def test_chains_of_an_earlier_version_go_on_as_they_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, all chains had the same random numbers."""
    expected = whole(tmp_path / "whole.h5")
    whole(tmp_path / "a.h5", rows=2)
    monkeypatch.setattr(exact, "TOGETHER", 12)
    assert_equal(whole(tmp_path / "a.h5"), expected)
