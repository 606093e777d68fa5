"""Training on all temperatures of a tempering run: its data, scores, held-out moments, and a whole run."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import knotflow as kf
from knotflow.analysis.ladder import ladder_averages
from knotflow.energies import OpenMMEnergy, TorchForceField
from knotflow.errors import ConfigError
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.temperature import TemperatureRange
from knotflow.molecules import MolecularSystem
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.simulation import Simulation, SimulationPlan
from knotflow.simulation import run as simulate
from knotflow.storage import trajectory
from knotflow.training import cycles, molecules
from knotflow.training.data import select
from knotflow.training.molecules import MoleculeTraining, train_generator
from knotflow.training.temperatures import conditioned, load_ladder, shape_at_lowest, temperature_range
from tests.analysis.generators import chain, chain_data
from tests.analysis.ladders import RUNGS, densities, ladder_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ladder_data(tmp_path_factory.mktemp("ladder") / "chain.h5")


def test_moments_are_held_out_at_all_temperatures(data: Path) -> None:
    found = load_ladder(data, internal_coordinates(chain()))
    assert found.split.kind == "replica" and len(found.validation.x) == 100
    assert (found.validation.context == 300.0).all()
    temperatures, counts = found.train.context.unique(return_counts=True)
    assert temperatures.tolist() == list(RUNGS) and counts.tolist() == [1100] * 4
    held = trajectory.read(data)[found.split.mask()].replica
    hot = trajectory.read(trajectory.ladder_file(data), ladder=True)
    rows = np.isin(hot.replica, held)
    q = internal_coordinates(chain())(torch.from_numpy(hot.positions[~rows]).double())[0].float()
    torch.testing.assert_close(found.train.x[1100:], q)
    assert rows.sum() == 300
    assert temperature_range(found.train) == TemperatureRange(300.0, 600.0)


def test_with_few_ladders_stretches_of_time_are_held_out(tmp_path: Path) -> None:
    found = load_ladder(
        ladder_data(tmp_path / "few.h5", moments=60, replicas=2), internal_coordinates(chain())
    )
    assert found.split.kind == "time" and len(found.validation.x) == 12
    assert found.train.context.unique(return_counts=True)[1].tolist() == [108] * 4


def test_scores_are_those_of_the_temperature(data: Path) -> None:
    """Finite differences of log p(q | T), and of the density of cooled points."""
    coordinates = internal_coordinates(chain())
    found = load_ladder(data, coordinates)
    some = torch.arange(0, len(found.train.x), 97)
    batch = select(found.train, some)
    energy, q = TorchForceField(chain(), compiled=False), batch.x.double()

    def log_density(q: torch.Tensor) -> torch.Tensor:
        x, ladj = coordinates.inverse(q)
        return ladj - energy.energy(x) * 300.0 / batch.context[:, 0]

    temperatures = temperature_range(found.train)
    domains = [kf.Line(0.1, 0.2)] * 3 + [kf.Line(1.0, 3.0)] * 2 + [kf.Circle(-math.pi, math.pi)]
    cold = conditioned(batch, temperatures, domains)
    t = batch.context[:, 0]
    middle = torch.tensor([0.15] * 3 + [2.0] * 2 + [0.0]).double()
    stretch = torch.ones_like(q)
    stretch[:, :5] = (t / 300.0).sqrt()[:, None]
    torch.testing.assert_close(cold.x.double(), middle + (q - middle) / stretch, rtol=0, atol=1e-6)
    torch.testing.assert_close(cold.context[:, 0], (2 * (t / 300).log() / math.log(2) - 1).float())
    for i in range(6):
        step = torch.zeros(6, dtype=torch.float64)
        step[i] = 1e-6
        difference = (log_density(q + step) - log_density(q - step)) / 2e-6
        scale = float(difference.abs().max()) + 1
        torch.testing.assert_close(batch.force[:, i].double(), difference, rtol=0, atol=1e-3 * scale)
        y = cold.x.double()
        shifted = [log_density(middle + (y + sign * step - middle) * stretch) for sign in (1, -1)]
        difference = (shifted[0] - shifted[1]) / 2e-6
        torch.testing.assert_close(cold.force[:, i].double(), difference, rtol=0, atol=2e-3 * scale)
    # So forces of all temperatures weigh alike.
    everything = conditioned(found.train, temperatures, domains)
    sizes = [everything.force[found.train.context[:, 0] == rung].square().mean(0).sqrt() for rung in RUNGS]
    for size in sizes:
        torch.testing.assert_close(size[:5], sizes[0][:5], rtol=0.12, atol=0)


def test_domains_are_fitted_to_the_lowest_temperature(data: Path) -> None:
    coordinates = internal_coordinates(chain())
    train = load_ladder(data, coordinates).train
    shape = shape_at_lowest(train, temperature_range(train), coordinates)
    cold = train.x[train.context[:, 0] == 300.0]
    torch.testing.assert_close(shape[:, :3].std(0), cold[:, :3].std(0), rtol=0.1, atol=0)
    # Angles that come close to their limits, and the torsion, stay as they are.
    torch.testing.assert_close(shape[:, 3:], train.x[:, 3:])


CHOICE = MoleculeTraining(
    preset="quick", forces=True, temperatures=True, epochs=8.0, batch_size=200, bins=4, learning_rate=0.01
)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BoltzmannGenerator]:
    folder = tmp_path_factory.mktemp("runs") / "chain"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(molecules, "MONITORED", 200)
        return folder, train_generator(
            data, folder, CHOICE, energy=lambda system: OpenMMEnergy(system, workers=1)
        )


def test_a_run_learns_every_temperature(finished: tuple[Path, BoltzmannGenerator]) -> None:
    """Also those between the rungs. The density is that of independent coordinates, by quadrature."""
    folder, model = finished
    loaded = BoltzmannGenerator.load(folder / "model.safetensors")
    assert loaded.temperatures == TemperatureRange(300.0, 600.0) == model.temperatures
    for temperature in (300.0, 430.0, 600.0):
        own = loaded.at(temperature)
        q = own.flow.sample(2000, generator=torch.manual_seed(0)).double()
        b, a, log_b, log_a = densities(temperature)
        true = np.full(len(q), -math.log(2 * math.pi))
        for i in range(5):
            x, log_p = (b, log_b) if i < 3 else (a, log_a)
            norm = np.log(np.trapezoid(np.exp(log_p), x))
            true += np.interp(q[:, i].numpy(), x, log_p, left=-np.inf, right=-np.inf) - norm
        gap = own.double().flow.log_prob(q).detach().numpy() - true
        assert np.mean(gap[np.isfinite(gap)]) < 0.15, temperature  # the divergence from the target
        assert np.isfinite(gap).mean() > 0.99


def test_from_a_simulation_to_samples_at_a_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walkers above the target are kept at every other moment only."""
    monkeypatch.setattr(simulate, "SPREAD_STEPS", 100)
    monkeypatch.setattr(simulate, "LADDER_STEPS", 40)
    plan = SimulationPlan(
        method="tempering", replicas=4, frames=50, interval=20, equilibration=100, highest_temperature=500.0
    )
    data = tmp_path / "run.h5"
    simulation = Simulation(data, chain(), plan, workers=1)
    simulation.run()
    found = load_ladder(data, internal_coordinates(chain()))
    rungs, counts = found.train.context.unique(return_counts=True)
    assert rungs.tolist() == pytest.approx(simulation.ladder)
    assert len(found.validation.x) == 20 and counts[0] == 180 and (counts[1:] == counts[1]).all()
    assert 80 <= counts[1] <= 100
    model = train_generator(data, tmp_path / "run", CHOICE.model_copy(update={"epochs": 1.0}))
    x, log_prob = model.at(450.0).sample_and_log_prob(20)
    assert x.isfinite().all() and log_prob.isfinite().all()
    averages = ladder_averages(data, (300.0, 450.0))
    assert averages is not None and averages.energy(0).value < averages.energy(1).value


