"""A whole evaluation, on a molecule of which everything is known and on alanine dipeptide."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import knotflow as kf
from knotflow.analysis import Evaluation, evaluate, frame_table
from knotflow.analysis.frame_table import observe_data
from knotflow.energies import MolecularEnergy, OpenMMEnergy, TorchForceField
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.storage import trajectory
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
from tests.molecules.molecules import molecule


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> tuple[Path, BoltzmannGenerator, Evaluation]:
    path = chain_data(tmp_path_factory.mktemp("chain") / "chain.h5")
    generator = chain_generator()
    found = evaluate(generator, path, TorchForceField(chain(), compiled=False), samples=5000)
    return path, generator, found


@pytest.fixture(scope="module")
def ala2_file(tmp_path_factory) -> Path:
    return ala2_data(tmp_path_factory.mktemp("ala2") / "ala2.h5")


def exact() -> dict[str, float]:
    """All that is known of the chain, by quadrature of one coordinate at a time."""
    b, a, target_b, target_a = grids()
    bond, angle = widths()
    found = dict.fromkeys(["log_z", "nll", "forward_kl", "reverse_kl", "log_square", "volume", "u"], 0.0)
    for n, x, density, middle, spread, volume, own in (
        (3, b, target_b, LENGTH, WIDTH * bond, b**2, bond),
        (2, a, target_a, ANGLE, TILT * angle, np.sin(a), angle),
    ):
        step = x[1] - x[0]
        z = density.sum() * step
        p, q = density / z, stats.norm.pdf(x, middle, spread)
        found["log_z"] += n * math.log(z)
        found["nll"] += n * float((p * (np.log(volume) - np.log(q))).sum() * step)
        found["forward_kl"] += n * float((p * np.log(p / q)).sum() * step)
        found["reverse_kl"] += n * float((q * np.log(q / p)).sum() * step)
        found["log_square"] += n * math.log((p**2 / q).sum() * step)
        found["u"] += n * float((p * (x - middle) ** 2).sum() * step) / (2 * own**2)
    found["log_z"] += math.log(2 * math.pi)
    found["nll"] += math.log(2 * math.pi)
    found["ess"] = math.exp(-found["log_square"])
    found["nll_limit"] = found["u"] + found["log_z"]
    found["log_z_bar"] = found["log_z"]
    return found


def test_known_answers_are_within_error_bars(known) -> None:
    _, _, found = known
    truth = exact()
    assert truth["nll"] - truth["nll_limit"] == pytest.approx(truth["forward_kl"], abs=1e-6)
    for key in ("nll", "nll_limit", "forward_kl", "reverse_kl", "log_z", "log_z_bar", "ess"):
        measure = found.measures[key]
        assert 0 < measure.error < 0.05, key
        assert abs(measure.value - truth[key]) < 4 * measure.error, key
    assert found.measures["ess_clipped"].value == pytest.approx(truth["ess"], abs=0.05)
    assert found.measures["pareto_k"].value < 0.3
    assert found.measures["wrong_handed"].value == found.measures["not_finite"].value == 0
    assert found.measures["energy_w2_reweighted"].value < found.measures["energy_w2"].value / 3
    assert found.measures["round_trip"].value < 1e-4


def test_the_papers_measure_leaves_out_the_frame(known) -> None:
    path, generator, found = known
    x = torch.from_numpy(trajectory.read(path).positions).double()
    a, b, c = (x[:, atom] for atom in generator.coordinates.zmatrix.frame)
    ab, bc = b - a, c - b
    angle = math.pi - torch.acos((ab * bc).sum(-1) / (ab.norm(dim=-1) * bc.norm(dim=-1)))
    missing = 2 * ab.norm(dim=-1).log() + bc.norm(dim=-1).log() + angle.sin().log()
    difference = found.measures["nll_paper"].value - found.measures["nll"].value
    assert difference == pytest.approx(-missing.mean().item(), abs=1e-4)
    z = found.measures["log_z_paper"].value - found.measures["log_z"].value
    assert z == pytest.approx(-missing.mean().item(), abs=0.1)
    # The divergence that the paper reports has no log Z and, without clashes, is linear in the energy.
    kld = found.measures["kld_paper"].value + found.measures["log_z_paper"].value
    assert kld == pytest.approx(exact()["reverse_kl"], abs=0.1)


def test_errors_of_forces_by_finite_differences(known) -> None:
    """The flow's density is known, its force a finite difference: their error is that of the evaluation."""
    path, generator, found = known
    frames = trajectory.read(path, slice(0, 4000, 40))
    generator = chain_generator().double()
    x, step = torch.from_numpy(frames.positions).double(), 1e-6
    force = torch.zeros_like(x)
    with torch.no_grad():
        for i in range(4):
            for k in range(3):
                moved = torch.zeros(4, 3, dtype=torch.float64)
                moved[i, k] = step
                difference = generator.log_prob(x + moved) - generator.log_prob(x - moved)
                force[:, i, k] = difference / (2 * step)
    expected = ((force.numpy() - frames.forces / chain().kT) ** 2).mean((1, 2))
    measure = found.measures["force_error"]
    assert abs(measure.value - expected.mean()) < 4 * expected.std() / math.sqrt(len(expected))
    assert found.measures["force_error_1e4"].value == pytest.approx(measure.value / 1e4)
    assert (
        found.measures["force_error_samples"].value > found.measures["force_error_samples_median"].value > 0
    )


