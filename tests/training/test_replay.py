"""A model's own samples as training data: weights, resampling, scores, and trainings on them."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import knotflow as kf
from knotflow.energies import OpenMMEnergy, TorchForceField
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.log_file import read_log
from knotflow.molecules import MolecularSystem
from knotflow.training import Batch, OwnSamples, own_samples
from knotflow.training import molecules as molecules_module
from knotflow.training.module import FlowModule
from knotflow.training.molecules import MoleculeTraining, load_data, train_generator, training_config
from knotflow.training.own_samples import effective_share, truncated
from tests.analysis.generators import (
    ANGLE,
    LENGTH,
    TILT,
    WIDTH,
    ala2_data,
    ala2_generator,
    chain,
    chain_data,
    chain_generator,
    grids,
    widths,
    write,
)
from tests.training.stopping import StopError, stopped_after

# --- weights and resampling -------------------------------------------------------------------------------


def test_truncation() -> None:
    log_weight = torch.zeros(400, dtype=torch.float64)
    log_weight[7], log_weight[9] = math.log(1e4), -math.inf
    mean = (398 + 1e4) / 400
    for shift in (0.0, 1000.0, -1000.0):
        weight = truncated(log_weight + shift)
        assert float(weight[7]) == pytest.approx(20.0) and weight[9] == 0
        assert float(weight[0]) == pytest.approx(1 / mean)
    assert torch.equal(truncated(torch.full((3,), -math.inf)), torch.zeros(3))
    even = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = truncated(even)
    torch.testing.assert_close(weight, even.exp() / even.exp().mean())
    expected = float(even.exp().sum() ** 2 / even.exp().square().sum() / 1000)
    assert effective_share(weight.log()) == pytest.approx(expected)
    assert effective_share(torch.full((3,), -math.inf)) == 0


# --- pools of samples -------------------------------------------------------------------------------------


def test_a_pool_has_the_moments_of_the_target_though_the_flow_has_not() -> None:
    """Bonds and angles of the chain by quadrature: the flow's are too wide and know no volume."""
    generator = chain_generator()
    n = 20_000
    pool = OwnSamples(generator, TorchForceField(chain(), compiled=False), n)(generator.flow, 1)
    assert pool.batch is not None and pool.batch.x.shape == pool.batch.force.shape == (n, 6)
    assert pool.batch.x.dtype == pool.batch.force.dtype == torch.float32
    b, a, of_bond, of_angle = grids()
    bond, angle = widths()
    share, wrong = 1.0, 0
    for i in range(5):
        x, target = (b, of_bond) if i < 3 else (a, of_angle)
        middle, width = (LENGTH, WIDTH * bond) if i < 3 else (ANGLE, TILT * angle)
        target = target / np.trapezoid(target, x)
        proposal = np.exp(-((x - middle) ** 2) / (2 * width**2)) / (width * math.sqrt(2 * math.pi))
        share *= 1 / np.trapezoid(target**2 / proposal, x)
        q = pool.batch.x[:, i].double().numpy()
        for power in (1, 2):
            f = ((x - middle) / width) ** power
            exact = np.trapezoid(f * target, x)
            # Of a weighted average: mean of w² (f - exact)² over the flow's samples, divided by n.
            error = math.sqrt(np.trapezoid((f - exact) ** 2 * target**2 / proposal, x) / share / n)
            assert (((q - middle) / width) ** power).mean() == pytest.approx(exact, abs=5 * error)
            wrong += abs(np.trapezoid(f * proposal, x) - exact) > 10 * error
    assert wrong >= 7, "the flow itself is far off"
    assert pool.ess == pytest.approx(share, rel=0.05)


def test_a_pool_depends_on_its_seed_only() -> None:
    generator = chain_generator()
    own = OwnSamples(generator, TorchForceField(chain(), compiled=False), 300)
    first, second = own(generator.flow, 1), own(generator.flow, 2)
    torch.manual_seed(5)
    again = own(generator.flow, 1)
    assert torch.equal(first.batch.x, again.batch.x) and torch.equal(first.batch.force, again.batch.force)
    assert first.ess == again.ess != second.ess and not torch.equal(first.batch.x, second.batch.x)


