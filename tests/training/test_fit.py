"""Whole trainings: they learn, resume after being killed, and refuse what cannot work."""

import functools
import hashlib
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import knotflow as kf
from knotflow.files import read_json
from knotflow.log_file import read_log
from knotflow.training import Batch, TrainingConfig, TrainingError, fit
from knotflow.training.guard import (
    FORGIVEN,
    PATIENCE,
    RECOVERY,
    RETURNS,
    SETTLED,
    Guard,
    diagnose,
)
from knotflow.training.module import FlowModule
from knotflow.training.run import fingerprint
from tests.flows.registry import make, points
from tests.training import runs

ROOT = Path(__file__).parents[2]


def _weights(flow: kf.Flow) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in flow.parameters()]


def on_one_thread(folder: Path, seed: int = 0) -> kf.Flow:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    flow = runs.run(folder, seed)
    torch.set_num_threads(threads)
    return flow


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, kf.Flow]:
    folder = tmp_path_factory.mktemp("reference")
    return folder, on_one_thread(folder)


def test_a_run_folder(reference: tuple[Path, kf.Flow]) -> None:
    folder, flow = reference
    files = {path.name for path in folder.iterdir()}
    assert files == {"config.json", "last.ckpt", "log.csv", "model.safetensors", "tensorboard"}
    saved = kf.load(folder / "model.safetensors")
    assert all(map(torch.equal, _weights(saved), _weights(flow)))
    config = read_json(folder / "config.json")
    assert TrainingConfig.parse(config["training"]) == runs.CONFIG
    log = read_log(folder / "log.csv")
    assert [step for step, name, _ in log if name == "nll"] == [10, 20, 30, 40, 50, 60, 70]
    assert [step for step, name, _ in log if name == "validation_nll"] == [20, 40, 60, 70]
    # Its own points, drawn anew in every block.
    own = [(step, value) for step, name, value in log if name == "own_ess"]
    assert [step for step, _ in own] == [1, 21, 41, 61] and all(0.2 < value <= 1 for _, value in own)
    assert [value for _, name, value in log if name == "own_first"] == [0, 20, 40, 60]
    assert any((folder / "tensorboard").iterdir())


def test_training_learns(reference: tuple[Path, kf.Flow]) -> None:
    folder, _ = reference
    nll = [value for _, name, value in read_log(folder / "log.csv") if name == "validation_nll"]
    assert nll[-1] < nll[0] - 0.1


