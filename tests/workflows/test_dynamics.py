"""Dynamics of model files: which energy, from which frames, and what is known of a run that is there."""

from pathlib import Path

import numpy as np
import pytest

from knotflow.dynamics import DynamicsConfig
from knotflow.inputs import made_of
from knotflow.storage import trajectory
from knotflow.workflows.dynamics import DynamicsRun, labelled
from tests.analysis.generators import ala2_data, ala2_generator, chain_data, chain_generator

CONFIG = DynamicsConfig(replicas=2, equilibration=0.0005, production=0.001, every=1)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """A model and the data of its training, of which ten frames were held back."""
    data, model = chain_data(tmp_path / "chain.h5", n=40, replicas=1), tmp_path / "model.safetensors"
    split = {"file": data.name, "frames": 40, "kind": "time", "validation": [[30, 40]]}
    chain_generator().save(model, split=split)
    return model, data


def test_a_run_is_known_by_its_inputs(made: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = made
    run = DynamicsRun(model, data, tmp_path / "run", CONFIG)
    assert run.found is None and not (run.finished or run.begun or run.compiles)
    record = run.run()
    assert run.finished and made_of(run.found, run.inputs)
    other = DynamicsRun(model, data, tmp_path / "run", CONFIG.model_copy(update={"seed": 1}))
    assert not made_of(other.found, other.inputs)
    with pytest.raises(ValueError, match=r"record\.npz holds dynamics made with config\.seed 0, but you"):
        other.run()
    # In memory it is the same.
    again = DynamicsRun(model, data, config=CONFIG)
    np.testing.assert_array_equal(again.run().total, record.total)
    assert again.found is None and not again.finished


def test_frames_held_back_come_first(made: tuple[Path, Path]) -> None:
    model, data = made
    positions = trajectory.read(data).positions

    def rows(run: DynamicsRun) -> list[int]:
        return [int(np.flatnonzero((positions == frame).all((1, 2)))[0]) for frame in run.frames]

    many = CONFIG.model_copy(update={"replicas": 10})
    assert rows(DynamicsRun(model, data, config=many)) == list(range(30, 40))
    assert min(rows(DynamicsRun(model, data, config=many, all_frames=True))) < 30
    split = {"file": data.name, "frames": 40, "kind": "time", "validation": [[0, 10]]}
    assert rows(DynamicsRun(None, data, config=many, split=split)) == list(range(10))


def test_the_energy_is_the_flows_or_the_force_fields(made: tuple[Path, Path]) -> None:
    model, data = made
    flow, true, alone = (
        DynamicsRun(*of, config=CONFIG, true=true)
        for of, true in (((model, data), False), ((model, data), True), ((None, data), False))
    )
    assert flow.setting.about["energy"] == "flow" and flow.setting.about["model"] is not None
    assert true.setting.about == alone.setting.about
    assert alone.setting.about == {"energy": "force field", "model": None, "compiled": "off"}
    assert DynamicsRun(model, config=CONFIG).frames.shape == (2, 4, 3), "samples of the model"
    with pytest.raises(ValueError, match="give a trajectory as data"):
        DynamicsRun(model, config=CONFIG, true=True)


def test_frames_are_labelled_as_the_model_is(tmp_path: Path) -> None:
    data = ala2_data(tmp_path / "ala2.h5", frames=5)
    model = tmp_path / "model.safetensors"
    ala2_generator(data).save(model)
    frames = trajectory.read(data)
    x = frames.positions.copy()
    x[:, [2, 3]] = x[:, [3, 2]]
    np.testing.assert_array_equal(labelled(model, data, x), frames.positions)
    x[3] *= -1
    with pytest.raises(
        ValueError, match=r"1 of 10 frames chosen from .* are of the other hand than the model"
    ):
        labelled(model, data, x)