def test_plain_is_json_and_the_seed_decides(known) -> None:
    path, generator, found = known
    plain = found.plain()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    data = plain["about"]["data"]
    assert (data["file"], data["rows"], data["frames"], data["blocks"]) == ("chain.h5", "all", 4000, 20)
    assert plain["residues"] == {} and plain["measures"]["energy_evaluations"]["value"] == 5032
    energy = TorchForceField(chain(), compiled=False)
    first, again, other = (
        evaluate(generator, path, energy, samples=300, seed=seed).plain()["measures"] for seed in (3, 3, 4)
    )
    assert first == again
    assert first["reverse_kl"] != other["reverse_kl"] and first["nll"] == other["nll"]


def test_double_precision_and_progress(known) -> None:
    path, _, found = known
    said = []
    generator = chain_generator().double()
    double = evaluate(
        generator,
        path,
        TorchForceField(chain(), compiled=False),
        samples=300,
        progress=lambda *now: said.append(now),
    )
    assert double.about["dtype"] == "float64" and found.about["dtype"] == "float32"
    assert double.measures["nll"].value == pytest.approx(found.measures["nll"].value, abs=1e-4)
    assert double.measures["round_trip"].value < 1e-10
    assert said[0] == ("data: densities and forces", 0, 4000)
    assert ("samples: positions, energies and forces", 300, 300) in said
    assert all(done <= total for _, done, total in said)
    assert set(double.seconds) == {
        "density of the data",
        "forces of the flow",
        "sampling",
        "energies",
        "distances and error bars",
    }


def test_only_rows_that_were_held_back(known) -> None:
    path, generator, _ = known
    split = {"file": "chain.h5", "frames": 4000, "kind": "replica", "validation": [[100, 150], [3900, 4000]]}
    energy = TorchForceField(chain(), compiled=False)
    found = evaluate(generator, path, energy, split=split, samples=100)
    assert found.about["data"]["rows"] == "validation" and found.about["data"]["frames"] == 150
    x = torch.from_numpy(trajectory.read(path).positions)
    log_p = generator.log_prob(torch.cat((x[100:150], x[3900:]))).detach()
    assert found.measures["nll"].value == pytest.approx(-log_p.mean().item(), abs=1e-4)
    every = evaluate(generator, path, energy, split={**split, "frames": 5}, samples=100)
    assert every.about["data"]["rows"] == "all" and every.about["data"]["frames"] == 4000