@pytest.mark.parametrize(
    ("moment", "number"), [("step", 3), ("step", 47), ("checkpoint", 1), ("checkpoint", 3)]
)
def test_a_killed_run_ends_with_the_same_weights(
    reference: tuple[Path, kf.Flow], moment: str, number: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.training.runs", str(tmp_path), moment, str(number)]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not (tmp_path / "model.safetensors").exists()
    resumed = on_one_thread(tmp_path, seed=99)  # another seed of the weights: they must come from the folder
    assert all(map(torch.equal, _weights(resumed), _weights(reference[1])))
    assert read_log(tmp_path / "log.csv") == read_log(reference[0] / "log.csv")


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_signals_end_a_run_that_can_be_resumed(
    number: signal.Signals,
    error: type[BaseException],
    reference: tuple[Path, kf.Flow],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, handler = FlowModule.training_step, signal.getsignal(number)

    def signalled(self: FlowModule, batch: Batch, batch_idx: int) -> None:
        original(self, batch, batch_idx)
        if self.step == 33:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(FlowModule, "training_step", signalled)
        with pytest.raises(error) as raised:
            runs.run(tmp_path)
    assert getattr(raised.value, "code", None) == (143 if number is signal.SIGTERM else None)
    assert signal.getsignal(number) == handler
    assert not (tmp_path / "model.safetensors").exists()
    resumed = on_one_thread(tmp_path, seed=99)
    assert all(map(torch.equal, _weights(resumed), _weights(reference[1])))


def test_a_finished_run_is_loaded(reference: tuple[Path, kf.Flow], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowModule, "training_step", None)  # a step would fail
    again = runs.run(reference[0], seed=5)
    assert all(map(torch.equal, _weights(again), _weights(reference[1])))


def test_whether_a_run_was_compiled_makes_no_other_run_of_it(
    reference: tuple[Path, kf.Flow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions compiled by themselves, and their folders say so."""
    monkeypatch.setattr(FlowModule, "training_step", None)  # a step would fail
    other = runs.CONFIG.model_copy(update={"compile": True})
    again = fit(runs.flow(), runs.data(), other, reference[0], energy=runs.energy, own=runs.own)
    assert all(map(torch.equal, _weights(again), _weights(reference[1])))


def test_a_run_of_version_0_1_is_no_other_run(reference: tuple[Path, kf.Flow], tmp_path: Path) -> None:
    """It has phases noted also where there is no circle."""
    folder = shutil.copytree(reference[0], tmp_path / "run")
    config = read_json(folder / "config.json")
    for coupling in config["flow"]["couplings"]:
        coupling["transform"]["phase"] = True
    (folder / "config.json").write_text(json.dumps(config))
    assert runs.run(folder).config == reference[1].config


def test_a_run_of_version_0_2_is_loaded_if_finished_and_refused_otherwise(tmp_path: Path) -> None:
    """Its networks see lines in other units, so new steps would be those of another flow."""

    def run() -> kf.Flow:
        config = TrainingConfig.parse({"steps": 2, "batch_size": 32})
        flow = kf.Flow.on([kf.Line()] * 2, rounds=1, transform={"bins": 4}, conditioner={"hidden": [8]})
        return fit(flow, runs.data().x, config, tmp_path)

    run()
    config = read_json(tmp_path / "config.json")
    for coupling in config["flow"]["couplings"]:
        del coupling["conditioner"]["unit_spread"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    before = (tmp_path / "model.safetensors").read_bytes()
    run()
    assert (tmp_path / "model.safetensors").read_bytes() == before
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"unit_spread False, .* but you asked for .*unit_spread True"):
        run()


def test_settings_that_version_0_2_did_not_have(
    reference: tuple[Path, kf.Flow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders have ``own_after``, and nothing about matched energies, limits and linear maps."""
    folder = shutil.copytree(reference[0], tmp_path / "run")
    config = read_json(folder / "config.json")
    config["training"]["own_after"] = 0.25
    for key in ("energy_matching", "force_limit"):
        del config["training"]["loss"][key]
    del config["flow"]["whitened"]
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(FlowModule, "training_step", None)  # a step would fail
    assert all(map(torch.equal, _weights(runs.run(folder)), _weights(reference[1])))


def test_fingerprints_are_those_of_version_0_2() -> None:
    """Hashes of points, forces and context, each "-" if missing; later parts count only if they are there."""
    x = torch.arange(6.0).reshape(3, 2)
    for parts, content in (
        ((x,), [x, b"-", b"-"]),
        ((x, -x), [x, -x, b"-"]),
        ((x, -x, x[:, :1]), [x, -x, x[:, :1]]),
        ((x, None, x), [x, b"-", x]),
    ):
        found = b"".join(p if isinstance(p, bytes) else p.contiguous().numpy().tobytes() for p in content)
        assert fingerprint(Batch(*parts)) == hashlib.sha256(found).hexdigest()[:16]
    more = [Batch(x), Batch(x, log_target=x[:, 0]), Batch(x, weight=x[:, 1]), Batch(x, None, None, *x.T)]
    assert len({fingerprint(batch) for batch in more}) == 4


def test_training_as_one_graph_falls_back_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler(graph: object, inputs: object, **_: object) -> None:
        raise OSError("no C++ compiler was found")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=no_compiler))
    config = TrainingConfig.parse({"steps": 3, "batch_size": 32})
    plain = fit(runs.flow(), runs.data().x, config, tmp_path / "plain")
    compiled = config.model_copy(update={"compile": True})
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        found = fit(runs.flow(), runs.data().x, compiled, tmp_path / "graph")
    assert [record.getMessage().count("training continues without it") for record in caplog.records] == [1]
    assert all(map(torch.equal, _weights(found), _weights(plain)))


def test_a_folder_of_another_run_is_refused(reference: tuple[Path, kf.Flow]) -> None:
    folder, _ = reference
    before = (folder / "model.safetensors").read_bytes()
    other = runs.CONFIG.model_copy(update={"learning_rate": 0.5})
    with pytest.raises(ValueError, match=r"made with training.learning_rate 0.01, but you asked for .* 0.5;"):
        fit(runs.flow(), runs.data(), other, folder, energy=runs.energy, own=runs.own)
    other = runs.CONFIG.model_copy(update={"own_share": 0.0})
    with pytest.raises(ValueError, match=r"made with training.own_share 0.25, but you asked for .* 0.0;"):
        fit(runs.flow(), runs.data(), other, folder, energy=runs.energy, own=runs.own)
    with pytest.raises(ValueError, match="holds a run made with data"):
        fit(runs.flow(), runs.data(150), runs.CONFIG, folder, energy=runs.energy, own=runs.own)
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("name", ["model.safetensors", "last.ckpt", "log.csv"])
def test_files_of_unknown_trainings_are_neither_used_nor_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=rf"holds {name}, but no config\.json"):
        fit(runs.flow(), runs.data(), runs.CONFIG, tmp_path, energy=runs.energy, own=runs.own)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_bad_arguments_fail_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fm = TrainingConfig.parse({"batch_size": 32, "loss": {"force_matching": 1.0}})
    x = runs.data().x
    with pytest.raises(ValueError, match="force_matching needs forces of the training data"):
        fit(runs.flow(), x, fm, folder)
    em = TrainingConfig.parse({"batch_size": 32, "loss": {"energy_matching": 1.0}})
    with pytest.raises(ValueError, match="energy_matching needs densities of the training data"):
        fit(runs.flow(), runs.data(), em, folder)
    with pytest.raises(ValueError, match="reverse_kl needs an energy"):
        fit(runs.flow(), runs.data(), runs.CONFIG, folder)
    with pytest.raises(ValueError, match=r"own_share needs a function .* give own=..., or set it to 0"):
        fit(runs.flow(), runs.data(), runs.CONFIG, folder, energy=runs.energy)
    with pytest.raises(ValueError, match="at least one batch of 512 points, got 200"):
        fit(runs.flow(), x, None, folder)
    with pytest.raises(ValueError, match="coordinate 0 lives on the interval"):
        fit(runs.flow(), Batch(x + 1, force=x), fm, folder)
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 2\), got \(200, 1\)"):
        fit(runs.flow(), x[:, :1], TrainingConfig.parse({"batch_size": 32}), folder)
    with pytest.raises(ValueError, match="forces of the training data must have the shape"):
        fit(runs.flow(), Batch(x, force=x[:, :1]), fm, folder)
    with pytest.raises(ValueError, match="built from a configuration"):
        fit(make("by-hand-4d").float(), torch.full((50, 4), 0.1), TrainingConfig(batch_size=32), folder)
    with pytest.raises(ValueError, match=r"computes in torch.float32, got points in torch.float64"):
        fit(runs.flow(), x.double(), TrainingConfig(batch_size=32), folder)
    with pytest.raises(ValueError, match="needs forces of the validation data"):
        fit(runs.flow(), runs.data(), fm, folder, validation=x)
    assert not folder.exists()