def test_pieces_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of many pieces: every point has its own score and its own weight."""
    monkeypatch.setattr(own_samples, "PIECE", 70)
    generator = chain_generator()
    own = OwnSamples(generator, TorchForceField(chain(), compiled=False), 300)
    pool = own(generator.flow, 1)
    score, _ = own.weighted(pool.batch.x, torch.zeros(300))
    torch.testing.assert_close(score, pool.batch.force, rtol=1e-6, atol=1e-4)


@pytest.fixture(scope="module")
def ala2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ala2_data(tmp_path_factory.mktemp("ala2") / "ala2.h5")


def test_scores_are_those_of_frames_of_a_simulation(ala2: Path, tmp_path: Path) -> None:
    """The same positions, once as samples and once as a trajectory with forces by OpenMM."""
    generator = ala2_generator(ala2)
    system = MolecularSystem.parse(generator.molecule)
    q, log_prob = generator.flow.sample_and_log_prob(120, generator=torch.Generator().manual_seed(3))
    score, log_weight = OwnSamples(generator, TorchForceField(system, compiled=False)).weighted(q, log_prob)
    x, ladj = generator.coordinates.inverse(q.double())
    loaded = load_data(
        write(tmp_path / "x.h5", system, x.float().numpy(), np.arange(120) // 10), generator.coordinates
    )
    held = torch.from_numpy(loaded.split.mask())
    for part, rows in ((loaded.train, ~held), (loaded.validation, held)):
        expected = generator.unwound(q[rows])
        torch.testing.assert_close(generator.unwound(part.x), expected, rtol=0, atol=2e-6)
        error = (part.force - score[rows]).abs()
        assert (error <= 1e-4 * score.abs().amax(0) + 0.05).all()
    with OpenMMEnergy(system, workers=1) as energy:
        u = energy.energy(x)
    usable = (generator.unwound(q) == q).all(-1) & generator.chirality.matches(x)
    assert usable.sum() > 80
    expected = torch.where(usable, ladj - u - log_prob, -math.inf)
    torch.testing.assert_close(log_weight, expected, rtol=0, atol=1e-2)


def test_mirror_images_have_no_weight(ala2: Path) -> None:
    generator = ala2_generator(ala2, turning=True)
    system = MolecularSystem.parse(generator.molecule)
    own = OwnSamples(generator, TorchForceField(system, compiled=False), 400, least=0.0)
    q, log_prob = generator.flow.sample_and_log_prob(400, generator=torch.Generator().manual_seed(0))
    _, log_weight = own.weighted(q, log_prob)
    right = generator.chirality.matches(generator.coordinates.inverse(q)[0])
    assert 50 < int(right.sum()) < 350
    assert (log_weight[~right] == -math.inf).all() and log_weight[right].isfinite().float().mean() > 0.9
    pool = own(generator.flow, 0)
    assert generator.chirality.matches(generator.coordinates.inverse(pool.batch.x)[0]).all()


def test_a_torsion_counts_in_one_turn_only(ala2: Path) -> None:
    """Of a torsion on a line, the same structure a turn further on must not count again."""
    generator = ala2_generator(ala2)
    own = OwnSamples(
        generator, TorchForceField(MolecularSystem.parse(generator.molecule), compiled=False), 10
    )
    q = generator.unwound(generator.flow.sample(10, generator=torch.Generator().manual_seed(0)))
    log_prob = generator.flow.log_prob(q)
    wound = q.clone()
    wound[:5, generator.coordinates.torsions.start] += 2 * math.pi
    assert own.weighted(q, log_prob)[1].isfinite().all()
    assert (own.weighted(wound, log_prob)[1] == -math.inf).tolist() == [True] * 5 + [False] * 5


def test_hopeless_samples_are_not_used() -> None:
    class Cold(TorchForceField):
        def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
            u, force = super().energy_and_force(x)
            return torch.full_like(u, math.nan), force

    generator = chain_generator()
    assert OwnSamples(generator, Cold(chain(), compiled=False), 50)(generator.flow, 0) == (None, 0.0)
    wide = kf.Flow.on(
        [kf.Interval(1e-3, 0.3)] * 3 + [kf.Interval(0.01, 3.1)] * 2 + [kf.Circle(-math.pi, math.pi)]
    )
    own = OwnSamples(
        BoltzmannGenerator(generator.coordinates, wide, chain().plain()),
        TorchForceField(chain(), compiled=False),
        1000,
    )
    pool = own(wide, 0)
    assert pool.batch is None and 0 < pool.ess < own.least
    own.least = 0.0
    assert len(own(wide, 0).batch.x) == 1000


# --- trainings --------------------------------------------------------------------------------------------

CHOICE = MoleculeTraining(
    preset="quick",
    forces=True,
    epochs=6.0,
    batch_size=60,
    bins=4,
    learning_rate=0.005,
    own_samples=True,
    compile=False,
)


def field(system: MolecularSystem) -> TorchForceField:
    return TorchForceField(system, compiled=False)


def weights(model: BoltzmannGenerator) -> list[Tensor]:
    return [parameter.detach() for parameter in model.flow.parameters()]


@pytest.fixture(scope="module", autouse=True)
def few() -> object:
    """Small pools, for speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(molecules_module, "POOL", 500)
        patch.setattr(molecules_module, "MONITORED", 100)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chain_data(tmp_path_factory.mktemp("data") / "chain.h5", 400)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BoltzmannGenerator]:
    folder = tmp_path_factory.mktemp("runs") / "chain"
    return folder, train_generator(data, folder, CHOICE, energy=field)


