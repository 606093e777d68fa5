"""``knotflow exact`` as a user runs it: exact averages, going on, formats, warnings, refusals."""

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mdtraj
import numpy as np
import pytest
import torch

import knotflow as kf
from knotflow.analysis.chain_summary import ChainSummary, Memory
from knotflow.cli import exact as command
from knotflow.dynamics import chain_run as engine
from knotflow.dynamics.chains import Moves
from knotflow.dynamics.flow_monte_carlo import FlowMonteCarlo
from knotflow.statistics.estimates import Estimate
from knotflow.storage import trajectory
from tests.analysis.generators import ala2_data, ala2_generator, chain, grids, widths
from tests.dynamics.test_chain_run import assert_equal
from tests.dynamics.wrong_flows import bent_chain_generator

QUICK = ["--chains", "50", "--burn-in", "5", "--every", "2", "--flow-moves", "2", "--hmc-steps", "4"]


@pytest.fixture
def run(run_here, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    bent_chain_generator().float().save(tmp_path / "chain.safetensors")
    return partial(run_here, "exact")


def exact_energy() -> float:
    """Mean energy of the chain in kT, by quadrature."""
    (bond, angle), (b, a, p_b, p_a) = widths(), grids()
    u_b, u_a = (b - 0.15) ** 2 / (2 * bond**2), (a - 2.0) ** 2 / (2 * angle**2)
    return float(3 * (u_b * p_b).sum() / p_b.sum() + 2 * (u_a * p_a).sum() / p_a.sum())


def test_averages_are_those_of_the_force_field(run) -> None:
    status, said = run(
        "chain.safetensors", "-n", "1990", *QUICK, "--chains", "100", "--dt", "3", "--out", "a/b.h5"
    )
    assert status == 0 and "chain: 100 chains, 45 cycles, 2,000 samples in all" in said
    assert "2,000 samples of 100 chains" in said and "in all, 2,000 samples, accepted: flow" in said
    mean, error = map(float, re.search(r"mean energy, kT │ ([\d.]+) ± ([\d.]+)", said).groups())
    assert mean == pytest.approx(exact_energy(), abs=4 * error) and error < 0.1
    found, info = trajectory.read("a/b.h5"), trajectory.open_info("a/b.h5")
    assert len(found) == 2000 and mean == pytest.approx(found.energies.mean() / chain().kT, abs=0.01)
    assert info.provenance["source"]["model"] == "chain.safetensors"
    assert (info.provenance["plan"]["time_step"], info.provenance["plan"]["flow_moves"]) == (0.003, 2)
    share = float(re.search(r"accepted trajectories │ ([\d.]+) %", said)[1])
    assert 50 < share < 100 and f"{100 * (45 * (2 + 5) + 20):,}" in said  # energy evaluations
    assert mdtraj.load("a/b.h5").n_frames == 2000
    assert {path.name for path in Path("a").iterdir()} == {"b.h5", "b.h5.state", "b.h5.toml"}


def test_ctrl_c_and_the_same_command_again(run, monkeypatch) -> None:
    arguments = ["chain.safetensors", "-n", "300", *QUICK]
    assert run(*arguments, "--out", "whole.h5")[0] == 0
    honest, calls = FlowMonteCarlo.run, []

    def interrupted(self, *args, **kwargs):
        calls.append(1)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return honest(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(FlowMonteCarlo, "run", interrupted)
        patch.setattr(engine, "SAVE_SECONDS", 0.0)
        status, said = run(*arguments, "--out", "a.h5")
    assert status == 130 and "Stopped; run the same command again to continue." in said
    assert trajectory.open_info("a.h5").n_frames == 150
    status, said = run(*arguments, "--out", "a.h5")
    assert status == 0 and "continuing after 11 cycles and 150 samples in a.h5" in said
    assert_equal(trajectory.read("a.h5"), trajectory.read("whole.h5"))
    table = said[said.index("300 samples of 50") : said.index("Samples: a.h5")]
    status, said = run(*arguments, "--out", "a.h5")
    assert status == 0 and "a.h5 is complete already; a larger -n adds to it." in said and table in said
    status, said = run("chain.safetensors", "-n", "400", *QUICK, "--out", "a.h5")
    assert status == 0 and "400 samples of 50 chains" in said
    assert_equal(trajectory.read("a.h5")[:300], trajectory.read("whole.h5"))


def test_another_format(run, tmp_path: Path) -> None:
    status, said = run("chain.safetensors", "-n", "100", *QUICK, "--out", "a.xtc")
    assert status == 0 and "Samples: a.xtc and a.csv and a.h5" in said
    x = mdtraj.load("a.h5")
    found = mdtraj.load("a.xtc", top=x.topology)
    assert found.n_frames == 100
    pairs = [(0, 1), (0, 2), (0, 3), (1, 3)]
    np.testing.assert_allclose(
        mdtraj.compute_distances(found, pairs), mdtraj.compute_distances(x, pairs), atol=3e-3
    )
    rows = Path("a.csv").read_text().split()
    model = bent_chain_generator()
    expected = model.log_prob(torch.from_numpy(trajectory.read("a.h5").positions).double())
    assert rows[0] == "logProbability"
    np.testing.assert_allclose([float(row) for row in rows[1:]], expected, atol=0.01)
    # More samples: the file is written anew. That of someone else is not.
    assert run("chain.safetensors", "-n", "150", *QUICK, "--out", "a.xtc")[0] == 0
    assert mdtraj.load("a.xtc", top=x.topology).n_frames == 150
    (tmp_path / "b.xtc").write_text("mine")
    status, said = run("chain.safetensors", "-n", "100", *QUICK, "--out", "b.xtc")
    assert status == 2 and "b.xtc exists already" in said and not (tmp_path / "b.h5").exists()


def test_torsions_and_warnings(run, tmp_path: Path) -> None:
    """A flow that is far from the force field, in one basin."""
    ala2_generator(ala2_data(tmp_path / "ala2.h5", frames=30)).save(tmp_path / "ala2.safetensors")
    options = ["--chains", "20", "--burn-in", "0", "--every", "1", "--hmc-steps", "3", "--dt", "3"]
    status, said = run("ala2.safetensors", "-n", "100", *options)
    assert status == 0 and "F(phi>0) - F(phi<0), ALA2, kT │ inf" in said
    assert "phi ALA2 │" in said and "psi ALA2 │" in said
    assert "ALA2: phi > 0 is never visited." in said and "lower --dt" in said
    assert "Chains are shorter than 20 autocorrelation times of energy, phi ALA2, psi ALA2" in said
    assert Path("exact.h5").exists()


def test_warnings_say_what_is_wrong_and_nothing_else() -> None:
    def said(flow: Moves, hmc: Moves, rows: int = 100, chains: int = 10) -> list[str]:
        memory = {"energy": Memory(4.0, 250.0), "phi ALA2": Memory(5.1, 200.0)}
        found = ChainSummary(chains, rows, Estimate(0.0, 1.0), {"ALA2": Estimate(1.0, 0.1)}, memory)
        return list(command.warnings({"flow": flow, "hmc": hmc}, found))

    good, none = Moves(1000, 800), Moves(0, 0)
    assert said(good, good, rows=102) == said(good, none, rows=102) == []
    (short,) = said(good, good)
    assert "20 autocorrelation times of phi ALA2," in short and "energy" not in short
    (rare,) = said(Moves(1000, 9), good, rows=102)
    assert rare.startswith("Only 0.9 % of the flow's proposals") and "train the model better" in rare
    assert said(Moves(1000, 10), good, rows=102) == []
    assert "lower --dt" in said(good, Moves(1000, 400), rows=102)[0]
    assert "cannot cross barriers" in said(none, good, rows=102)[0]
    assert "single chain" in said(good, good, rows=102, chains=1)[0]


def test_bad_input_is_one_sentence(run, tmp_path: Path) -> None:
    kf.save(bent_chain_generator().flow, tmp_path / "flow.safetensors")
    assert run("chain.safetensors", "-n", "50", *QUICK, "--out", "a.h5")[0] == 0
    (tmp_path / "text.h5").write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    for arguments, message in (
        (["none.safetensors"], "there is no model file none.safetensors; models that come with knotflow: "),
        (["flow.safetensors"], "holds a flow without a molecule"),
        (["chain.safetensors", "--out", "a.npz"], "ending in .h5, .xtc, .dcd or .pdb, got 'a.npz'"),
        (["chain.safetensors", "--dt", "0"], "--dt must be a positive number of femtoseconds, got 0."),
        (["chain.safetensors", "--flow-moves", "0", "--hmc-moves", "0"], "a cycle needs at least one move"),
        (["chain.safetensors", "-n", "0"], "Invalid value for '-n'"),
        (["chain.safetensors", *QUICK, "--seed", "1", "--out", "a.h5"], "seed 0, but you asked for seed 1"),
        (["chain.safetensors", *QUICK, "--float64", "--out", "a.h5"], "but you asked for dtype float64"),
        (["chain.safetensors", "--out", "text.h5"], "is not an HDF5 file"),
    ):
        status, said = run(*arguments)
        assert status == 2 and message in said, said
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_compared_with_dynamics(run_here, tmp_path: Path, monkeypatch) -> None:
    """``knotflow reproduce exact``."""
    from knotflow.energies import TorchForceField
    from tests.analysis.generators import chain_data

    monkeypatch.setattr(
        "knotflow.energies.choose.TorchForceField",
        lambda system, compiled: TorchForceField(system, compiled=False),
    )
    bent_chain_generator().float().save(tmp_path / "chain.safetensors")
    chain_data(tmp_path / "data.h5", n=1000)
    options = ["--data", "data.h5", "-n", "200", "--chains", "40", "--burn-in", "10", "--every", "3"]
    status, said = run_here("reproduce", "exact", "chain.safetensors", *options, "--out", "out")
    assert status == 0 and "200 samples of 40 chains, 1,000 frames of 20 replicas" in said
    row = re.search(r"mean energy, kT │ ([\d.]+) ± ([\d.]+) │ ([\d.]+) ± ([\d.]+) │ (-?[\d.]+)", said)
    a, a_error, b, b_error, z = map(float, row.groups())
    assert z == pytest.approx((a - b) / math.hypot(a_error, b_error), abs=0.2) and abs(z) < 4
    assert "Chains, numbers and the picture: out" in said and "phi" not in said
    assert {path.name for path in Path("out").iterdir()} == {
        "chains.h5",
        "chains.h5.state",
        "exact.json",
        "exact.png",
        "exact.toml",
    }
