"""``knotflow dynamics`` and ``knotflow reproduce dynamics`` as a user runs them; drift in ``evaluate``."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mdtraj
import numpy as np
import pytest
import torch

from knotflow.cli import dynamics as command
from knotflow.cli.progress import Display
from knotflow.dynamics import DynamicsConfig, FlowEnergy, Record, run
from knotflow.energies import TorchForceField
from knotflow.energies.torch_force_field import frames_at_once
from knotflow.files import read_json
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.inputs import file_fingerprint
from knotflow.storage import trajectory
from knotflow.workflows.dynamics import frames_of, on_flow, on_force_field, samples_of
from tests.analysis.generators import ala2_data, chain, chain_data
from tests.dynamics.wrong_flows import bent_chain_generator, boxed_chain_generator

SHORT = ("--replicas", "3", "--dt", "0.5", "--equilibration", "0.01", "--production", "0.02", "--every", "4")
CONFIG = DynamicsConfig(replicas=3, dt=5e-4, equilibration=0.01, production=0.02, every=4)


@pytest.fixture
def moved(run_here, monkeypatch) -> Callable[..., tuple[int, str]]:
    monkeypatch.setenv("COLUMNS", "160")
    return partial(run_here, "dynamics")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with data of the chain and a run, half of whose frames were held out."""
    folder = tmp_path_factory.mktemp("made")
    data = chain_data(folder / "chain.h5", n=200, replicas=4)
    split = {"file": data.name, "frames": 200, "kind": "time", "validation": [[100, 200]]}
    (folder / "run").mkdir()
    bent_chain_generator().float().save(folder / "run" / "model.safetensors", split=split)
    return folder


def test_a_run_and_what_it_leaves(moved, made: Path, tmp_path: Path) -> None:
    model, data = made / "run" / "model.safetensors", made / "chain.h5"
    status, said = moved(str(model), str(data), *SHORT, "--out", "out", "--trajectory", "new/t.xtc")
    assert status == 0, said
    for text in (
        "chain on its flow: 0.01 ps with a thermostat, 0.02 ps without, steps of 0.5 fs",
        "│ molecules │ 3 │",
        "│ broken │ 0 │",
        "kT/ps",
        "dynamics: done in",
        "3 of 3 whole",
        "Results: out, new/t.xtc",
    ):
        assert text in said, said
    written = {"record.npz", "drift.json", "energy.png", "dynamics.toml"}
    assert {path.name for path in Path("out").iterdir()} == written
    assert Path("out/energy.png").read_bytes().startswith(b"\x89PNG")

    # The same by the functions behind it, from frames that were held out.
    held = trajectory.read(data).positions[100:]
    chosen = frames_of(
        data, chain(), 3, split={"file": "chain.h5", "frames": 200, "validation": [[100, 200]]}
    )
    assert all((held == frame).all((1, 2)).any() for frame in chosen)
    generator = BoltzmannGenerator.load(model).double()
    expected = run(FlowEnergy(generator), chain(), chosen, CONFIG)
    found = Record.load("out/record.npz")
    np.testing.assert_array_equal(found.potential, expected.potential)
    np.testing.assert_array_equal(found.positions, expected.positions)
    assert found.about["model"] == file_fingerprint(model)
    read = mdtraj.load("new/t.xtc", top=chain().topology)
    assert read.xyz == pytest.approx(found.positions.swapaxes(0, 1).reshape(-1, 4, 3), abs=1e-3)

    # Given again, it says so; other options are refused.
    status, said = moved(str(model), str(data), *SHORT, "--out", "out", "--trajectory", "new/t.xtc")
    assert status == 0 and "out holds this run already; it is finished." in said and "│ broken │ 0 │" in said
    status, said = moved(str(model), str(data), *SHORT, "--out", "out", "--seed", "1")
    assert status == 2 and "out/record.npz holds dynamics made with config.seed" in said
    assert not list(tmp_path.glob("**/.*"))