@pytest.mark.parametrize("step", [8, 17, 34])
def test_a_stopped_run_ends_with_the_same_weights(
    step: int, data: Path, finished: tuple[Path, BoltzmannGenerator], tmp_path: Path
) -> None:
    """Before own samples are used, and after."""
    with stopped_after(step), pytest.raises(StopError):
        train_generator(data, tmp_path / "run", CHOICE, energy=field)
    torch.manual_seed(99)
    resumed = train_generator(data, tmp_path / "run", CHOICE, energy=field)
    assert all(map(torch.equal, weights(resumed), weights(finished[1])))
    assert read_log(tmp_path / "run" / "log.csv") == read_log(finished[0] / "log.csv")


def test_own_samples_are_used_from_a_quarter_of_the_steps_on(
    data: Path, finished: tuple[Path, BoltzmannGenerator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of each batch: what is in it that is no frame."""
    frames = {tuple(row) for row in load_data(data, finished[1].coordinates).train.x.tolist()}
    original, counts = FlowModule.training_step, []

    def counting(self: FlowModule, batch: Batch, batch_idx: int) -> None:
        counts.append((len(batch.x), sum(tuple(row) not in frames for row in batch.x.tolist())))
        original(self, batch, batch_idx)

    monkeypatch.setattr(FlowModule, "training_step", counting)
    train_generator(data, tmp_path / "run", CHOICE, energy=field)
    log = read_log(tmp_path / "run" / "log.csv")
    blocks = [(step, value) for step, name, value in log if name == "own_ess"]
    assert [step for step, _ in blocks] == [13, 17, 21, 25, 29, 33]  # 36 steps in blocks of 4
    used = [value >= own_samples.LEAST for _, value in blocks]
    expected = [(60, 0)] * 12 + [(60, 30 if use else 0) for use in used for _ in range(4)]
    assert counts == expected and used[-1]


def test_who_trains_on_own_samples() -> None:
    for own, share in ((True, 0.5), (False, 0.0)):
        choice = CHOICE.model_copy(update={"own_samples": own})
        assert training_config(choice, 400, 6).own_share == share
    for preset in ("best", "quick", "paper"):
        assert training_config(MoleculeTraining(preset=preset), 400, 6).own_share == 0


def test_refused(data: Path, finished: tuple[Path, BoltzmannGenerator], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"own_samples needs an energy: give energy=..., or set it to False"):
        train_generator(data, tmp_path / "run", CHOICE)
    assert not (tmp_path / "run").exists()
    other = CHOICE.model_copy(update={"own_samples": False})
    with pytest.raises(ValueError, match=r"made with training.own_share 0.5, but you asked for .* 0.0;"):
        train_generator(data, finished[0], other, energy=field)


def test_with_the_reverse_divergence(data: Path, tmp_path: Path) -> None:
    choice = CHOICE.model_copy(update={"reverse_kl": 0.1})
    model = train_generator(data, tmp_path / "run", choice, energy=field)
    names = {name for _, name, _ in read_log(tmp_path / "run" / "log.csv")}
    assert names >= {"nll", "force_matching", "reverse_kl", "own_ess", "ess"}
    assert all(weight.isfinite().all() for weight in weights(model))
