"""Numbers behind figures 3 and 7 to 9: those of model and force field, kept and found again."""

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from knotflow.energies import OpenMMEnergy
from knotflow.paper import molecule_figures as looks
from knotflow.paper.molecule_figures import Look, Looks
from knotflow.storage import trajectory
from tests.analysis.generators import ala2_data, ala2_generator


def look(n: int = 6) -> Look:
    rng = np.random.default_rng(n)
    force = rng.normal(size=(2, n, 4, 3))
    return Look(rng.uniform(-3, 3, (n, 2)), rng.normal(size=n), rng.normal(size=n) + 100, *force)


def test_errors_of_forces() -> None:
    one = look()
    squares = [((one.flow_force[i] - one.true_force[i]) ** 2).sum() / 12 for i in range(6)]
    assert one.force_error == pytest.approx(np.mean(squares))
    assert one.median_force_error == pytest.approx(np.median(squares))
    clash = replace(one, true_force=one.true_force * np.where(np.arange(6) == 0, 1e9, 1)[:, None, None])
    assert clash.force_error > 1e12 and clash.median_force_error < 10
    nothing = replace(one, true_force=one.true_force[:0], flow_force=one.flow_force[:0])
    assert math.isnan(nothing.force_error) and math.isnan(nothing.median_force_error)


def test_energies_share_their_minimum() -> None:
    one = look()
    assert one.shifted.min() == pytest.approx(one.energy.min())
    np.testing.assert_allclose(np.diff(one.shifted), np.diff(one.flow_energy))
    outside = replace(one, flow_energy=np.where(np.arange(6) == 2, np.inf, one.flow_energy))
    assert np.isinf(outside.shifted[2]) and np.isfinite(np.delete(outside.shifted, 2)).all()
    lost = replace(one, flow_energy=np.full(6, np.inf))
    assert np.isinf(lost.shifted).all()


def test_kept_and_found_again(tmp_path: Path) -> None:
    pair, file = Looks(look(), look(4)), tmp_path / "a.npz"
    assert looks.load(file, "a") is None
    looks.save(pair, file, "a")
    found = looks.load(file, "a")
    assert found is not None and looks.load(file, "b") is None
    for side in ("data", "samples"):
        for field in fields(Look):
            kept, given = (getattr(getattr(x, side), field.name) for x in (found, pair))
            np.testing.assert_allclose(kept, given, rtol=1e-6)


def test_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ala2_data(tmp_path / "ala2.h5", frames=20)
    split = {"file": data.name, "frames": 40, "kind": "time", "validation": [[30, 40]]}
    generator, model = ala2_generator(data), tmp_path / "model.safetensors"
    generator.save(model, split=split)
    found = looks.run(model, data, tmp_path / "looks.npz", 30)
    frames, system = trajectory.read(data), trajectory.open_info(data).system
    rows = slice(30, 40)
    x = torch.from_numpy(frames.positions[rows]).to(next(generator.parameters()).dtype)
    np.testing.assert_allclose(found.data.energy, frames.energies[rows] / system.kT, atol=1e-2)
    np.testing.assert_allclose(found.data.true_force, frames.forces[rows] / system.kT, rtol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(found.data.flow_energy, -generator.log_prob(x), rtol=1e-5)
    np.testing.assert_allclose(found.data.flow_force, generator.force(x).detach(), rtol=1e-3, atol=1e-2)
    assert len(found.samples.energy) == 30 and found.samples.torsions.shape == (30, 2)

    monkeypatch.setattr(looks, "OpenMMEnergy", None)
    again = looks.run(model, data, tmp_path / "looks.npz", 30)
    np.testing.assert_allclose(again.samples.flow_energy, found.samples.flow_energy, rtol=1e-6)
    monkeypatch.setattr(looks, "OpenMMEnergy", OpenMMEnergy)
    assert len(looks.run(model, data, tmp_path / "looks.npz", 20).samples.energy) == 20
