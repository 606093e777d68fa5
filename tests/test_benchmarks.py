"""The benchmarks on a few frames and points: that they run, and that their figures mean what they say."""

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

import knotflow as kf
from benchmarks import butane, memory
from benchmarks.__main__ import main
from benchmarks.compare import BaselineError, Change, changes, judged, load
from benchmarks.compare import Settings as CompareSettings
from benchmarks.flow import FORCE_STEP, NLL_STEP, n_parameters
from benchmarks.growth import Series, fitted_exponent
from benchmarks.kernels import WORK, kernel_calls
from benchmarks.limits import counted, layer_products
from benchmarks.models import (
    TINY,
    Trivial,
    best_generator,
    frames,
    paper_generator,
    paper_loss,
    peer_generator,
    with_trivial_maps,
)
from benchmarks.molecules import Run, Settings, evaluation_table, time_evaluations
from benchmarks.report import progress
from benchmarks.tabular import CANDIDATES, Splits, splits, table_of, trained, with_noise
from benchmarks.tabular import Settings as TabularSettings
from benchmarks.timing import Cell
from knotflow.energies import TorchForceField
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.system import ala2
from knotflow.storage import trajectory
from knotflow.workflows.molecule import load_molecule


def test_evaluations_agree() -> None:
    """So few frames that no worker process starts."""
    settings = Settings(repeats=1, compiled=False)
    with progress(Console(quiet=True)) as bar:
        evaluations = time_evaluations(bar, ala2(), 4, settings)
    worst = {e.cell.candidate: (e.energy_difference, e.force_difference) for e in evaluations}
    assert worst["OpenMM Reference"] == (0, 0)
    assert max(worst["TorchForceField, float64"]) < 1e-8
    assert 0 < worst["TorchForceField, float32"][0] < 1e-3
    for row in evaluation_table(ala2(), evaluations).rows:
        assert float(row[2].replace(",", "")) > 0, row


