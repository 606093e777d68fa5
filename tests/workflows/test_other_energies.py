"""From a molecule without a force field to weighted samples and an evaluation, against quadrature."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import knotflow as kf
from knotflow.analysis.evaluation import evaluation_inputs
from knotflow.energies import force_field, read_energy, without_force_field
from knotflow.molecules.system import MolecularSystem
from knotflow.storage import trajectory
from tests.bare_molecules import bare


@pytest.fixture(scope="module")
def system() -> MolecularSystem:
    energy = read_energy("module:tests.energy_factories:springs")
    return without_force_field("water", bare("H2O"), energy or {})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, system: MolecularSystem) -> tuple[Path, Path]:
    """Data, and the folder of a short training on them."""
    folder = tmp_path_factory.mktemp("springs")
    data = kf.simulate(system, folder / "a.h5", 0.016, every=0.02, equilibration=0.2, workers=1)
    kf.train(data, folder / "run", preset="quick", epochs=6.0)
    return data, folder / "run"


def exact_mean_energy(system: MolecularSystem) -> float:
    r"""Mean of u in kT over bonds and angle, whose density is $b_1^2 b_2^2 \sin\theta\, e^{-u}$."""
    b, angle = np.linspace(0.06, 0.14, 61), np.linspace(1e-3, np.pi - 1e-3, 300)
    b1, b2, theta = np.meshgrid(b, b, angle, indexing="ij")
    x = np.zeros((b1.size, 3, 3))
    x[:, 1, 0] = b1.ravel()
    x[:, 2, 0], x[:, 2, 1] = (b2 * np.cos(theta)).ravel(), (b2 * np.sin(theta)).ravel()
    u = force_field(system).energy(torch.tensor(x)).numpy()
    weight = (b1**2 * b2**2 * np.sin(theta)).ravel() * np.exp(u.min() - u)
    return float((weight * u).sum() / weight.sum())


def test_weighted_samples_have_the_mean_energy_of_the_target(
    system: MolecularSystem, run: tuple[Path, Path]
) -> None:
    drawn = kf.sample(run[1], 4000, weights=True).samples
    assert drawn is not None and drawn.log_weights is not None
    u = force_field(system).energy(torch.as_tensor(drawn.positions).double()).numpy()
    weight = np.exp(drawn.log_weights - np.max(drawn.log_weights))
    weight /= weight.sum()
    mean = float((weight * u).sum())
    error = float(np.sqrt((weight**2 * (u - mean) ** 2).sum()))
    assert error < 0.1
    assert mean == pytest.approx(exact_mean_energy(system), abs=4 * error)


def test_data_with_another_zero_are_judged_alike(run: tuple[Path, Path], tmp_path: Path) -> None:
    """The same frames, as if their molecule had been minimised elsewhere to another structure."""
    data, model = run
    info, frames = trajectory.open_info(data), trajectory.read(data)
    energy = dict(info.system.energy or {}, zero_kj=info.system.zero_kj + 50.0)
    trajectory.create(tmp_path / "b.h5", replace(info.system, energy=energy), {"command": "test"})
    trajectory.append(tmp_path / "b.h5", replace(frames, energies=frames.energies - 50.0), at=0)
    one, other = (
        kf.evaluate(model, path, samples=200, all_frames=True).measures for path in (data, tmp_path / "b.h5")
    )
    noted = kf.evaluate(model, data, tmp_path / "metrics.json", samples=200).about
    assert noted["energy"] == evaluation_inputs(model / "model.safetensors", data, samples=200)["energy"]
    assert one["nll"].value == other["nll"].value
    assert one["log_z_bar"].value == pytest.approx(other["log_z_bar"].value, abs=1e-4)
