"""Boltzmann generators trained on trajectories: held-out frames, scores, presets, and whole runs."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import knotflow as kf
from knotflow.energies import OpenMMEnergy, TorchForceField
from knotflow.errors import ConfigError
from knotflow.files import read_json
from knotflow.flows import presets
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.geometry import InternalCoordinates
from knotflow.log_file import read_log
from knotflow.molecules import MolecularSystem
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.storage import trajectory
from knotflow.storage.samples import SampleWriter
from knotflow.training import ForceMatching, Mix, TrainingConfig, cycles, fit, molecules
from knotflow.training import data as training_data
from knotflow.training.data import thinned
from knotflow.training.module import FlowModule, learning_rate
from knotflow.training.molecules import (
    CLIP,
    FORCE_LIMIT,
    FORCE_SHARE,
    RATE,
    MoleculeTraining,
    cartesian_metric,
    flow_config,
    load_data,
    standardised_metric,
    train_generator,
    training_config,
)
from knotflow.training.objectives import Batch
from knotflow.training.run import fingerprint
from tests.analysis.generators import chain, chain_data, grids, write
from tests.molecules.molecules import frames, molecule
from tests.training.stopping import StopError, stopped_after

# --- coordinates and scores -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shaken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 frames of alanine dipeptide, shaken and turned, with energies and forces by OpenMM."""
    system = molecule("ala2")
    x = frames(system, 120, noise=0.004).float().numpy()
    return write(tmp_path_factory.mktemp("shaken") / "ala2.h5", system, x, np.arange(120) // 10)


def log_density(system: MolecularSystem, coordinates: InternalCoordinates) -> Callable[[Tensor], Tensor]:
    """Of internal coordinates, up to a constant, in float64."""
    energy = TorchForceField(system, compiled=False)

    def function(q: Tensor) -> Tensor:
        x, ladj = coordinates.inverse(q)
        return ladj - energy.energy(x)

    return function


@pytest.mark.parametrize("kind", ["bonds", "paper"])
def test_scores_are_finite_differences_of_the_log_density(shaken: Path, kind: str) -> None:
    system = molecule("ala2")
    coordinates = internal_coordinates(system, kind)
    data = load_data(shaken, coordinates)
    assert data.split.kind == "replica" and data.split.file == "ala2.h5"
    assert len(data.train.x) == 110 and len(data.validation.x) == 10
    held = data.split.mask()
    positions = torch.from_numpy(trajectory.read(shaken).positions).double()
    exact = coordinates(positions)[0]
    function = log_density(system, coordinates)
    for batch, rows in ((data.train, ~held), (data.validation, held)):
        assert batch.x.dtype == torch.float32 and batch.force is not None and batch.context is None
        q = exact[torch.from_numpy(rows)]
        torch.testing.assert_close(batch.x, q.float(), rtol=0, atol=1e-6)
        q, score = q[:5], batch.force[:5].double()
        for i in range(coordinates.n_coordinates):
            step = torch.zeros(coordinates.n_coordinates, dtype=torch.float64)
            step[i] = 1e-6 if i < coordinates.angles.start else 1e-5
            difference = (function(q + step) - function(q - step)) / (2 * step[i])
            # Forces in the file are in float32.
            tolerance = 1e-5 * float(score[:, i].abs().max()) + 0.02
            torch.testing.assert_close(score[:, i], difference, rtol=0, atol=tolerance)


def test_scores_are_the_gradient_by_autograd(shaken: Path) -> None:
    system = molecule("ala2")
    coordinates = internal_coordinates(system)
    data = load_data(shaken, coordinates)
    x = torch.from_numpy(trajectory.read(shaken).positions).double()[torch.from_numpy(~data.split.mask())]
    q = coordinates(x)[0].requires_grad_()
    (score,) = torch.autograd.grad(log_density(system, coordinates)(q).sum(), q)
    error = (data.train.force.double() - score).abs()
    assert (error <= 1e-5 * score.abs().amax(0) + 0.02).all()


def test_too_few_frames_are_refused(tmp_path: Path) -> None:
    path = chain_data(tmp_path / "few.h5", 99)
    with pytest.raises(ValueError, match=r"at least 100 frames, .*few\.h5 has 99; simulate longer"):
        load_data(path, internal_coordinates(chain()))


def changed(path: Path, source: Path, **columns: np.ndarray) -> Path:
    """A copy of a trajectory with other columns."""
    trajectory.create(path, trajectory.open_info(source).system, {})
    trajectory.append(path, replace(trajectory.read(source), **columns), at=0)
    return path


def test_the_order_of_hydrogens_does_not_matter(shaken: Path, tmp_path: Path, caplog) -> None:
    """Labels exchanged with their forces: the same training data, bit for bit, and a line about it."""
    frames, coordinates = trajectory.read(shaken), internal_coordinates(molecule("ala2"))
    order = np.arange(22)
    order[[2, 3, 20, 21]] = [3, 2, 21, 20]
    x, forces = frames.positions.copy(), frames.forces.copy()
    x[30:], forces[30:] = x[30:, order], forces[30:, order]
    path = changed(tmp_path / "ala2.h5", shaken, positions=x, forces=forces)
    for expected, found in zip(load_data(shaken, coordinates), load_data(path, coordinates), strict=True):
        if isinstance(expected, Batch):
            assert torch.equal(expected.x, found.x) and torch.equal(expected.force, found.force)
        else:
            assert expected == found
    assert caplog.messages == [
        "In 90 of 120 frames the labels of equivalent hydrogens (H2/H3 of ACE1, H2/H3 of NME3) were "
        "exchanged to match the structure."
    ]


def test_mirror_images_are_not_trained_on(shaken: Path, tmp_path: Path, caplog) -> None:
    """Neither as training nor as validation data; the split is of all rows of the file."""
    frames, coordinates = trajectory.read(shaken), internal_coordinates(molecule("ala2"))
    mirrored = np.arange(120) % 7 == 4
    x = np.where(mirrored[:, None, None], -frames.positions, frames.positions)
    forces = np.where(mirrored[:, None, None], -frames.forces, frames.forces)
    found = load_data(changed(tmp_path / "ala2.h5", shaken, positions=x, forces=forces), coordinates)
    whole = load_data(shaken, coordinates)
    assert found.split == whole.split and found.split.frames == 120
    held, right = found.split.mask(), torch.from_numpy(~mirrored)
    for part, expected, rows in (
        (found.train, whole.train, ~held),
        (found.validation, whole.validation, held),
    ):
        assert torch.equal(part.x, expected.x[right[torch.from_numpy(rows)]])
        assert torch.equal(part.force, expected.force[right[torch.from_numpy(rows)]])
    assert caplog.messages == [
        f"{mirrored.sum()} of 120 frames are of the other hand than the structure at ALA2-CA, and were set "
        "aside."
    ]
    path = changed(tmp_path / "all.h5", shaken, positions=-frames.positions, forces=-frames.forces)
    with pytest.raises(ValueError, match=r"120 of 120 frames in .*all\.h5 are of the other hand"):
        load_data(path, coordinates)


# --- how errors of forces are measured --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bonds", "paper"])
def test_the_cartesian_metric_is_the_jacobian(kind: str) -> None:
    system = molecule("ala2")
    coordinates = internal_coordinates(system, kind)
    q = coordinates(frames(system, 3, noise=0.005))[0]
    error = torch.randn(q.shape, generator=torch.manual_seed(0), dtype=torch.float64)
    found = cartesian_metric(coordinates)(q, error)
    for row in range(3):
        x = coordinates.inverse(q[row])[0]
        jacobian = torch.func.jacrev(lambda x: coordinates(x)[0])(x)  # (coordinates, atoms, 3)
        expected = torch.einsum("cai,c->ai", jacobian, error[row])
        torch.testing.assert_close(found[row], expected, rtol=1e-9, atol=1e-8)


def test_force_matching_in_it_is_the_error_of_forces_on_atoms(shaken: Path) -> None:
    """The paper's FME: mean over frames, atoms and directions, against the generator's own force."""
    system = molecule("ala2")
    coordinates = internal_coordinates(system, "paper")
    torch.manual_seed(0)
    flow = presets.paper_flow(coordinates, "bspline", bins=4).build().double()
    model = BoltzmannGenerator(coordinates, flow, system.plain())
    data = load_data(shaken, coordinates)
    with torch.no_grad():
        batch = Batch(data.validation.x.double(), data.validation.force.double())
        mix = Mix(fm=(1.0, ForceMatching(cartesian_metric(coordinates))))
        found = float(mix(flow, batch)[0])
    held = trajectory.read(shaken)[data.split.mask()]
    target = torch.from_numpy(held.forces).double() / system.kT
    error = model.force(torch.from_numpy(held.positions).double()).detach() - target
    assert found == pytest.approx(float(error.square().mean()), rel=1e-4)


def test_the_standardised_metric_has_unit_scores() -> None:
    score = torch.randn(5000, 5, generator=torch.manual_seed(0)) * torch.tensor([1e4, 10.0, 1.0, 1e-6, 0.0])
    circles = kf.Flow([kf.Circle()] * 5, [])
    metric = standardised_metric(circles, score)
    scaled = metric(torch.empty(0), score)
    torch.testing.assert_close(scaled[:, :3].square().mean(0), torch.ones(3))
    # A torsion without force is uniform: there errors are measured by its deviation.
    uniform = math.pi * (2 * torch.rand(200_000, generator=torch.manual_seed(1)) - 1)
    errors = metric(torch.empty(0), torch.ones(1, 5))[0, 3:]
    torch.testing.assert_close(errors, uniform.std().expand(2), rtol=0.01, atol=0)
    # Of normal coordinates it is the error in units of their deviations.
    sigma = torch.tensor([0.003, 0.05, 1.0, 1.5], dtype=torch.float64)
    x = sigma * torch.randn(200_000, 4, generator=torch.manual_seed(1), dtype=torch.float64)
    metric = standardised_metric(kf.Flow([kf.Circle()] * 4, []), -x / sigma.square())
    torch.testing.assert_close(metric(x, torch.ones_like(x))[0], sigma, rtol=0.01, atol=0)


@pytest.mark.parametrize("whitened", [False, True])
def test_on_lines_errors_are_measured_in_standard_coordinates(whitened: bool) -> None:
    """Of correlated normal coordinates on lines; scores of white ones are white."""
    random = torch.Generator().manual_seed(0)
    lower = torch.tensor([[0.003, 0.0, 0.0], [0.04, 0.05, 0.0], [0.3, -0.4, 1.5]], dtype=torch.float64)
    x = torch.randn(50_000, 3, generator=random, dtype=torch.float64) @ lower.T
    score = -torch.linalg.solve(lower @ lower.T, x.T).T
    sigma = (lower @ lower.T).diagonal().sqrt()
    lines = [kf.Line(-5 * s, 5 * s) for s in sigma.tolist()]
    flow = kf.Flow([*lines, kf.Circle()], [], whitened=whitened).double()
    q, error = (torch.cat([part, part[:, :1]], 1) for part in (x, score))
    if whitened:
        flow.whiten(q)
    found = standardised_metric(flow, error)(q, error)
    expected = torch.cov(found[:, :3].T)
    if whitened:
        torch.testing.assert_close(expected, torch.eye(3).double(), rtol=0, atol=0.02)
    else:
        torch.testing.assert_close(found[:, :3], score * sigma)
    assert float(found[:, 3].square().mean()) == pytest.approx(1.0), "a circle has units of its own"


# --- presets ----------------------------------------------------------------------------------------------


def test_the_training_of_the_paper() -> None:
    config = training_config(MoleculeTraining(preset="paper"), 900_096, 60)
    in_a_pass = 900_096 // 128
    assert (config.batch_size, config.learning_rate, config.steps) == (128, 5e-4, 10 * in_a_pass)
    assert config.steps == 70_320
    assert (config.loss.nll, config.loss.force_matching) == (0.999, 0.001)
    assert config.loss.force_limit is None
    assert config.weight_decay == 0
    for epoch in range(10):  # times 0.7 after every pass
        rate = learning_rate(config, epoch * in_a_pass + in_a_pass // 2)
        assert rate == pytest.approx(5e-4 * 0.7**epoch)
    raw = training_config(MoleculeTraining(preset="paper", published=True), 900_096, 60)
    assert (raw.warm_up, raw.clip, raw.clip_usual, raw.ema) == (0, None, None, 0.0)
    assert (config.warm_up, config.clip, config.clip_usual, config.ema) == (500, 20.0, None, 0.999)
    plain = training_config(MoleculeTraining(preset="paper", forces=False), 900_096, 60)
    assert (plain.loss.nll, plain.loss.force_matching) == (1.0, 0.0)


def test_the_other_presets() -> None:
    best = training_config(MoleculeTraining(), 100_000, 60)
    assert (best.schedule, best.learning_rate, best.batch_size) == ("cosine", RATE, 96)
    assert training_config(MoleculeTraining(), 100_000, 240).learning_rate == pytest.approx(RATE / 2)
    assert best.loss.nll == 1 and best.loss.force_matching == pytest.approx(FORCE_SHARE * 0.5 * 60)
    assert best.loss.force_limit == FORCE_LIMIT and best.loss.energy_matching == best.own_share == 0
    assert (best.clip, best.clip_usual) == (None, CLIP), "the norm of the gradient grows with the weight"
    quick = training_config(MoleculeTraining(preset="quick"), 100_000, 60)
    assert quick.loss.force_matching == 0 and quick.steps < best.steps
    forced = training_config(MoleculeTraining(preset="quick", forces=True), 100_000, 60)
    assert forced.loss.force_matching == best.loss.force_matching
    assert training_config(MoleculeTraining(forces=False), 100_000, 60).loss.force_matching == 0


def test_departures_from_a_preset() -> None:
    choice = MoleculeTraining.parse(
        {
            "epochs": 2.5,
            "batch_size": 100,
            "learning_rate": 0.5,
            "reverse_kl": 0.25,
            "seed": 7,
            "compile": False,
        }
    )
    config = training_config(choice, 1050, 6)
    assert (config.steps, config.batch_size, config.learning_rate) == (25, 100, 0.5)
    assert (config.loss.reverse_kl, config.seed, config.compile) == (0.25, 7, False)
    small = training_config(MoleculeTraining(epochs=1e-9), 90, 6)
    assert (small.steps, small.batch_size, small.checkpoint_every, small.log_every) == (1, 90, 1, 1)


@pytest.mark.parametrize("preset", ["best", "quick", "paper"])
@pytest.mark.parametrize("n_train", [90, 1000, 10**6])
def test_any_number_of_frames_makes_a_training(preset: str, n_train: int) -> None:
    config = training_config(MoleculeTraining.parse({"preset": preset}), n_train, 60)
    assert TrainingConfig.parse(config.plain()) == config
    assert config.batch_size <= n_train and config.warm_up <= config.steps
    assert -(-config.steps // config.checkpoint_every) >= min(10, config.steps)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"preset": "better"}, "preset: .*'best', 'quick' or 'paper', got 'better'"),
        ({"transform": "affine"}, "transform: .*got 'affine'"),
        ({"epochs": 0.0}, "epochs: .*greater than 0, got 0.0"),
        ({"order": 2}, "order: .*greater than or equal to 3"),
        ({"bins": 0}, "bins: .*got 0"),
        ({"reverse_kl": -1.0}, "reverse_kl: "),
        ({"zmatrix": "mine"}, "zmatrix: .*'bonds' or 'paper'"),
        ({"rate": 1.0}, "unknown key 'rate'; allowed here: batch_size, bins,"),
    ],
)
def test_wrong_choices(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MoleculeTraining.parse(wrong)


def test_flows_of_presets() -> None:
    coordinates = internal_coordinates(chain())
    q = torch.randn(200, 6, generator=torch.manual_seed(0)) * torch.tensor([0.001] * 3 + [0.05] * 2 + [9.0])
    q += torch.tensor([0.15] * 3 + [2.0] * 2 + [0.0])

    def make(**options: object) -> kf.FlowConfig:
        return flow_config(MoleculeTraining.parse(options), coordinates, q)

    best, quick = make(), make(preset="quick")
    assert [c.conditioner.hidden for c in best.couplings] == [(128, 128)] * len(best.couplings)
    assert [c.conditioner.hidden for c in quick.couplings] == [(64, 64)] * len(quick.couplings)
    assert len(quick.couplings) < len(best.couplings)
    assert best.whitened and quick.whitened
    assert (best.couplings[-1].transform.bins, quick.couplings[-1].transform.bins) == (32, 16)
    assert (
        make(bins=5, order=6).couplings[-1].transform.model_dump().items() >= {"bins": 5, "order": 6}.items()
    )
    assert MoleculeTraining.parse({"transform": "smooth"}).transform == "bump", "as in files of version 0.1"
    assert make(transform="rq").couplings[-1].transform.family == "rq"
    assert make(transform="bump", bins=3).couplings[-1].transform.components == 3
    ala2 = internal_coordinates(molecule("ala2"), "paper")
    choice = MoleculeTraining(preset="paper")
    assert flow_config(choice, ala2, q) == presets.paper_flow(ala2, "bspline")
    assert not flow_config(choice, ala2, q).whitened
    published = flow_config(choice.model_copy(update={"published": True}), ala2, q)
    assert published == presets.paper_flow(ala2, "bspline", min_width=1e-6)


# --- whole runs -------------------------------------------------------------------------------------------

CHOICE = MoleculeTraining(
    preset="quick",
    forces=True,
    epochs=10.0,
    batch_size=60,
    bins=4,
    learning_rate=0.005,
    seed=3,
    compile=False,
)


def energy_of(system: MolecularSystem) -> OpenMMEnergy:
    return OpenMMEnergy(system, workers=1)


def weights(model: BoltzmannGenerator) -> list[Tensor]:
    return [parameter.detach() for parameter in model.flow.parameters()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chain_data(tmp_path_factory.mktemp("data") / "chain.h5", 400)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BoltzmannGenerator]:
    folder = tmp_path_factory.mktemp("runs") / "chain"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(molecules, "MONITORED", 200)
        return folder, train_generator(data, folder, CHOICE, energy=energy_of)


def test_a_run_folder(data: Path, finished: tuple[Path, BoltzmannGenerator]) -> None:
    folder, model = finished
    files = {path.name for path in folder.iterdir()}
    assert files == {"config.json", "last.ckpt", "log.csv", "model.safetensors", "split.json", "tensorboard"}
    loaded = BoltzmannGenerator.load(folder / "model.safetensors")
    assert all(map(torch.equal, weights(loaded), weights(model)))
    assert loaded.molecule == chain().plain() == model.molecule
    x = torch.from_numpy(trajectory.read(data).positions)
    assert torch.equal(loaded.log_prob(x), model.log_prob(x)) and model.log_prob(x).isfinite().all()
    found = notes(folder / "model.safetensors")
    assert found.keys() == {"molecule", "zmatrix", "units", "training", "seconds", "data", "split", "choice"}
    split = read_json(folder / "split.json")
    assert found["split"] == split and MoleculeTraining.parse(found["choice"]) == CHOICE
    assert split["file"] == "chain.h5" and split["frames"] == 400 and split["kind"] == "replica"
    # Of 20 replicas of 20 frames in a row, the tenth and the twentieth.
    assert split["validation"] == [[180, 200], [380, 400]]
    assert TrainingConfig.parse(found["training"]).steps == 60  # ten passes through 360 frames
    assert found["seconds"] > 0


def exact_log_density(q: Tensor) -> np.ndarray:
    """Of the coordinates of the chain: bonds and angles are independent, the torsion is uniform."""
    b, a, of_bond, of_angle = grids()
    total = np.full(len(q), -math.log(2 * math.pi))
    for i in range(5):
        x, density = (b, of_bond) if i < 3 else (a, of_angle)
        total += np.log(np.interp(q[:, i].numpy(), x, density / np.trapezoid(density, x)))
    return total


def test_it_learns_and_says_how_well(data: Path, finished: tuple[Path, BoltzmannGenerator]) -> None:
    folder, model = finished
    log = read_log(folder / "log.csv")
    named = {
        name: [value for _, other, value in log if other == name] for name in {name for _, name, _ in log}
    }
    held = load_data(data, model.coordinates).validation.x
    assert named["validation_nll"][-1] == pytest.approx(-exact_log_density(held).mean(), abs=0.3)
    assert len(named["ess"]) == len(named["validation_nll"]) == len(named["validation_force_matching"]) == 10
    assert all(0 < share <= 1 for share in named["ess"])
    # The last one, recomputed from the whole generator.
    flow = model.flow
    generator = torch.Generator().manual_seed(0)
    x, log_prob = BoltzmannGenerator(model.coordinates, flow, model.molecule).sample_and_log_prob(
        200, generator=generator
    )
    with energy_of(chain()) as energy:
        u = energy.energy(x.double()).numpy()
    w = np.exp(-u - log_prob.double().numpy())
    assert named["ess"][-1] == pytest.approx(w.sum() ** 2 / (200 * (w**2).sum()), rel=1e-3)


def test_samples_of_a_hopeless_flow_count_for_nothing() -> None:
    """Weights that are not finite leave a share of the others, or none, but no error."""
    model = BoltzmannGenerator(
        internal_coordinates(chain()),
        kf.Flow.on(
            [kf.Interval(1e-3, 0.3)] * 3 + [kf.Interval(0.01, 3.1)] * 2 + [kf.Circle(-math.pi, math.pi)]
        ),
        chain().plain(),
    )

    class Cold(OpenMMEnergy):
        def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
            u, force = super().energy_and_force(x)
            return torch.full_like(u, math.nan), force

    with Cold(chain(), workers=1) as energy:
        assert molecules._monitor(energy, model)(model.flow) == {"ess": 0.0}
    with energy_of(chain()) as energy:
        share = molecules._monitor(energy, model)(model.flow)["ess"]
        assert 1 / molecules.MONITORED <= share < 0.2


def test_data_on_the_disk_train_as_those_in_memory(
    data: Path, finished: tuple[Path, BoltzmannGenerator], tmp_path: Path
) -> None:
    """Bit for bit; in small pieces of the data, too; and nothing of them is left."""
    ready = molecules.prepare(data, CHOICE, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    in_memory = Batch(*(None if part is None else part.clone() for part in ready.train))
    assert fingerprint(in_memory) == notes(finished[0] / "model.safetensors")["data"]
    flow = fit(ready.flow, in_memory, ready.training, tmp_path / "run", metric=ready.metric)
    assert all(map(torch.equal, flow.parameters(), finished[1].flow.parameters()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_data, "PIECE", 7)
        pieces = molecules.prepare(data, CHOICE, folder=tmp_path)
    assert torch.equal(pieces.train.x, in_memory.x) and torch.equal(pieces.train.force, in_memory.force)
    assert torch.equal(pieces.validation.x, ready.validation.x)


def test_of_much_data_some_rows_say_what_all_are_like(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a tenth of the frames filled the memory: domains and spreads are about the same."""
    whole = molecules.prepare(data, CHOICE, folder=tmp_path)
    monkeypatch.setattr(molecules, "VALIDATED", 6 * 11)
    monkeypatch.setattr(
        molecules, "thinned", lambda rows, numbers=6 * 100, **more: thinned(rows, numbers, **more)
    )
    ready = molecules.prepare(data, CHOICE, folder=tmp_path)
    assert len(ready.train.x) == 360 and len(ready.validation.x) == 11
    for some, all_ in zip(ready.flow.domains, whole.flow.domains, strict=True):
        assert type(some) is type(all_)
        assert some.low == pytest.approx(all_.low, abs=0.3 * all_.length)
        assert some.length == pytest.approx(all_.length, rel=0.3)
    monkeypatch.setattr(cycles, "CYCLES", 1)
    choice = CHOICE.model_copy(update={"refine": True})
    model = train_generator(data, tmp_path / "run", choice, energy=energy_of)
    assert model.log_prob(torch.from_numpy(trajectory.read(data).positions)).isfinite().all()
    assert read_json(tmp_path / "run" / "split.json") == ready.split == whole.split


def test_frames_that_do_not_fit_the_disk_are_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=19_000))
    with pytest.raises(OSError, match=r"training on 400 frames would take at least 19 kB in .*run, where 19"):
        train_generator(data, tmp_path / "run", CHOICE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", [1, 23])
def test_a_stopped_run_ends_with_the_same_weights(
    step: int,
    data: Path,
    finished: tuple[Path, BoltzmannGenerator],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the first checkpoint, and after some; `tests/training/test_fit.py` kills processes."""
    monkeypatch.setattr(molecules, "MONITORED", 200)
    with stopped_after(step), pytest.raises(StopError):
        train_generator(data, tmp_path / "run", CHOICE, energy=energy_of)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    torch.manual_seed(99)  # what was drawn in between is no matter
    resumed = train_generator(data, tmp_path / "run", CHOICE, energy=energy_of)
    assert all(map(torch.equal, weights(resumed), weights(finished[1])))
    assert read_log(tmp_path / "run" / "log.csv") == read_log(finished[0] / "log.csv")
    assert (tmp_path / "run" / "split.json").read_bytes() == (finished[0] / "split.json").read_bytes()


def test_a_finished_run_is_loaded(
    data: Path, finished: tuple[Path, BoltzmannGenerator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlowModule, "training_step", None)  # a step would fail
    before = (finished[0] / "model.safetensors").read_bytes()
    again = train_generator(data, finished[0], CHOICE, energy=energy_of)
    assert all(map(torch.equal, weights(again), weights(finished[1])))
    assert (finished[0] / "model.safetensors").read_bytes() == before


def test_other_runs_of_the_folder_are_refused(
    data: Path, finished: tuple[Path, BoltzmannGenerator], tmp_path: Path
) -> None:
    folder, _ = finished
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for change, difference in (
        ({"seed": 4}, r"training\.seed 3"),
        ({"bins": 5}, r"flow\.couplings"),
        ({"forces": False}, r".*training\.loss\.force_matching"),
        ({"preset": "best"}, r"flow\."),
    ):
        other = CHOICE.model_copy(update=change)
        with pytest.raises(ValueError, match=f"holds a run made with {difference}"):
            train_generator(data, folder, other)
    others = chain_data(tmp_path / "chain.h5", 400, seed=1)
    with pytest.raises(ValueError, match="holds a run made with"):
        train_generator(others, folder, CHOICE)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_what_cannot_be_trained_on_is_refused_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    samples = tmp_path / "samples.h5"
    with SampleWriter(samples, chain().plain()) as writer:
        writer.write(torch.tensor(chain().positions)[None], torch.zeros(1))
        writer.complete({})
    text = tmp_path / "text.h5"
    text.write_text("no trajectory")
    for path, choice, error, message in (
        (tmp_path / "none.h5", CHOICE, FileNotFoundError, "there is no trajectory"),
        (text, CHOICE, ValueError, "is not an HDF5 file"),
        (samples, CHOICE, ValueError, "holds samples of a model"),
        (chain_data(tmp_path / "few.h5", 60), CHOICE, ValueError, "at least 100 frames"),
        (data, MoleculeTraining(preset="paper"), ValueError, "at least 5 atoms, got 4"),
        (data, MoleculeTraining(zmatrix="paper"), ValueError, "has 4 atoms instead of 22"),
        (data, MoleculeTraining(reverse_kl=1.0), ValueError, "reverse_kl needs an energy"),
    ):
        with pytest.raises(error, match=message):
            train_generator(path, folder, choice)
    assert not folder.exists()


@pytest.mark.parametrize("transform", ["bspline", "rq", "bump"])
def test_the_preset_paper_of_alanine_dipeptide(transform: str, shaken: Path, tmp_path: Path) -> None:
    choice = MoleculeTraining.parse(
        {"preset": "paper", "transform": transform, "epochs": 2.0, "batch_size": 50, "compile": False}
    )
    model = train_generator(shaken, tmp_path / "run", choice)
    assert model.coordinates.zmatrix == internal_coordinates(molecule("ala2"), "paper").zmatrix
    found = notes(tmp_path / "run" / "model.safetensors")
    assert found["training"]["loss"] == {
        "nll": 0.999,
        "force_matching": 0.001,
        "force_limit": None,
        "energy_matching": 0.0,
        "reverse_kl": 0.0,
        "reverse_kl_samples": 256,
    }
    log = read_log(tmp_path / "run" / "log.csv")
    values = {name: value for _, name, value in log}
    assert values["loss"] == pytest.approx(0.999 * values["nll"] + 0.001 * values["force_matching"], rel=1e-5)
    assert "ess" not in values, "no energy was given"
    x, log_prob = model.sample_and_log_prob(10)
    assert x.isfinite().all() and log_prob.isfinite().all()


def test_the_reverse_divergence_uses_the_force_field(data: Path, tmp_path: Path) -> None:
    choice = CHOICE.model_copy(update={"reverse_kl": 0.5, "forces": False})
    model = train_generator(
        data, tmp_path / "run", choice, energy=lambda s: TorchForceField(s, compiled=False)
    )
    log = read_log(tmp_path / "run" / "log.csv")
    values = [value for _, name, value in log if name == "reverse_kl"]
    assert len(values) == 10 and all(math.isfinite(value) for value in values)
    # Its least value is minus log Z of the coordinates, where the density is u - L normalised.
    b, a, of_bond, of_angle = grids()
    log_z = 3 * math.log(np.trapezoid(of_bond, b)) + 2 * math.log(np.trapezoid(of_angle, a))
    assert values[-1] == pytest.approx(-log_z - math.log(2 * math.pi), abs=0.3)
    assert model.log_prob(torch.from_numpy(trajectory.read(data).positions)).isfinite().all()


def test_the_energy_of_coordinates() -> None:
    """That of the atoms less the volume; beyond 1,000 kT it grows as a logarithm only."""
    coordinates, kT = internal_coordinates(chain()), chain().kT
    q = torch.tensor(
        [[0.15, 0.16, 0.14, 2.0, 1.9, 0.3], [0.9, 0.15, 0.15, 2.0, 2.0, 0.0]], dtype=torch.float64
    )
    springs = (20_000 * (q[:, :3] - 0.15).square().sum(1) + 60 * (q[:, 3:5] - 2).square().sum(1)) / (2 * kT)
    assert springs[0] < 1000 < springs[1]
    springs[1] = 1000 + torch.log1p(springs[1] - 1000)
    volume = 2 * q[:, :3].log().sum(1) + q[:, 3:5].sin().log().sum(1)
    q.requires_grad_()
    for energy in (TorchForceField(chain(), compiled=False), energy_of(chain())):
        found = molecules._reduced(energy, coordinates)(q)
        torch.testing.assert_close(found.detach(), springs - volume, rtol=1e-5, atol=1e-4)
        (gradient,) = torch.autograd.grad(found.sum(), q)
        assert gradient.isfinite().all() and gradient[1].abs().max() < 20


def test_stiff_torsions_are_unwound(tmp_path: Path) -> None:
    """Across the seam of ±π, in training data and in the data that are judged by."""
    system = molecule("G")
    coordinates = internal_coordinates(system)
    x = frames(system, 150, noise=0.003).float().numpy()
    path = write(tmp_path / "g.h5", system, x, np.arange(150) % 3)
    q = coordinates(torch.from_numpy(x).double())[0][:, coordinates.torsions]
    jumps = (q.diff(dim=0).abs() > math.pi).any(0)
    assert jumps.any(), "some torsion of the molecule is near the seam"
    choice = MoleculeTraining(preset="quick", epochs=1.0, batch_size=45, bins=4, compile=False)
    model = train_generator(path, tmp_path / "run", choice)
    log = read_log(tmp_path / "run" / "log.csv")
    assert all(abs(value) < 1e4 for _, name, value in log if name == "validation_nll")
    inner = model.internal(torch.from_numpy(x))[0]
    for i, domain in enumerate(model.flow.domains):
        if isinstance(domain, kf.Line):
            assert ((inner[:, i] > domain.low) & (inner[:, i] < domain.high)).all()
    split = notes(tmp_path / "run" / "model.safetensors")["split"]
    assert split["kind"] == "time" and all(a < b for a, b in split["validation"])
    assert all(first[1] < second[0] for first, second in pairwise(split["validation"]))


def test_the_time_of_a_step_is_that_of_the_loss_and_its_gradient(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = molecules.prepare(data, CHOICE)
    assert ready.steps_in_a_pass == len(ready.train.x) / ready.training.batch_size
    before = [parameter.clone() for parameter in ready.flow.parameters()]
    steps: list[float] = []

    class Loss:
        def __call__(self, flow: torch.nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
            assert flow is not ready.flow and len(batch.x) == ready.training.batch_size
            steps.append(5.0 if not steps else 0.25)  # the first step also warms up
            return sum(p.sum() for p in flow.parameters()), {}

    monkeypatch.setattr(molecules, "make_loss", lambda *_: Loss())
    monkeypatch.setattr(molecules.time, "perf_counter", lambda: sum(steps))
    assert ready.seconds_per_step() == 0.25
    assert all(map(torch.equal, before, ready.flow.parameters()))
    assert all(parameter.grad is None for parameter in ready.flow.parameters())


def test_steps_and_epochs_are_two_lengths() -> None:
    assert training_config(MoleculeTraining(steps=70), 1000, 60).steps == 70
    with pytest.raises(ValueError, match="epochs and steps both say how long to train"):
        MoleculeTraining(steps=70, epochs=2.0)