def test_a_stopped_run_goes_on_with_the_same_bits(moved, made: Path, monkeypatch) -> None:
    arguments = (str(made / "run"), str(made / "chain.h5"), *SHORT)
    assert moved(*arguments, "--out", "whole")[0] == 0
    show = Display.__call__

    def stop(self, doing, done, total, note="") -> None:
        show(self, doing, done, total, note)
        if done == 24:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Display, "__call__", stop)
        status, said = moved(*arguments, "--out", "parts")
    assert status == 130 and "Stopped; run the same command again to continue." in said
    assert sorted(path.name for path in Path("parts").iterdir()) == ["checkpoint.npz", "dynamics.toml"]
    status, said = moved("--config", "parts/dynamics.toml")
    assert status == 0 and "continuing the run in parts" in said
    whole, parts = (Record.load(f"{name}/record.npz") for name in ("whole", "parts"))
    np.testing.assert_array_equal(whole.potential, parts.potential)
    np.testing.assert_array_equal(whole.positions, parts.positions)


def test_other_places_to_start_from(moved, made: Path) -> None:
    """Samples of the model, and trajectories of other programs."""
    model = made / "run" / "model.safetensors"
    assert moved(str(model), *SHORT, "--out", "own")[0] == 0
    found, x = Record.load("own/record.npz"), torch.from_numpy(samples_of(model, 3))
    u = FlowEnergy(BoltzmannGenerator.load(model).double()).energy_and_force(x)[0]
    assert found.potential[0] == pytest.approx(u.numpy(), abs=1e-9)

    positions = trajectory.read(made / "chain.h5", slice(0, 3)).positions
    mdtraj.Trajectory(positions, chain().topology).save("three.dcd")
    assert moved(str(model), "three.dcd", *SHORT, "--out", "foreign")[0] == 0
    found = Record.load("foreign/record.npz")
    centred = positions - positions.mean(1, keepdims=True)
    assert found.positions[0] == pytest.approx(centred, abs=1e-6)


def test_the_true_force_field(moved, made: Path) -> None:
    status, said = moved(str(made / "run"), str(made / "chain.h5"), *SHORT, "--true")
    assert status == 0 and "chain on its force field" in said, said
    record = Record.load(made / "run" / "dynamics-true" / "record.npz")
    assert record.about["energy"] == "force field" and record.about["model"] is None
    u = trajectory.read(made / "chain.h5").energies / chain().kT
    assert np.abs(u[:, None] - record.potential[0]).min(0) == pytest.approx(0, abs=1e-3)


def test_broken_molecules_are_counted(moved, made: Path, tmp_path: Path) -> None:
    boxed_chain_generator(reach=4.0).save(tmp_path / "boxed.safetensors")
    arguments = (*SHORT[:-6], "--equilibration", "0", "--production", "0.1", "--every", "4", "--out", "out")
    status, said = moved("boxed.safetensors", str(made / "chain.h5"), *arguments)
    assert status == 0 and "│ broken │ 3 │" in said and "outside of the support (3)" in said, said
    assert read_json(Path("out/drift.json"))["slope"] is None


def test_bad_input_is_explained_and_writes_nothing(moved, made: Path, tmp_path: Path, monkeypatch) -> None:
    model, data = str(made / "run"), str(made / "chain.h5")
    ala2_data(tmp_path / "ala2.h5", frames=2)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "t.xtc").write_text("mine")
    before = sorted(tmp_path.iterdir())
    for arguments, message in (
        (["none", data], "there is no model file none; "),
        ([model, "none.h5"], "there is no trajectory none.h5"),
        ([model, "ala2.h5"], "the model is of chain with 4 atoms, the data of ala2 with 22"),
        ([model, "file"], "cannot be read as a trajectory of the 4 atoms of chain"),
        ([model, data, "--replicas", "101"], "101 replicas need as many frames"),
        ([model, data, "--production", "0.0001"], "production must be a whole number of records"),
        ([model, data, "--dt", "0"], "dt: input should be greater than 0"),
        ([model, "--true"], "--true needs frames to start from"),
        ([model, data, "--out", "file"], "--out must be a folder for the results"),
        ([model, data, "--trajectory", "t.csv"], "ending in .h5, .xtc, .dcd, .pdb, got 't.csv'"),
        ([model, data, "--trajectory", "t.xtc"], "t.xtc exists already"),
        ([model, data, "--trajectory", data], "chain.h5 exists already"),
    ):
        status, said = moved(*arguments)
        assert status == 2 and message in said, said
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, said = moved(model, data, *SHORT, "--out", "out")
    assert status == 2 and "pip install 'knotflow[plot]'" in said
    assert sorted(tmp_path.iterdir()) == before and not (made / "run" / "dynamics").exists()


