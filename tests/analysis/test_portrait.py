"""Frames, forces and maps that pictures are made of."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from knotflow.analysis import portrait
from knotflow.analysis.evaluation import evaluate
from knotflow.energies import OpenMMEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.storage import trajectory
from tests.analysis.generators import ala2_data, ala2_generator, chain, chain_data, chain_generator
from tests.flows import generators
from tests.molecules.molecules import molecule


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return ala2_data(tmp_path_factory.mktemp("portrait") / "ala2.h5")


@pytest.fixture(scope="module")
def generator(data: Path) -> BoltzmannGenerator:
    return ala2_generator(data)


@pytest.fixture(scope="module")
def energy() -> OpenMMEnergy:
    with OpenMMEnergy(molecule("ala2"), workers=1) as energy:
        yield energy


def test_samples_have_the_energies_forces_and_coordinates_of_their_positions(generator, energy) -> None:
    found = portrait.of_samples(generator, energy, 40, seed=3)
    assert len(found) == 40 and found.positions.shape == (40, 22, 3)
    drawn = generator.sample(40, generator=torch.Generator().manual_seed(3))
    assert np.array_equal(found.positions, drawn.numpy())
    u, force = energy.energy_and_force(drawn)
    assert np.allclose(found.seen.energy, u.double(), rtol=1e-5)
    assert np.allclose(found.true_force, force.double(), rtol=1e-4, atol=1e-2)
    assert np.allclose(found.flow_force, generator.force(drawn).detach().double(), rtol=1e-4, atol=1e-2)
    q, _ = generator.internal(drawn)
    assert np.allclose(found.coordinates, q.double(), atol=1e-6)


def test_data_are_those_held_back_with_the_forces_of_the_file(data, generator, energy, monkeypatch) -> None:
    split = {"file": "ala2.h5", "frames": 120, "kind": "time", "validation": [[60, 120]]}
    found = portrait.of_data(generator, data, energy, split=split)
    frames = trajectory.read(data)
    assert np.array_equal(found.positions, frames.positions[60:])
    inside = np.isfinite(found.seen.log_prob)
    expected = frames.forces[60:][inside] / molecule("ala2").kT
    assert np.allclose(found.true_force, expected) and found.flow_force.shape == expected.shape
    by_hand = ((found.flow_force - expected) ** 2).mean() / (expected**2).mean()
    assert found.unexplained == pytest.approx(by_hand, rel=1e-5)
    monkeypatch.setattr(portrait, "FRAMES", 30)
    monkeypatch.setattr(portrait, "FORCES", 10)
    some = portrait.of_data(generator, data, energy)
    assert np.array_equal(some.positions, frames.positions[::4]) and len(some.true_force) == 10


def test_data_of_another_molecule_are_refused(tmp_path: Path, generator, energy) -> None:
    other = chain_data(tmp_path / "chain.h5", n=10, replicas=1)
    with pytest.raises(ValueError, match="the model is of ala2 with 22 atoms, the data of chain with 4"):
        portrait.of_data(generator, other, energy)


def test_measures_without_data_are_those_of_an_evaluation(tmp_path: Path) -> None:
    path, model = chain_data(tmp_path / "chain.h5", n=200), chain_generator()
    with OpenMMEnergy(chain(), workers=1) as energy:
        whole = evaluate(model, path, energy, samples=500, seed=1).measures
        found = portrait.without_data(portrait.of_samples(model, energy, 500, 1).seen, 1)
    same = ("log_z", "ess", "ess_clipped", "pareto_k", "force_error_samples", "wrong_handed", "not_finite")
    for key in same:
        assert found[key].value == pytest.approx(whole[key].value, rel=1e-9), key
        assert found[key].text == whole[key].text
    assert found["log_z"].error == pytest.approx(whole["log_z"].error, rel=1e-9)
    assert "nll" not in found and "force_error" not in found
    # With log Z of importance sampling: the mean of the work plus log Z.
    assert found["reverse_kl"].value == pytest.approx(whole["reverse_kl"].value, abs=0.2)


@pytest.mark.parametrize("name", ["ala2, circles", "ala2, lines"])
def test_maps_have_the_slopes_they_say(name: str) -> None:
    model = generators.make(name)
    q = model.internal(generators.positions(model, 30))[0]
    q = model.flow.sample(30, generator=torch.Generator().manual_seed(0)) if "circles" in name else q
    found = portrait.learned_maps(model, q.detach().numpy(), points=6)
    assert [learned.name.split()[0] for learned in found] == ["torsion", "angle", "bond"]
    for learned in found:
        assert learned.y.shape == learned.slopes.shape == (6, portrait.GRID)
        assert learned.name in model.coordinates.names
        slopes = np.diff(learned.y, axis=1) / np.diff(learned.x)
        middle = (learned.slopes[:, 1:] + learned.slopes[:, :-1]) / 2
        known = np.isfinite(slopes)
        assert known.mean() > 0.98  # the rest are at the seam
        assert np.allclose(slopes[known], middle[known], rtol=0.05, atol=0.02)
        assert np.nanmax(np.abs(np.diff(learned.y, axis=1))) < (learned.x[-1] - learned.x[0]) / 2


def test_reweighted_are_normalised_weights(generator, energy) -> None:
    seen = portrait.of_samples(generator, energy, 50, seed=0).seen
    weight = portrait.reweighted(seen)
    assert weight.sum() == pytest.approx(1) and (weight >= 0).all()


@pytest.mark.parametrize(("n", "most"), [(0, 5), (3, 5), (5, 5), (7, 5), (1000, 7)])
def test_spaced_rows_are_different_and_within(n: int, most: int) -> None:
    rows = portrait.spaced(n, most)
    assert len(rows) == min(n, most) == len(set(rows))
    assert not n or (rows[0] == 0 and rows[-1] < n)
    gaps = np.diff(rows)
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


def test_no_forces_leave_nothing_to_explain(generator, energy) -> None:
    found = portrait.of_samples(generator, energy, 2, seed=0)
    empty = portrait.Portrait(
        found.seen, found.positions, found.coordinates, found.true_force[:0], found.flow_force[:0]
    )
    assert math.isnan(empty.unexplained)
