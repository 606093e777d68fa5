"""``knotflow sample`` as a user runs it."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mdtraj
import numpy as np
import pytest
import torch

import knotflow as kf
from knotflow.energies import OpenMMEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.sampling import Sampler
from knotflow.storage.samples import read_samples
from tests.analysis.generators import chain, chain_generator
from tests.flows.generators import make


@pytest.fixture
def run(run_here) -> Callable[..., tuple[int, str]]:
    return partial(run_here, "sample")


@pytest.fixture
def model(tmp_path: Path) -> BoltzmannGenerator:
    """Of alanine dipeptide, torsions all the way round: some samples are mirror images."""
    model = make("ala2, circles", torch.float32)
    model.save(tmp_path / "model.safetensors")
    return model


def test_samples_of_a_run(run, tmp_path: Path) -> None:
    model = make("ala2, lines", torch.float32)
    model.save(tmp_path / "runs" / "mine" / "model.safetensors")
    status, said = run("runs/mine", "-n", "30", "--out", "new/a.h5", "--seed", "5")
    assert status == 0 and "30 samples of ala2 in" in said and "new/a.h5" in said
    assert "sampling: done in" in said and "per second" in said
    found = read_samples(tmp_path / "new" / "a.h5")
    assert len(found) == 30 and found.energies is None
    expected = {"command": "sample", "model": "model.safetensors", "samples": 30, "seed": 5, "float64": False}
    assert found.provenance.items() >= expected.items()
    _, log_prob = Sampler(model, 5).take(30)
    np.testing.assert_array_equal(found.log_prob, log_prob.double().numpy())
    # The densities belong to the positions of the file, as far as these are rounded.
    again = model.double().log_prob(torch.from_numpy(found.positions).double())
    np.testing.assert_allclose(found.log_prob, again.detach().numpy(), atol=0.05)
    assert mdtraj.load(str(tmp_path / "new" / "a.h5")).n_frames == 30
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.h5", "a.h5.toml"]


def test_weights_are_those_of_the_force_field(run, tmp_path: Path) -> None:
    system, n = chain(), 400
    chain_generator().save(tmp_path / "chain.safetensors")
    status, said = run("chain.safetensors", "-n", str(n), "--out", "a.h5", "--weights")
    assert status == 0 and "Weights that are not finite: 0." in said
    assert "handedness" not in said  # it has no stereocentre
    found = read_samples(tmp_path / "a.h5")
    with OpenMMEnergy(system, workers=1) as energy:
        u = energy.energy(torch.from_numpy(found.positions).double()).numpy()
    np.testing.assert_allclose(found.energies, u * system.kT, atol=0.01)
    np.testing.assert_allclose(found.log_weights, -found.energies / system.kT - found.log_prob, atol=1e-12)
    w = np.exp(found.log_weights - found.log_weights.max())
    share = 100 * w.sum() ** 2 / (n * (w**2).sum())
    told = float(re.search(r"Effective sample size: ([\d.]+) % of 400\.", said)[1])
    assert told == pytest.approx(share, rel=0.01) and 10 < share < 100


def test_neither_batch_nor_number_change_the_samples(run, tmp_path: Path, model: BoltzmannGenerator) -> None:
    for name, *options in (["a.h5", "--batch", "7"], ["b.h5"], ["c.h5", "--seed", "1"]):
        assert run("model.safetensors", "-n", "40", "--out", name, *options)[0] == 0
    assert run("model.safetensors", "-n", "12", "--out", "d.h5")[0] == 0
    a, b, c, d = (read_samples(tmp_path / f"{name}.h5") for name in "abcd")
    np.testing.assert_array_equal(a.positions, b.positions)
    np.testing.assert_array_equal(a.log_prob, b.log_prob)
    np.testing.assert_array_equal(a.positions[:12], d.positions)
    assert (a.log_prob != c.log_prob).all()


def test_handedness(run, tmp_path: Path, model: BoltzmannGenerator) -> None:
    status, said = run("model.safetensors", "-n", "50", "--out", "a.h5")
    found = read_samples(tmp_path / "a.h5")
    assert status == 0 and model.chirality.matches(torch.from_numpy(found.positions)).all()
    mirrored, drawn = found.provenance["mirrored"], found.provenance["drawn"]
    assert f"Wrong handedness: {mirrored:,} of {drawn:,} drawn" in said and "left out" in said
    assert 0 < mirrored < drawn
    assert ("so the data of the training probably were, too" in said) == (2 * mirrored > drawn)
    status, said = run("model.safetensors", "-n", "50", "--out", "b.h5", "--keep-mirrored")
    kept = read_samples(tmp_path / "b.h5")
    right = model.chirality.matches(torch.from_numpy(kept.positions))
    assert status == 0 and ", kept." in said and 0 < int(right.sum()) < 50
    np.testing.assert_array_equal(kept.log_prob[right.numpy()], found.log_prob[: int(right.sum())])


@pytest.mark.parametrize("suffix", ["xtc", "dcd", "pdb"])
def test_other_formats(run, tmp_path: Path, model: BoltzmannGenerator, suffix: str) -> None:
    assert run("model.safetensors", "-n", "20", "--out", "a.h5")[0] == 0
    status, said = run("model.safetensors", "-n", "20", "--out", f"b.{suffix}", "--batch", "8")
    assert status == 0 and f"b.{suffix} and b.csv" in said
    reference = mdtraj.load(str(tmp_path / "a.h5"))
    found = mdtraj.load(str(tmp_path / f"b.{suffix}"), top=reference.topology)
    np.testing.assert_allclose(found.xyz, reference.xyz, atol=6e-4)
    rows = (tmp_path / "b.csv").read_text().split()
    assert rows[0] == "logProbability"
    np.testing.assert_array_equal([float(row) for row in rows[1:]], read_samples(tmp_path / "a.h5").log_prob)


def test_double_precision(run, tmp_path: Path, model: BoltzmannGenerator) -> None:
    assert run("model.safetensors", "-n", "20", "--out", "a.h5", "--float64")[0] == 0
    found = read_samples(tmp_path / "a.h5")
    assert found.provenance["float64"] is True
    assert (found.log_prob != found.log_prob.astype(np.float32)).any()
    _, log_prob = Sampler(model.double()).take(20)
    np.testing.assert_array_equal(found.log_prob, log_prob.numpy())


def test_existing_files(run, tmp_path: Path, model: BoltzmannGenerator) -> None:
    (tmp_path / "a.h5").write_text("mine")
    status, said = run("model.safetensors", "-n", "5", "--out", "a.h5")
    assert status == 2 and "a.h5 exists already" in said and (tmp_path / "a.h5").read_text() == "mine"
    assert run("model.safetensors", "-n", "5", "--out", "a.h5", "--overwrite")[0] == 0
    assert len(read_samples(tmp_path / "a.h5")) == 5


def test_ctrl_c_leaves_nothing(run, tmp_path: Path, model: BoltzmannGenerator, monkeypatch) -> None:
    honest, calls = Sampler.take, []

    def interrupted(self: Sampler, n: int, **options):
        calls.append(n)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return honest(self, n, **options)

    monkeypatch.setattr(Sampler, "take", interrupted)
    status, said = run("model.safetensors", "-n", "20", "--batch", "10", "--out", "a.xtc")
    assert status == 130 and "Stopped; a.xtc was not written." in said
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_bad_input_is_one_sentence(run, tmp_path: Path, model: BoltzmannGenerator) -> None:
    (tmp_path / "empty").mkdir()
    kf.save(model.flow, tmp_path / "flow.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    before = sorted(path.name for path in tmp_path.iterdir())
    for arguments, message in (
        (["none.safetensors"], "there is no model file none.safetensors; models that come with knotflow: "),
        (["empty"], "there is no model.safetensors in empty; a training writes it at its end"),
        (["flow.safetensors"], "holds a flow without a molecule"),
        (["half.safetensors"], "is not a .safetensors file, or is damaged"),
        (["model.safetensors", "--out", "a.npz"], "ending in .h5, .xtc, .dcd or .pdb, got 'a.npz'"),
        (["model.safetensors", "--out", "empty"], "ending in .h5"),
        (["model.safetensors", "-n", "0"], "Invalid value for '-n'"),
        (["model.safetensors", "--batch", "0"], "Invalid value for '--batch'"),
    ):
        status, said = run(*arguments)
        assert status == 2 and message in said, said
        assert sorted(path.name for path in tmp_path.iterdir()) == before


WITHOUT_OPENMM = """
import sys
sys.modules["openmm"] = None  # as if it were not installed
import typer
from knotflow.cli.sample import sample
typer.run(sample)
"""


def test_only_weights_need_openmm(tmp_path: Path, model: BoltzmannGenerator) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_OPENMM, "model.safetensors", "-n", "10", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    for suffix in ("h5", "pdb"):
        done = call("--out", f"a-{suffix}.{suffix}")
        assert done.returncode == 0, done.stderr
    assert (
        len(read_samples(tmp_path / "a-h5.h5")) == 10 and mdtraj.load(tmp_path / "a-pdb.pdb").n_frames == 10
    )
    done = call("--out", "b.h5", "--weights")
    assert done.returncode != 0 and "openmm, not installed here" in done.stderr
    assert not (tmp_path / "b.h5").exists()