# --- the guard ---------------------------------------------------------------------------------------


def test_the_guard_refuses_what_is_not_finite_and_what_jumps() -> None:
    guard = Guard()
    generator = torch.Generator().manual_seed(0)
    for value in torch.randn(2 * SETTLED, generator=generator).tolist():
        assert guard.accepts(-5.0 + 0.1 * value, 1.0)
    state = dict(guard.state)
    assert not guard.accepts(float("nan"), 1.0)
    assert not guard.accepts(-5.0, float("inf"))
    assert not guard.accepts(40.0, 1.0)
    assert guard.accepts(-30.0, 1.0), "a lower loss is never refused"
    assert guard.state["refused"] == 3 and guard.state["refused_in_a_row"] == 0
    assert guard.state["accepted"] == state["accepted"] + 1


def test_the_longest_gradient_is_a_multiple_of_the_usual_one() -> None:
    guard = Guard()
    assert guard.longest(3.0) == math.inf, "nothing is usual yet"
    norms = [2.0, 8.0] * 500
    for norm in norms:
        assert guard.accepts(0.0, norm)
    assert guard.longest(3.0) == pytest.approx(12.0, rel=0.02), "three times the geometric mean"
    assert guard.longest(None) == math.inf
    assert not guard.accepts(0.0, math.inf)
    assert guard.longest(3.0) == pytest.approx(12.0, rel=0.02), "a refused gradient is not usual"


