"""From one energy to another, for water on springs, whose free energies an integral gives."""

from pathlib import Path

import numpy as np
import pytest
import torch

import knotflow as kf
from knotflow.dynamics.chain_run import ExactPlan
from knotflow.energies import force_field, read_energy, without_force_field
from knotflow.files import read_json
from knotflow.molecules.system import MolecularSystem
from knotflow.storage import trajectory
from knotflow.workflows import reweighting
from knotflow.workflows.reweighting import with_energy
from tests.bare_molecules import bare

NEW = "module:tests.energy_factories:stiffer_springs"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short training on springs; its data are beside the model."""
    folder = tmp_path_factory.mktemp("springs")
    energy = read_energy("module:tests.energy_factories:springs")
    system = without_force_field("water", bare("H2O"), energy or {})
    kf.simulate(system, folder / "data.h5", 0.016, every=0.02, equilibration=0.2, workers=1)
    kf.train(folder / "data.h5", folder, preset="quick", epochs=6.0)
    return folder


@pytest.fixture(scope="module")
def systems(run: Path) -> tuple[MolecularSystem, MolecularSystem]:
    first = trajectory.open_info(run / "data.h5").system
    return first, with_energy(first, NEW)


@pytest.fixture(autouse=True)
def _short_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ExactPlan.parse({"chains": 64, "rows": 20, "burn_in": 5, "every": 1, "md_steps": 4})
    monkeypatch.setattr(reweighting, "CHAIN_PLAN", plan)


def log_z(system: MolecularSystem) -> float:
    r"""By quadrature of $b_1^2 b_2^2 \sin\theta\, e^{-u}$; constants are the same for both energies."""
    b, angle = np.linspace(0.05, 0.15, 81), np.linspace(1e-3, np.pi - 1e-3, 300)
    b1, b2, theta = np.meshgrid(b, b, angle, indexing="ij")
    x = np.zeros((b1.size, 3, 3))
    x[:, 1, 0] = b1.ravel()
    x[:, 2, 0], x[:, 2, 1] = (b2 * np.cos(theta)).ravel(), (b2 * np.sin(theta)).ravel()
    u = force_field(system).energy(torch.tensor(x)).numpy()
    return float(np.log(((b1**2 * b2**2 * np.sin(theta)).ravel() * np.exp(u.min() - u)).sum()) - u.min())


@pytest.mark.parametrize("refine", [False, True])
def test_free_energies_are_those_of_quadrature(run: Path, systems, tmp_path: Path, refine: bool) -> None:
    first, second = systems
    result = kf.reweight(run, second, tmp_path / "out", samples=3000, refine=refine, steps=12)
    truth = log_z(first) - log_z(second)
    found = result.found
    assert found.bar is not None
    for estimate in (found.importance, found.bar):
        assert estimate.value == pytest.approx(truth, abs=4 * estimate.error) and estimate.error < 0.1
    assert abs(truth) > 0.5  # the energies differ by more than the errors
    absolute = first.kT * found.difference.value + second.zero_kj - first.zero_kj
    assert found.difference_kj.value == pytest.approx(absolute)
    assert 0 < (result.acceptance or 0) < 1
    assert bool(result.adapted) == refine
    # The model is one of the new energy, for all commands.
    weighted = kf.sample(tmp_path / "out", 500, weights=True).samples
    assert weighted is not None and weighted.system.energy == second.energy
    noted = read_json(tmp_path / "out" / "reweight.json")
    assert noted["free_energy"]["bar_kt"]["value"] == found.bar.value


def test_errors_of_shared_samples_cancel(run: Path, systems, tmp_path: Path) -> None:
    """A new energy that is the old one plus a constant differs by it, without any error."""
    first, _ = systems
    found = kf.reweight(run, first, tmp_path / "same", samples=500, exact=False).found
    assert found.importance.value == pytest.approx(0, abs=1e-9)
    assert found.importance.error == pytest.approx(0, abs=1e-9)
    assert found.names == ("first module", "new module")


def test_without_data_and_chains_there_are_only_weights(run: Path, systems, tmp_path: Path) -> None:
    model = tmp_path / "alone.safetensors"
    model.write_bytes((run / "model.safetensors").read_bytes())
    result = kf.reweight(model, systems[1], tmp_path / "out", samples=500, exact=False)
    assert result.found.bar is None and result.acceptance is None
    assert result.found.difference is result.found.importance
    assert result.evaluations == 500


def test_chains_go_on_and_other_settings_are_refused(
    run: Path, systems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(reweighting, "compare_energies", interrupt)
        with pytest.raises(KeyboardInterrupt):
            kf.reweight(run, systems[1], out, samples=200)
    before = (out / "exact.h5").stat().st_mtime_ns
    again = kf.reweight(run, systems[1], out, samples=200)
    assert (out / "exact.h5").stat().st_mtime_ns == before
    whole = kf.reweight(run, systems[1], tmp_path / "whole", samples=200)
    assert again.found.difference == whole.found.difference
    with pytest.raises(ValueError, match="seed"):
        kf.reweight(run, systems[1], out, samples=200, seed=1)
    with pytest.raises(ValueError, match="energy"):
        kf.reweight(run, systems[0], out, samples=200)
    with pytest.raises(FileExistsError, match=r"holds model.safetensors, but no inputs.json"):
        kf.reweight(run, systems[1], run, samples=200)


def test_the_new_energy_must_be_named_once(systems) -> None:
    with pytest.raises(ValueError, match="the new energy is missing"):
        with_energy(systems[0])
    with pytest.raises(ValueError, match="two energies; give only one"):
        with_energy(systems[0], NEW, force_field=["amber96.xml"])
    with pytest.raises(ValueError, match="multiplicity"):
        with_energy(systems[0], "xtb", charge=1)


def test_another_molecule_is_refused(run: Path, tmp_path: Path) -> None:
    from knotflow.molecules import ala2

    with pytest.raises(ValueError, match="22"):
        kf.reweight(run, ala2(), tmp_path / "out", samples=200)
    assert not (tmp_path / "out").exists()