def test_frames_for_the_memory_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any number, molecules that differ a little, of all replicas; and the memory of a command."""
    monkeypatch.setattr(memory, "AT_ONCE", 100)
    monkeypatch.setattr(memory, "DIFFERENT", 20)
    memory.write_frames(tmp_path / "data.h5", 250)
    found = trajectory.read(tmp_path / "data.h5")
    assert len(found) == 250 and len(np.unique(found.replica)) == memory.REPLICAS
    assert len(np.unique(found.positions[:, 5, 0])) > 200 and len(np.unique(found.energies)) <= 20
    words = ["sample", "ala2", "--samples", "10", "--out", str(tmp_path / "samples.h5")]
    used = memory.measured(words)
    assert (tmp_path / "samples.h5").exists()
    assert 50 < used["own_mb"] <= used["peak_mb"] < 5_000 and used["seconds"] > 0


def test_speed_of_a_simulation() -> None:
    """A microsecond in two hours is 12 µs a day, or 10⁹ steps in 7200 s."""
    cell = Cell("engine", True, "dynamics", "workers", elements=10**9, seconds=[[7200.0]])
    run = Run(cell, 2, 256, prepare=lambda: None, advance=lambda: None)
    assert run.hours_per_microsecond() == pytest.approx(2)
    assert run.nanoseconds_per_day() == pytest.approx(12_000)
    assert run.record()["steps_per_second"] == pytest.approx(138_888.9)


def test_the_peer_of_a_generator_is_a_density_too() -> None:
    """Splines of other libraries in our couplings: maps there and back, and log-slopes that are slopes."""
    peer = peer_generator(0)
    assert sum(p.numel() for p in peer.parameters()) == 285_497
    q = peer.flow.sample(5)
    z, ladj = peer.flow.forward(q)
    back, inverse_ladj = peer.flow.inverse(z)
    assert float((back - q).abs().max()) < 1e-3
    assert float((ladj + inverse_ladj).abs().max()) < 1e-2


def test_frames_of_the_generator_benchmark_have_the_scores_of_the_force_field() -> None:
    """Along each coordinate the score is the slope of the log-density in internal coordinates."""
    batch = frames(ala2(), "paper", 2, seed=0)
    coordinates = paper_generator(0).coordinates
    field = TorchForceField(ala2(), compiled=False)

    def log_density(q: Tensor) -> Tensor:
        x, ladj = coordinates.inverse(q)
        return (ladj - field.energy(x)).sum()

    score = torch.func.grad(log_density)(batch.x.double())
    assert batch.force is not None
    assert float((score - batch.force).abs().max() / score.abs().max()) < 1e-3


def test_the_best_generator_is_the_preset() -> None:
    """The model that comes with knotflow was trained with the preset ``best``."""
    batch = frames(ala2(), "bonds", 8, seed=0)
    ours, given = best_generator(ala2(), batch.x, 0), BoltzmannGenerator.pretrained("ala2")
    assert [type(d) for d in ours.flow.domains] == [type(d) for d in given.flow.domains]
    assert n_parameters(ours) == n_parameters(given) == n_parameters(with_trivial_maps(ours))


def test_trivial_maps_have_the_log_slopes_they_promise() -> None:
    """By the short way and by the definition, and with second derivatives that reach the raw parameters."""
    f = Trivial(kf.BSpline(8))
    x, weights = torch.rand(5, dtype=torch.float64), torch.randn(f.n_parameters, dtype=torch.float64)
    weights.requires_grad_()
    read = torch.randn(5, dtype=torch.float64, requires_grad=True)
    raw = torch.sin(read.unsqueeze(-1) * weights)
    y, ladj = f.forward(x, raw)
    assert torch.equal(y, x)
    torch.testing.assert_close(ladj, TINY * raw.sum(-1), rtol=1e-12, atol=0)
    torch.testing.assert_close(f.define_forward(x, raw)[1], ladj, rtol=1e-6, atol=0)
    torch.testing.assert_close(f.inverse(x, raw)[1], -ladj, rtol=1e-12, atol=0)
    (score,) = torch.autograd.grad(ladj.sum(), read, create_graph=True)
    torch.testing.assert_close(score, TINY * (weights * torch.cos(read.unsqueeze(-1) * weights)).sum(-1))
    (second,) = torch.autograd.grad(score.square().sum(), weights)
    assert bool((second != 0).all())


def test_all_networks_below_trivial_maps_are_differentiated_twice() -> None:
    batch = frames(ala2(), "bonds", 4, seed=0)
    model = with_trivial_maps(best_generator(ala2(), batch.x, 0))
    x = model.unwound(batch.x)
    for parameter in model.parameters():  # the last layers of the preset start at zero
        torch.nn.init.normal_(parameter, std=0.1)
    score = model.flow.log_prob_and_score(x)[1]
    score.square().sum().backward()
    for name, parameter in model.named_parameters():
        if not name.endswith("layers.2.bias"):  # what is added to raw parameters moves no score
            assert parameter.grad is not None and bool((parameter.grad != 0).any()), name


def test_a_power_is_fitted() -> None:
    """Exactly where there is one, and with whole times, not times for each element."""
    sizes = [10, 30, 100, 300]
    assert fitted_exponent(sizes, [2e-3 * s**1.7 for s in sizes]) == pytest.approx(1.7)
    cells = [Cell("map", True, "forward", "eager", s, seconds=[[1e-6 * s**0.5]]) for s in sizes]
    assert Series("forward", "batch", sizes, cells).exponent() == pytest.approx(0.5)
    cells[0].seconds = []
    assert Series("forward", "batch", sizes, cells).exponent() is None


@pytest.mark.parametrize("name", WORK)
def test_bytes_are_those_of_what_goes_in_and_comes_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = 0
    operator = getattr(torch.ops.knotflow, WORK[name].operator)

    def counting(*arguments: Any) -> Any:
        nonlocal moved
        results = operator(*arguments)
        tensors = [t for t in (*arguments, *results) if isinstance(t, Tensor)]
        moved = sum(t.numel() * t.element_size() for t in tensors)
        return results

    monkeypatch.setattr(torch.ops.knotflow, WORK[name].operator, counting)
    kernel_calls(bins=8, elements=7, seed=0)[name]()
    assert moved == 7 * WORK[name].bytes_of(8)


def test_a_step_with_forces_has_six_products_for_each_layer() -> None:
    """Up to those of the coordinates; a step of likelihood has three, less what no gradient needs."""
    batch, model = frames(ala2(), "paper", 4, seed=0), paper_generator(0)
    once = layer_products(model.flow, 4)
    likelihood, forces = (
        counted(model.flow, paper_loss(model, what), batch) / once for what in (NLL_STEP, FORCE_STEP)
    )
    assert 2.5 < likelihood <= 3
    assert forces == pytest.approx(6, rel=0.05)


def test_tables_are_split_and_standardised_by_their_training_rows() -> None:
    """The noise is narrower than the steps of a column: rounding down gives the table back."""
    random = torch.Generator().manual_seed(0)
    steps = torch.tensor([0.5, 3.0, 1.0]).double()
    rows = steps * torch.randint(50, (500, 3), generator=random)
    rows[:, 2] = 7.0
    noisy = with_noise(rows, random)
    assert torch.equal(steps * (noisy / steps).floor(), rows)
    assert all(len(column.unique()) == 500 for column in noisy.T)
    parts = splits(rows, seed=1)
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [300, 100, 100]
    torch.testing.assert_close(parts.train.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(parts.train.std(0), torch.ones(3))
    assert bool((parts.test.mean(0).abs() > 1e-3).all())


@pytest.mark.parametrize("name", CANDIDATES)
def test_flows_for_tables_are_taken_at_their_best_validation(name: str) -> None:
    build, log_prob = CANDIDATES[name]
    torch.manual_seed(0)
    x = 0.3 * torch.randn(60, 3)
    data, settings = Splits(x[:20], x[20:40], x[40:]), TabularSettings(seconds=50, check_every=1)
    flow = build(3)
    with torch.no_grad():
        before = float(log_prob(flow, data.test).mean())
    found, best_step, steps = trained(flow, log_prob, data, settings, seed=0, clock=count().__next__)
    assert 0 < best_step <= steps == 49
    with torch.no_grad():
        assert float(log_prob(flow, data.test).mean()) == found > before


def test_tables_need_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        table_of("wine")


def test_a_regression_is_found_and_a_slow_spell_is_not() -> None:
    old = {"forward": 2.0, "inverse": 4.0, "sample": 1.0}
    first = {"forward": 2.2, "inverse": 5.0, "sample": 1.3}
    runs = iter([first, {"inverse": 5.1, "sample": 1.05}, {"inverse": 4.9}, {"inverse": 5.2}])
    asked = []

    def measured(names: Iterable[str]) -> dict[str, float]:
        asked.append(list(names))
        return next(runs)

    rows = {row.name: row for row in judged(old, measured)}
    assert asked == [["forward", "inverse", "sample"], ["inverse", "sample"], ["inverse"], ["inverse"]]
    assert [name for name, row in rows.items() if row.slower] == ["inverse"]
    assert rows["inverse"].change == pytest.approx(4.9 / 4.0 - 1)
    assert rows["sample"].new == 1.05


def test_the_tolerance_is_a_border_and_nan_is_beyond_it() -> None:
    assert not Change("map", 1.0, 1.149).slower
    assert Change("map", 1.0, 1.151).slower
    assert Change("map", 1.0, math.nan).slower
    assert not Change("map", 1.0, 0.1).slower


def test_baselines_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"no baseline .* python -m benchmarks baseline"):
        load(tmp_path / "none.json", CompareSettings())
    with pytest.raises(BaselineError, match="has the rows"):
        changes({"forward": 1.0}, {"forward": 1.0, "inverse": 1.0})
    made = {"sizes": asdict(CompareSettings.quick()), "environment": {"threads": torch.get_num_threads()}}
    (tmp_path / "made.json").write_text(json.dumps(made))
    assert load(tmp_path / "made.json", CompareSettings.quick()) == made
    with pytest.raises(BaselineError, match="other sizes"):
        load(tmp_path / "made.json", CompareSettings())


def test_compare_exits_with_1_if_something_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command, with times that are made up: one of them longer than when the baseline was saved."""
    times = {"forward": 2.0, "inverse": 3.0}
    monkeypatch.setattr(
        "benchmarks.compare.calls", lambda _: {name: lambda name=name: times[name] for name in times}
    )
    monkeypatch.setattr("benchmarks.compare.reference", lambda _: lambda: 1.0)
    monkeypatch.setattr("benchmarks.compare._seconds", lambda call: call())
    threads = str(torch.get_num_threads())
    options = ["--quick", "--threads", threads, "--baseline", str(tmp_path / "baseline.json")]
    assert main(["compare", *options]) == 1
    assert main(["baseline", *options]) == 0
    times["inverse"] = 3.6
    assert main(["compare", *options]) == 1
    assert "knotflow has become slower" in capsys.readouterr().out
    times["inverse"] = 3.3
    assert main(["compare", *options]) == 0