def test_what_is_compiled_depends_on_the_number_of_steps(made: Path) -> None:
    flow = on_flow(made / "run" / "model.safetensors")
    assert flow.energy.dtype == torch.float64 and "compiled" not in flow.about
    for steps, how, compiled in (
        (100, "auto", "off"),
        (5000, "auto", "whole"),
        (5000, "off", "off"),
        (100, "on", "whole"),
    ):
        assert on_force_field(chain(), steps, how).about["compiled"] == compiled


@pytest.mark.parametrize("replicas, chunk", [(1, 16), (16, 16), (17, 32), (10_000, None), (None, None)])
def test_force_fields_evaluate_no_more_than_there_is(replicas: int | None, chunk: int | None) -> None:
    energy = on_force_field(chain(), 100, replicas=replicas).energy
    assert isinstance(energy, TorchForceField)
    assert energy.chunk == (chunk or frames_at_once(energy.n_atoms))


def test_the_drift_is_part_of_an_evaluation(run_here, moved, made: Path, tmp_path: Path, monkeypatch) -> None:
    """Made by --dynamics or before; never that of another model."""
    model, data = tmp_path / "m" / "model.safetensors", str(made / "chain.h5")
    bent_chain_generator().save(model)
    arguments = ("evaluate", "m", data, "--samples", "100")
    assert run_here(*arguments)[0] == 0
    assert "dynamics" not in read_json(Path("m/metrics.json"))
    run_protocol = command.run_protocol
    monkeypatch.setattr(
        command, "run_protocol", lambda *a, **k: run_protocol(*a[:3], CONFIG, **k)  # the paper's takes long
    )  # fmt: skip
    status, said = run_here(*arguments, "--dynamics")
    assert status == 0 and "chain on its flow" in said and "slope of the total energy" in said, said
    found = read_json(Path("m/metrics.json"))
    assert found["dynamics"] == read_json(Path("m/dynamics/drift.json"))
    monkeypatch.setattr(command, "run_protocol", None)
    status, said = run_here(*arguments, "--dynamics")
    again = read_json(Path("m/metrics.json"))
    assert status == 0 and again["dynamics"] == found["dynamics"]
    bent_chain_generator(0.2).save(model)
    status, said = run_here(*arguments)
    assert status == 0 and "m/dynamics is about another model, so it is left out." in said
    assert "dynamics" not in read_json(Path("m/metrics.json"))


def test_figure_4_from_nothing(run_here, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    arguments = ("reproduce", "dynamics", "--scale", "smoke", "--rows", "bspline+fm", "--out", "out")
    status, said = run_here(*arguments)
    assert status == 0 and "a short training: B-spline+FM" in said, said
    assert "run 2 of 2: B-spline+FM" in said and "all ten stay" in said
    assert "Figure, table and explanations: out/index.html" in said
    found = read_json(Path("out/results.json"))
    assert set(found) == {"force-field", "bspline-fm-0-rec"}
    status, said = run_here(*arguments)
    assert status == 0 and "run 2 of 2: B-spline+FM: finished before" in said
    assert read_json(Path("out/results.json")) == found


def test_missing_models_are_named(run_here, tmp_path: Path) -> None:
    status, said = run_here("reproduce", "dynamics", "--data", "ala2.h5")
    assert status == 2 and not list(tmp_path.iterdir())
    assert (
        "runs/table1 has no model of RQ-spline, Smooth+FM, B-spline+FM; train with: knotflow reproduce "
        "table1 --data DATA.h5 --rows rq --rows smooth+fm --rows bspline+fm --out runs/table1"
    ) in said