def test_forces_of_evenly_spaced_frames_in_pieces_of_any_size(known, monkeypatch) -> None:
    path, generator, _ = known
    monkeypatch.setattr(frame_table, "ATOMS_AT_ONCE", 4 * 100)
    monkeypatch.setattr(frame_table, "FRAMES_WITH_FORCES", 300)
    selected = np.ones(4000, dtype=bool)
    selected[500:1250] = False
    energy = TorchForceField(chain(), compiled=False)
    found = observe_data(generator, path, energy, selected)
    assert len(found) == 3250
    assert np.flatnonzero(np.isfinite(found.force_error)).tolist() == list(range(0, 3250, 11))
    frames = trajectory.read(path)[selected]
    np.testing.assert_array_equal(found.replica, frames.replica)
    np.testing.assert_allclose(found.energy, frames.energies / chain().kT)


def test_torsions_of_alanine_dipeptide(ala2_file: Path) -> None:
    with OpenMMEnergy(molecule("ala2"), workers=1) as energy:
        found = evaluate(ala2_generator(ala2_file), ala2_file, energy, samples=1200)
    assert found.about["data"]["replicas"] == 2 and found.about["data"]["blocks"] == 10
    assert list(found.residues) == ["ALA2"]
    torsions = found.residues["ALA2"]
    assert found.measures["wrong_handed"].value == 0
    for key in ("histogram_kl", "histogram_tv", "torus_w2"):
        for kind in ("_data", "", "_reweighted"):
            assert torsions[key + kind].value > 0
        assert torsions[key].error > 0 and torsions[f"{key}_reweighted"].error > 0
    # The short simulation never leaves phi < 0.
    assert torsions["side_difference_data"].value == math.inf
    assert torsions["side_difference_data"].plain()["value"] is None
    assert torsions["side_difference_data"].note == "phi > 0 is never visited."
    assert 0 < found.measures["forward_kl"].value < 10 and math.isfinite(found.measures["log_z_bar"].value)


def test_wrong_handedness_and_clashes_have_no_weight(ala2_file: Path) -> None:
    """Torsions all the way round: half of the samples are mirror images, most others have clashes."""

    class Broken(MolecularEnergy):
        """The force field, but NaN or infinite for some."""

        def __init__(self) -> None:
            self.field = TorchForceField(molecule("ala2"), compiled=False)
            self.n_atoms, self.temperature = self.field.n_atoms, self.field.temperature

        def energy(self, x):
            return self.energy_and_force(x)[0]

        def energy_and_force(self, x):
            u, force = self.field.energy_and_force(x)
            if len(x) > 32:  # not the frames of the data
                u[:10], u[10:15], force[:20] = math.nan, math.inf, math.nan
            return u, force

    generator = ala2_generator(ala2_file, turning=True)
    found = evaluate(generator, ala2_file, Broken(), samples=400)
    assert 150 < found.measures["wrong_handed"].value < 250
    assert found.measures["not_finite"].value == 15
    assert "without 20 samples" in found.measures["force_error_samples"].note
    assert math.isfinite(found.measures["kld_paper"].value)
    assert (
        math.isnan(found.measures["log_z_bar"].value)
        and "nothing in common" in found.measures["log_z_bar"].note
    )
    assert found.measures["ess"].value < 0.02
    json.dumps(found.plain(), allow_nan=False)


def test_no_sample_with_weight_at_all(known) -> None:
    path, generator, _ = known

    class Nothing(TorchForceField):
        def energy_and_force(self, x):
            u, force = super().energy_and_force(x)
            return (u if len(x) <= 32 else u * math.nan), force

    found = evaluate(generator, path, Nothing(chain(), compiled=False), samples=100)
    assert found.measures["not_finite"].value == 100
    for key in ("log_z", "log_z_bar", "forward_kl", "reverse_kl", "ess", "kld_paper"):
        assert math.isnan(found.measures[key].value)
    assert math.isfinite(found.measures["nll"].value)
    json.dumps(found.plain(), allow_nan=False)