@pytest.mark.parametrize("clip_usual", [None, 2.0])
def test_no_gradient_is_much_longer_than_usual(
    clip_usual: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, norms, step = runs.data(), list[float](), torch.optim.AdamW.step
    data.force[0] = 1e4  # a contact, which one batch in six has

    def noted(optimizer: Any, **options: Any) -> Any:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        return step(optimizer, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    config = {"steps": 60, "batch_size": 32, "clip": None, "clip_usual": clip_usual}
    fit(runs.flow(), data, TrainingConfig.parse({**config, "loss": {"force_matching": 1.0}}), tmp_path)
    longest = max(norms[1:]) / float(np.median(norms))
    assert longest < 4 if clip_usual else longest > 100


def test_the_guard_gives_up_in_the_end() -> None:
    guard = Guard()
    for _ in range(RETURNS):
        for _ in range(PATIENCE):
            assert not guard.lost
            guard.accepts(float("nan"), 1.0)
        assert guard.lost
        guard.returned()
    assert guard.rate_factor == 0.5**RETURNS
    with pytest.raises(TrainingError, match="start with a lower one"):
        guard.returned()


def test_the_rate_recovers_from_early_returns_only() -> None:
    guard = Guard()
    for returns in range(1, FORGIVEN + 2):
        guard.returned()
        assert guard.rate_factor == pytest.approx(0.5)
        rates = []
        for _ in range(RECOVERY + 1):
            assert guard.accepts(0.0, 1.0)
            rates.append(guard.rate_factor)
        assert rates == sorted(rates) and rates[-1] == (1.0 if returns <= FORGIVEN else 0.5)


def test_a_diagnosis_names_layer_and_coordinate() -> None:
    flow = make("mixed-5d")
    batch = Batch(points(flow, 16))
    assert "the most extreme slope" in diagnose(flow, batch)
    coupling = flow.couplings[3]
    coordinate, outputs = list(coupling.outputs.items())[-1]
    with torch.no_grad():
        coupling.conditioner.layers[-1].bias[outputs] = torch.nan
    assert f"layer 3, coordinate {coordinate}: the log-slope is not finite for 16 of 16" in diagnose(
        flow, batch
    )


def test_a_diagnosis_names_the_layer_of_a_bad_gradient() -> None:
    flow = make("mixed-5d")
    batch = Batch(points(flow, 16))
    flow.log_prob(batch.x).sum().backward()
    coupling = flow.couplings[2]
    coordinate, outputs = list(coupling.outputs.items())[-1]
    coupling.conditioner.layers[-1].bias.grad[outputs.start] = torch.inf
    assert f"layer 2, coordinate {coordinate}: the gradient" in diagnose(flow, batch)


def test_a_diagnosis_names_the_coordinate_with_several_networks() -> None:
    flow = kf.Flow.on(
        [kf.Circle()] * 4,
        rounds=1,
        transform={"family": "bump", "components": 3},
        conditioner={"hidden": [8], "networks": [1, 1, 3]},
    )
    batch = Batch(torch.rand(16, 4))
    flow.log_prob(batch.x).sum().backward()
    coupling = flow.couplings[1]
    assert coupling.transformed == [1, 3]
    # The first network gives the weights of the bumps: three for coordinate 1, then three for coordinate 3.
    coupling.conditioner.parts[0].layers[-1].bias.grad[4] = torch.nan
    assert "layer 1, coordinate 3: the gradient" in diagnose(flow, batch)


@pytest.mark.parametrize(("bad_steps", "returns"), [((30,), 0), (tuple(range(30, 30 + PATIENCE)), 1)])
def test_bad_steps_leave_no_trace_in_the_weights(
    bad_steps: tuple[int, ...],
    returns: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Poison the weights just before some steps, as an exploding update would."""
    original = FlowModule.training_step
    seen: list[FlowModule] = []

    def poisoned(self: FlowModule, batch: Batch, batch_idx: int) -> None:
        seen[:] = [self]
        step = self.trainer.datamodule.first_step + batch_idx
        bias = self.flow.couplings[1].conditioner.layers[-1].bias
        if step in bad_steps:
            kept = bias.detach().clone()
            with torch.no_grad():
                bias.fill_(torch.nan)
            original(self, batch, batch_idx)
            if len(bad_steps) == 1:  # only the step was bad, not the weights
                with torch.no_grad():
                    bias.copy_(kept)
        else:
            original(self, batch, batch_idx)

    monkeypatch.setattr(FlowModule, "training_step", poisoned)
    flow = runs.run(tmp_path)
    assert all(weight.isfinite().all() for weight in _weights(flow))
    assert "layer 1, coordinate 1" in caplog.text
    assert seen[0].guard.state["returns"] == returns
    assert ("went back to the weights of the last checkpoint" in caplog.text) == bool(returns)
    assert flow.log_prob(runs.data().x).mean() > 0.05


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    locked = (
        "from knotflow.files import only_writer\nwith only_writer({!r}):\n    print(flush=True)\n    input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", locked.format(str(tmp_path / "model.safetensors"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdin and other.stdout and other.stdout.readline()
    with pytest.raises(OSError, match=r"model\.safetensors is being written by another process"):
        runs.run(tmp_path)
    other.communicate(b"\n")
    assert isinstance(runs.run(tmp_path), kf.Flow)


def test_a_training_killed_before_its_model_was_written_leaves_no_lock(tmp_path: Path) -> None:
    weights, files = _weights(runs.run(tmp_path)), {path.name for path in tmp_path.iterdir()}
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / ".model.safetensors.lock").touch()
    again = _weights(runs.run(tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
    assert {path.name for path in tmp_path.iterdir()} == files