def test_a_finished_run_is_loaded(data: Path, finished: tuple[Path, BoltzmannGenerator]) -> None:
    folder, model = finished
    again = train_generator(data, folder, CHOICE)
    x = torch.from_numpy(trajectory.read(data).positions[:20])
    assert torch.equal(again.at(500.0).log_prob(x), model.at(500.0).log_prob(x))


def test_what_has_no_ladder_is_refused(tmp_path: Path) -> None:
    path = chain_data(tmp_path / "one.h5", 120)
    with pytest.raises(ValueError, match=r"there is no one\.ladder\.h5 beside .*--method tempering"):
        train_generator(path, tmp_path / "run", CHOICE)
    assert not (tmp_path / "run").exists()
    ladder_data(tmp_path / "two.h5", moments=10)
    (tmp_path / "two.ladder.h5").rename(tmp_path / "one.ladder.h5")
    other = trajectory.read(path)
    trajectory.create(tmp_path / "cold.h5", chain(200.0), {})
    trajectory.append(tmp_path / "cold.h5", other, at=0)
    (tmp_path / "one.ladder.h5").rename(tmp_path / "cold.ladder.h5")
    with pytest.raises(ValueError, match="differ in molecule or force field"):
        train_generator(tmp_path / "cold.h5", tmp_path / "run", CHOICE)


@pytest.mark.parametrize("other", [{"preset": "paper"}, {"reverse_kl": 0.1}])
def test_settings_for_one_temperature_are_refused(other: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="temperatures can be combined neither"):
        MoleculeTraining.parse({"temperatures": True, **other})


def test_refined_at_the_target_temperature(
    data: Path, finished: tuple[Path, BoltzmannGenerator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refined model is an ordinary one of 300 K; the model of all temperatures is kept beside it."""
    monkeypatch.setattr(cycles, "CYCLES", 1)
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    choice = CHOICE.model_copy(update={"refine": True})

    def energy(system: MolecularSystem) -> TorchForceField:
        return TorchForceField(system, compiled=False)

    refined = train_generator(data, folder, choice, energy=energy)
    assert refined.temperatures is None and refined.temperature == 300.0 and refined.flow.context == 0
    kept = BoltzmannGenerator.load(folder / "temperatures.safetensors")
    x = torch.from_numpy(trajectory.read(data).positions[:20])
    assert torch.equal(kept.at(500.0).log_prob(x), finished[1].at(500.0).log_prob(x))
    loaded = BoltzmannGenerator.load(folder / "model.safetensors")
    again = train_generator(data, folder, choice, energy=energy)
    assert torch.equal(loaded.log_prob(x), refined.log_prob(x))
    assert torch.equal(again.log_prob(x), refined.log_prob(x))


def test_who_trains_on_all_temperatures(data: Path, tmp_path: Path) -> None:
    alone = chain_data(tmp_path / "one.h5", 120)
    for preset, wanted, beside, expected in (
        ("best", None, data, True),
        ("best", None, alone, False),
        ("best", False, data, False),
        ("quick", None, data, False),
        ("quick", True, data, True),
    ):
        choice = MoleculeTraining.parse({"preset": preset, "temperatures": wanted})
        assert molecules._on_ladder(choice, beside) is expected
    assert not molecules._on_ladder(MoleculeTraining(reverse_kl=0.1), data)
