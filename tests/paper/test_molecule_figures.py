"""Numbers behind figures 3 and 7 to 9: those of model and force field, kept and found again."""

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from knotflow.analysis.frame_table import FrameTable
from knotflow.paper import molecule_figures
from knotflow.paper.molecule_figures import ShownFrames, frame_errors, shifted_flow_energy
from knotflow.storage import trajectory
from tests.analysis.generators import ala2_data, ala2_generator


def table(n: int = 6) -> FrameTable:
    rng = np.random.default_rng(n)
    log_prob, paper, energy, error, trip = rng.normal(size=(5, n))
    force, replica = rng.normal(size=(2, n, 4, 3)).astype(np.float32), np.zeros(n, np.int32)
    structures = {"kept": np.arange(n), "true_force": force[0], "flow_force": force[1]}
    torsions = {"ALA2": rng.uniform(-3, 3, (n, 2))}
    return FrameTable(log_prob - 100, paper, energy, energy > 0, error, trip, replica, torsions, **structures)


def test_errors_of_forces() -> None:
    one = table()
    squares = [((one.flow_force[i] - one.true_force[i]) ** 2).sum() / 12 for i in range(6)]
    np.testing.assert_allclose(frame_errors(one), squares, rtol=1e-6)
    clash = replace(one, true_force=one.true_force * np.where(np.arange(6) == 0, 1e9, 1)[:, None, None])
    assert frame_errors(clash).mean() > 1e12 and np.median(frame_errors(clash)) < 10
    nothing = replace(one, true_force=one.true_force * math.nan)
    assert np.isnan(frame_errors(nothing)).all()


def test_energies_share_their_minimum() -> None:
    one = table()
    shifted = shifted_flow_energy(one)
    assert shifted.min() == pytest.approx(one.energy.min())
    np.testing.assert_allclose(np.diff(shifted), np.diff(-one.log_prob))
    outside = replace(one, log_prob=np.where(np.arange(6) == 2, -np.inf, one.log_prob))
    found = shifted_flow_energy(outside)
    assert np.isinf(found[2]) and np.isfinite(np.delete(found, 2)).all()
    assert np.isinf(shifted_flow_energy(replace(one, log_prob=np.full(6, -np.inf)))).all()


def test_kept_and_found_again(tmp_path: Path) -> None:
    pair, file = ShownFrames(table(), table(4)), tmp_path / "a.npz"
    assert molecule_figures.load(file, "a") is None
    molecule_figures.save(pair, file, "a")
    found = molecule_figures.load(file, "a")
    assert found is not None and molecule_figures.load(file, "b") is None
    for side in ("data", "samples"):
        kept, given = getattr(found, side), getattr(pair, side)
        for field in fields(FrameTable):
            if field.name not in ("torsions", "angles", "positions", "coordinates"):
                np.testing.assert_allclose(getattr(kept, field.name), getattr(given, field.name), rtol=1e-6)
        np.testing.assert_allclose(kept.torsions["ALA2"], given.torsions["ALA2"], rtol=1e-6)
        np.testing.assert_allclose(kept.forces, given.forces, rtol=1e-6)


def test_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ala2_data(tmp_path / "ala2.h5", frames=20)
    split = {"file": data.name, "frames": 40, "kind": "time", "validation": [[30, 40]]}
    generator, model = ala2_generator(data), tmp_path / "model.safetensors"
    generator.save(model, split=split)
    found = molecule_figures.run(model, data, tmp_path / "looks.npz", 30)
    frames, system = trajectory.read(data), trajectory.open_info(data).system
    rows = slice(30, 40)
    x = torch.from_numpy(frames.positions[rows]).to(next(generator.parameters()).dtype)
    np.testing.assert_allclose(found.data.energy, frames.energies[rows] / system.kT, atol=1e-2)
    np.testing.assert_allclose(found.data.forces[0], frames.forces[rows] / system.kT, rtol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(-found.data.log_prob, -generator.log_prob(x), rtol=1e-5)
    np.testing.assert_allclose(found.data.forces[1], generator.force(x).detach(), rtol=1e-3, atol=1e-2)
    assert len(found.samples.energy) == 30 and found.samples.torsions["ALA2"].shape == (30, 2)

    monkeypatch.setattr(molecule_figures, "observe_data", None)
    again = molecule_figures.run(model, data, tmp_path / "looks.npz", 30)
    np.testing.assert_allclose(again.samples.log_prob, found.samples.log_prob, rtol=1e-6)
    monkeypatch.undo()
    assert len(molecule_figures.run(model, data, tmp_path / "looks.npz", 20).samples.energy) == 20