def test_turns_of_butane_change_its_torsion_and_nothing_else() -> None:
    """By the angle, in all chains; volume is kept, for the Jacobian of a turn is that of rotations."""
    system = load_molecule("CCCC", energy="xtb")
    half = butane.turning_half(system)
    assert sorted(system.atomic_numbers[atom] for atom in half) == [1, 1, 1, 1, 1, 6]
    x = torch.as_tensor(system.positions).double().repeat(3, 1, 1)
    angle = torch.tensor([0.3, -2.0, 0.0], dtype=torch.float64)
    y = butane.turned_about(x, angle, half)
    change = butane.BACKBONE(y.numpy()) - butane.BACKBONE(x.numpy()) - angle.numpy()
    assert np.abs((change + math.pi) % (2 * math.pi) - math.pi).max() < 1e-9
    others = [atom for atom in range(system.n_atoms) if atom not in half]
    for group in (half, others, [*half, 1, 2]):
        torch.testing.assert_close(
            torch.cdist(y[:, group], y[:, group]), torch.cdist(x[:, group], x[:, group])
        )
    jacobian = torch.func.jacrev(lambda one: butane.turned_about(one[None], angle[:1], half)[0])(x[0])
    assert float(torch.linalg.det(jacobian.reshape(42, 42))) == pytest.approx(1)


def test_states_of_butane_are_counted_in_chains() -> None:
    angles = np.radians([[180.0, 60.0, -60.0], [170.0, 60.0, 190.0]] * 50)
    found = butane.summary(angles)
    assert [found[f"population of {name}"].value for name in butane.STATES] == pytest.approx(
        [1 / 2, 1 / 3, 1 / 6]
    )
    assert found["F(gauche) - F(anti), kT"].value == pytest.approx(0)