def test_a_model_that_training_ruined(ala2_file: Path) -> None:
    generator = ala2_generator(ala2_file)
    for parameter in generator.parameters():
        parameter.data.fill_(math.nan)
    found = evaluate(generator, ala2_file, TorchForceField(molecule("ala2"), compiled=False), samples=50)
    assert found.measures["not_finite"].value == 50 and math.isnan(found.measures["nll"].value)
    assert "120 frames without a finite density" in found.measures["nll"].note and found.residues == {
        "ALA2": {}
    }
    json.dumps(found.plain(), allow_nan=False)


def test_frames_outside_of_intervals_are_counted(known) -> None:
    """Bonds on a narrow interval: many frames have no density, and are said to have none."""
    path, generator, _ = known
    bond = widths()[0]
    q, _ = generator.internal(torch.from_numpy(trajectory.read(path).positions))
    middle = float(q[:, 0].median())
    domains = [kf.Interval(middle - 2 * bond, middle + 2 * bond), *generator.flow.domains[1:]]
    flow = kf.Flow.on(domains, rounds=1, transform={"bins": 4}, conditioner={"hidden": [4]})
    narrow = BoltzmannGenerator(internal_coordinates(chain()), flow, chain().plain())
    outside = int(((q[:, 0] - middle).abs() > 2 * bond).sum())
    found = evaluate(narrow, path, TorchForceField(chain(), compiled=False), samples=200)
    assert outside > 50 and f"{outside:,} frames without a finite density" in found.measures["nll"].note
    assert math.isfinite(found.measures["nll"].value) and math.isfinite(found.measures["force_error"].value)


def test_data_that_do_not_fit_are_refused(known, ala2_file: Path, tmp_path: Path) -> None:
    path, generator, _ = known
    energy = TorchForceField(chain(), compiled=False)
    with pytest.raises(
        ValueError, match=r"chain with 4 atoms, the data of ala2 with 22; use data of the model"
    ):
        evaluate(generator, ala2_file, energy)
    x = trajectory.read(path, slice(0, 20)).positions
    warm = write(tmp_path / "warm.h5", chain(310.0), x, np.zeros(20))
    with pytest.raises(ValueError, match="model is at 300 K, the data are at 310 K"):
        evaluate(generator, warm, energy)
    other = write(
        tmp_path / "vacuum.h5", molecule("vacuum"), trajectory.read(ala2_file).positions, np.zeros(120)
    )
    with pytest.raises(ValueError, match=r"energies in the data differ by .* kT from those of the model's"):
        evaluate(ala2_generator(ala2_file), other, TorchForceField(molecule("ala2"), compiled=False))
    trajectory.create(tmp_path / "empty.h5", chain(), {})
    with pytest.raises(ValueError, match="holds no frames yet"):
        evaluate(generator, tmp_path / "empty.h5", energy)


def test_atoms_and_bonds_are_compared(known, tmp_path: Path) -> None:
    path, generator, _ = known
    energy = TorchForceField(chain(), compiled=False)
    x = trajectory.read(path, slice(0, 5)).positions
    renamed, rebonded = chain().plain(), chain().plain()
    renamed["topology"]["chains"][0]["residues"][0]["atoms"][2]["name"] = "CX"
    rebonded["topology"]["bonds"][2] = [0, 3]
    parse = type(chain()).parse
    write(tmp_path / "named.h5", parse(renamed), x, np.zeros(5))
    with pytest.raises(ValueError, match=r"atom 2 of the model \(chain\) is BUT C3 \(C\), of the data .* CX"):
        evaluate(generator, tmp_path / "named.h5", energy)
    write(tmp_path / "bonded.h5", parse(rebonded), x, np.zeros(5))
    with pytest.raises(ValueError, match="same atoms but different bonds"):
        evaluate(generator, tmp_path / "bonded.h5", energy)
