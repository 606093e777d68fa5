"""The table of frames and samples: columns, and the structures that pictures are made of."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from knotflow.analysis import frame_table
from knotflow.analysis.evaluation import evaluate
from knotflow.analysis.frame_table import observe_data, observe_samples, only_kept, rows_to_judge_by, spaced
from knotflow.analysis.measures import reweighted, without_data
from knotflow.energies import OpenMMEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.storage import trajectory
from tests.analysis.generators import ala2_data, ala2_generator, chain, chain_data, chain_generator
from tests.molecules.molecules import molecule


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return ala2_data(tmp_path_factory.mktemp("table") / "ala2.h5")


@pytest.fixture(scope="module")
def generator(data: Path) -> BoltzmannGenerator:
    return ala2_generator(data)


@pytest.fixture(scope="module")
def energy() -> OpenMMEnergy:
    with OpenMMEnergy(molecule("ala2"), workers=1) as energy:
        yield energy


def test_samples_have_the_energies_forces_and_coordinates_of_their_positions(generator, energy) -> None:
    found = observe_samples(generator, energy, 40, seed=3)
    assert len(found) == 40 and found.positions.shape == (40, 22, 3)
    drawn = generator.sample(40, generator=torch.Generator().manual_seed(3))
    assert np.array_equal(found.positions, drawn.numpy())
    u, force = energy.energy_and_force(drawn)
    assert np.allclose(found.energy, u.double(), rtol=1e-5)
    true, learned = found.forces
    assert np.allclose(true, force.double(), rtol=1e-4, atol=1e-2)
    assert np.allclose(learned, generator.force(drawn).detach().double(), rtol=1e-4, atol=1e-2)
    q, _ = generator.internal(drawn)
    assert np.allclose(found.coordinates, q.double(), atol=1e-6)
    assert np.allclose(found.force_error, ((learned - true) ** 2).mean((1, 2)))


def test_data_are_those_held_back_with_the_forces_of_the_file(data, generator, energy) -> None:
    split = {"file": "ala2.h5", "frames": 120, "kind": "time", "validation": [[60, 120]]}
    selected, rows = rows_to_judge_by(split, data, 120)
    found = observe_data(generator, data, energy, selected)
    frames = trajectory.read(data)
    assert rows == "validation" and np.array_equal(found.positions, frames.positions[60:])
    inside = np.isfinite(found.log_prob)
    expected = frames.forces[60:][inside] / molecule("ala2").kT
    true, learned = found.forces
    assert np.allclose(true, expected) and learned.shape == expected.shape
    by_hand = ((learned - expected) ** 2).mean() / (expected**2).mean()
    assert found.unexplained.value == pytest.approx(by_hand, rel=1e-5)


def test_structures_are_those_of_a_few_evenly_spaced_rows(data, generator, energy, monkeypatch) -> None:
    monkeypatch.setattr(frame_table, "STRUCTURES", 30)
    monkeypatch.setattr(frame_table, "FORCES", 10)
    selected, rows = rows_to_judge_by(None, data, 120)
    found, frames = observe_data(generator, data, energy, selected), trajectory.read(data)
    assert rows == "all" and len(found) == 120
    assert np.array_equal(found.positions, frames.positions[::4]) and len(found.forces[0]) == 10
    # A pass over these rows alone gives the same pictures.
    alone = observe_data(generator, data, energy, only_kept(selected, 22))
    shown = found.pictured()
    assert len(alone) == len(shown) == 30 and np.array_equal(alone.positions, shown.positions)
    np.testing.assert_array_equal(alone.energy, shown.energy)
    np.testing.assert_allclose(alone.forces[1], shown.forces[1], rtol=1e-4, atol=1e-2)
    # Of large molecules there are fewer.
    monkeypatch.setattr(frame_table, "ATOMS_KEPT", 2200)
    monkeypatch.setattr(frame_table, "STRUCTURES", 1000)
    assert len(observe_data(generator, data, energy, selected).kept) == 100
    monkeypatch.setattr(frame_table, "STRUCTURES", 30)
    # Of long data, they are among the rows that have forces.
    monkeypatch.setattr(frame_table, "FRAMES_WITH_FORCES", 50)
    sparse = observe_data(generator, data, energy, selected)
    assert np.isfinite(sparse.force_error).sum() == 40 and len(sparse.kept) == 30
    assert (sparse.kept % 3 == 0).all() and len(sparse.forces[0]) == 10


def copied(path: Path, source: Path, x: np.ndarray, forces: np.ndarray) -> Path:
    trajectory.create(path, trajectory.open_info(source).system, {})
    trajectory.append(path, replace(trajectory.read(source), positions=x, forces=forces), at=0)
    return path


SWAP = np.array([0, 1, 3, 2, *range(4, 22)])
"""Two hydrogens of the first methyl group exchanged."""


def test_frames_are_labelled_as_the_model_is(data, generator, energy, tmp_path: Path, caplog) -> None:
    frames, selected = trajectory.read(data), np.ones(120, dtype=bool)
    x, forces = frames.positions.copy(), frames.forces.copy()
    x[50:], forces[50:] = x[50:, SWAP], forces[50:, SWAP]
    path = copied(tmp_path / "other.h5", data, x, forces)
    expected, found = (observe_data(generator, file, energy, selected) for file in (data, path))
    for name in (*frame_table.COLUMNS, "positions", "coordinates", "true_force", "flow_force"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert caplog.messages == [
        "In 70 of 120 frames the labels of equivalent hydrogens (H2/H3 of ACE1) were exchanged to match the "
        "model."
    ]


def test_a_model_of_another_order_keeps_it(data, energy, tmp_path: Path, caplog) -> None:
    """Earlier versions trained on data in any order; such a model is judged in its own."""
    frames, selected = trajectory.read(data), np.ones(120, dtype=bool)
    path = copied(tmp_path / "other.h5", data, frames.positions[:, SWAP], frames.forces[:, SWAP])
    old = ala2_generator(path)
    found = observe_data(old, path, energy, selected)
    np.testing.assert_array_equal(found.positions, frames.positions[:, SWAP])
    assert np.isfinite(found.log_prob).all() and not caplog.messages
    again = observe_data(old, data, energy, selected)
    np.testing.assert_array_equal(again.log_prob, found.log_prob)
    assert "In 120 of 120 frames" in caplog.text


def test_mirror_images_are_no_part_of_the_table(
    data, generator, energy, tmp_path: Path, caplog, monkeypatch
) -> None:
    frames, selected = trajectory.read(data), np.ones(120, dtype=bool)
    mirrored = np.zeros(120, dtype=bool)
    mirrored[[0, 8, 9, 77]] = True
    sign = np.where(mirrored, -1, 1)[:, None, None]
    path = copied(tmp_path / "some.h5", data, sign * frames.positions, sign * frames.forces)
    monkeypatch.setattr(frame_table, "STRUCTURES", 30)
    whole, found = (observe_data(generator, file, energy, selected) for file in (data, path))
    assert len(found) == 116 and found.handed.all()
    np.testing.assert_array_equal(found.energy, whole.energy[~mirrored])
    np.testing.assert_array_equal(found.positions, frames.positions[::4][~mirrored[::4]])
    np.testing.assert_array_equal(found.energy[found.kept], whole.energy[::4][~mirrored[::4]])
    assert "4 of 120 frames are of the other hand than the model at ALA2-CA" in caplog.text
    # A pass over the rows of the pictures alone shows the same ones.
    alone = observe_data(generator, path, energy, only_kept(selected, 22))
    np.testing.assert_array_equal(alone.positions, found.pictured().positions)
    evaluation = evaluate(generator, path, energy, samples=20)
    about = evaluation.about["data"]
    assert (about["frames"], about["mirrored"], about["relabelled"]) == (116, 4, 0)
    path = copied(tmp_path / "all.h5", data, -frames.positions, -frames.forces)
    with pytest.raises(ValueError, match=r"120 of 120 frames in .* are of the other hand than the model"):
        observe_data(generator, path, energy, selected)


def test_rows_without_structures(generator, energy) -> None:
    found = observe_samples(generator, energy, 5, seed=0)
    some = found.of_rows(np.array([1, 4]))
    assert len(some) == 2 and some.energy.tolist() == found.energy[[1, 4]].tolist()
    assert len(some.torsions["ALA2"]) == 2 and len(some.positions) == len(some.kept) == 0
    assert len(found.of_rows(slice(0))) == 0


def test_data_of_another_molecule_are_refused(tmp_path: Path, generator, energy) -> None:
    other = chain_data(tmp_path / "chain.h5", n=10, replicas=1)
    with pytest.raises(ValueError, match="the model is of ala2 with 22 atoms, the data of chain with 4"):
        observe_data(generator, other, energy, np.ones(10, dtype=bool))


def test_measures_without_data_are_those_of_an_evaluation(tmp_path: Path) -> None:
    path, model = chain_data(tmp_path / "chain.h5", n=200), chain_generator()
    with OpenMMEnergy(chain(), workers=1) as energy:
        whole = evaluate(model, path, energy, samples=500, seed=1).measures
        found = without_data(observe_samples(model, energy, 500, 1), 1)
        alone = evaluate(model, None, energy, samples=500, seed=1)
    assert alone.measures == found and alone.residues == {} and "data" not in alone.about
    same = ("log_z", "ess", "ess_clipped", "pareto_k", "force_error_samples", "wrong_handed", "not_finite")
    for key in same:
        assert found[key].value == pytest.approx(whole[key].value, rel=1e-9), key
        assert found[key].text == whole[key].text
    assert found["log_z"].error == pytest.approx(whole["log_z"].error, rel=1e-9)
    assert "nll" not in found and "force_error" not in found
    # With log Z of importance sampling: the mean of the work plus log Z.
    assert found["reverse_kl"].value == pytest.approx(whole["reverse_kl"].value, abs=0.2)


def test_reweighted_are_normalised_weights(generator, energy) -> None:
    weight = reweighted(observe_samples(generator, energy, 50, seed=0))
    assert weight.sum() == pytest.approx(1) and (weight >= 0).all()


@pytest.mark.parametrize(("n", "most"), [(0, 5), (3, 5), (5, 5), (7, 5), (1000, 7)])
def test_spaced_rows_are_different_and_within(n: int, most: int) -> None:
    rows = spaced(n, most)
    assert len(rows) == min(n, most) == len(set(rows))
    assert not n or (rows[0] == 0 and rows[-1] < n)
    gaps = np.diff(rows)
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


def test_no_forces_leave_nothing_to_explain(generator, energy) -> None:
    found = observe_samples(generator, energy, 2, seed=0)
    empty = replace(found, flow_force=found.flow_force * np.nan)
    assert math.isnan(empty.unexplained.value) and len(empty.forces[0]) == 0
