"""Chains against data of the same distribution, of another, and noise by brute force."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from knotflow.analysis.agreement import BINS, Ensemble
from knotflow.dynamics import FlowEnergy
from knotflow.dynamics.chain_run import ExactPlan
from knotflow.energies import TorchForceField
from knotflow.files import read_json
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.sampling import Sampler
from knotflow.json_values import plain
from knotflow.molecules import MolecularSystem
from knotflow.paper.chains_against_md import bin_deviations, run, variation
from knotflow.statistics.estimates import over_replicas
from knotflow.storage import trajectory
from knotflow.storage.trajectory import Frames
from tests.analysis.generators import ala2_data, ala2_generator, chain, chain_data
from tests.dynamics.wrong_flows import bent_chain_generator


def flow_data(path: Path, model: BoltzmannGenerator, n: int, replicas: int, shift: float = 0.0) -> Path:
    """Independent samples of a flow as if it were dynamics on its energy."""
    x, log_prob = Sampler(model, seed=7).take(n)
    system = MolecularSystem.parse(model.molecule)
    rows = np.arange(n)
    energies = (shift - log_prob.double().numpy()) * system.kT
    trajectory.create(path, system, {})
    frames = Frames(x.numpy(), np.zeros(x.shape), energies, rows * replicas // n, rows, rows)
    trajectory.append(path, frames, at=0)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, BoltzmannGenerator]:
    """A model of alanine dipeptide with torsions all the way round, samples of it, the same shifted."""
    folder = tmp_path_factory.mktemp("exact")
    model = ala2_generator(ala2_data(folder / "md.h5", frames=30), turning=True).requires_grad_(False)
    model.save(folder / "model.safetensors")
    flow_data(folder / "data.h5", model, 12_000, 40)
    flow_data(folder / "shifted.h5", model, 2000, 40, shift=1.0)
    return folder, model


PLAN = {"chains": 40, "rows": 100, "burn_in": 0, "every": 1, "flow_moves": 3, "hmc_moves": 0}


def test_the_same_distribution_agrees_and_another_does_not(made, tmp_path: Path) -> None:
    """The energy of the flow itself: what is not a mirror image is accepted, and samples are independent."""
    folder, model = made
    source, plan, seen = folder / "model.safetensors", ExactPlan.parse(PLAN), []
    options = {"energy": FlowEnergy(model), "progress": lambda *now: seen.append(now)}
    result = run(source, folder / "data.h5", tmp_path, plan, **options)
    found = result.comparison
    assert (found.chains.n_frames, found.chains.n_replicas) == (4000, 40) and len(seen) == 101
    assert (found.data.n_frames, found.data.n_replicas) == (12_000, 40)
    z = found.agreement
    assert abs(z.energy) < 4 and abs(z.left) < 4 and abs(found.difference) < 4
    assert z.n_bins > 20 and 0.6 < z.histogram < 1.5 and found.largest < 5
    assert found.variation.value == pytest.approx(found.variation.expected, rel=0.4)
    assert 0.01 < found.variation.expected < 0.1
    assert abs(found.chains.difference.value) < 5 * found.chains.difference.error < 0.5
    assert 0.2 < result.flow_acceptance < 0.8 and math.isnan(result.hmc_acceptance)
    assert result.memory["energy"].time < 2 and result.evaluations == 40 * (100 * 3 + 100)
    written = read_json(tmp_path / "exact.json")
    assert written["comparison"]["agreement"]["energy"] == z.energy and written["hmc_acceptance"] is None
    assert np.shape(written["comparison"]["deviations"]) == (BINS, BINS)
    assert (tmp_path / "exact.png").read_bytes().startswith(b"\x89PNG")

    # The chains are there now; these data are 1 kT off.
    other = run(source, folder / "shifted.h5", tmp_path, plan, **options)
    assert len(seen) == 101 and other.comparison.chains == found.chains
    assert other.comparison.agreement.energy < -4


def test_a_wrong_flow_agrees_with_exact_frames_of_a_force_field(tmp_path: Path) -> None:
    data = chain_data(tmp_path / "data.h5")
    bent_chain_generator().float().save(tmp_path / "model.safetensors")
    plan = ExactPlan.parse({"chains": 200, "rows": 4, "burn_in": 20, "every": 3, "time_step": 0.003})
    energy = TorchForceField(chain(), compiled=False)
    found = run(tmp_path / "model.safetensors", data, tmp_path / "out", plan, energy=energy).comparison
    assert abs(found.agreement.energy) < 4 and found.agreement.bonds < 2
    assert found.deviations == [] and found.chains.difference is None and math.isnan(found.variation.value)
    # Samples of the flow itself would not.
    x = bent_chain_generator().sample(800, generator=torch.Generator().manual_seed(0))
    u = energy.energy(x).numpy()
    assert abs(u.mean() - found.data.energy.value) > 8 * u.std() / math.sqrt(len(u))


def test_data_of_another_molecule_are_refused(made, tmp_path: Path) -> None:
    data = chain_data(tmp_path / "data.h5", n=20)
    with pytest.raises(ValueError, match="atoms"):
        run(made[0] / "model.safetensors", data, tmp_path, ExactPlan.parse(PLAN))
    assert not (tmp_path / "chains.h5").exists()


def ensemble(random: np.random.Generator, shares: np.ndarray, replicas: int, frames: int) -> Ensemble:
    """Bins of independent frames of known shares."""
    place = random.choice(len(shares), (replicas, frames), p=shares).reshape(-1)
    replica = np.repeat(np.arange(replicas, dtype=np.int32), frames)
    keys = [f"bin {m},{n}" for m in range(BINS) for n in range(BINS)]
    averages = {key: over_replicas((place == i).astype(float), replica) for i, key in enumerate(keys)}
    counts = {
        key: (int((place == i).sum()), len(np.unique(replica[place == i]))) for i, key in enumerate(keys)
    }
    return Ensemble(replicas * frames, replicas, averages, counts)


def test_noise_is_as_large_as_expected() -> None:
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.full(BINS * BINS, 0.5))
    found, deviations = [], []
    for _ in range(20):
        a, b = ensemble(random, shares, 30, 200), ensemble(random, shares, 20, 100)
        found.append(variation(a, b, "bin"))
        z = bin_deviations(a, b)
        deviations.append(z[np.isfinite(z)])
        few = np.array([[b.counts[f"bin {m},{n}"][0] < 100 for n in range(BINS)] for m in range(BINS)])
        assert np.isnan(z[few]).all()
    values, expected = np.mean([f.value for f in found]), np.mean([f.expected for f in found])
    assert values == pytest.approx(expected, rel=0.08)
    # Half the sum of |p - q| for multinomial counts, in the limit of many frames.
    exact = 0.5 * np.sqrt(2 / np.pi * shares * (1 - shares) * (1 / 6000 + 1 / 2000)).sum()
    assert expected == pytest.approx(exact, rel=0.05)
    assert np.concatenate(deviations).std() == pytest.approx(1.0, abs=0.12)


def test_numbers_that_json_cannot_hold() -> None:
    assert plain({"a": [1.0, math.nan], "b": (math.inf, "x", 3), "c": None}) == {
        "a": [1.0, None],
        "b": [None, "x", 3],
        "c": None,
    }
