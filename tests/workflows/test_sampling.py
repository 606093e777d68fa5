"""Samples of a model file: in memory and in a file they are the same, and the file notes its inputs."""

from pathlib import Path

import numpy as np
import pytest

from knotflow.energies import TorchForceField
from knotflow.flows.sampling import Sampler
from knotflow.inputs import made_of
from knotflow.storage.samples import read_samples
from knotflow.workflows.sampling import noted_samples, sample, sample_inputs
from tests.analysis.generators import chain, chain_generator
from tests.analysis.ladders import warm_generator


@pytest.fixture
def model(tmp_path: Path) -> Path:
    chain_generator().float().save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_in_memory_and_in_a_file(model: Path, tmp_path: Path) -> None:
    energy, out, told = TorchForceField(chain(), compiled=False), tmp_path / "a.h5", []
    here = sample(model, 30, weights=True, seed=3, energy=energy)
    there = sample(
        model, 30, out, weights=True, seed=3, batch=20, energy=energy, progress=lambda *now: told.append(now)
    )
    assert [now[:3] for now in told] == [("sampling", done, 30) for done in (0, 20, 30)]
    assert told[-1][3].endswith(" per second") and there.files == (out,)
    assert there.samples is None and there.effective is not None and there.effective.n == 30
    found, kept = here.samples, read_samples(out)
    assert found is not None and found.log_weights is not None and len(found) == 30
    np.testing.assert_array_equal(found.log_prob, kept.log_prob)
    np.testing.assert_allclose(found.energies, kept.energies, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.log_weights, kept.log_weights, rtol=1e-6, atol=1e-6)
    assert found.provenance == {key: kept.provenance[key] for key in found.provenance}
    plain = sample(model, 30, seed=3).samples
    assert plain is not None and plain.energies is None and plain.log_weights is None


def test_samples_at_another_temperature(tmp_path: Path) -> None:
    path = tmp_path / "warm.safetensors"
    warm_generator().save(path)
    energy = TorchForceField(chain(400.0), compiled=False)
    found = sample(path, 30, weights=True, seed=3, temperature=400.0, energy=energy).samples
    assert found is not None and found.molecule["temperature"] == 400.0
    _, log_prob = Sampler(warm_generator().at(400.0), 3).take(30)
    np.testing.assert_array_equal(found.log_prob, log_prob.double().numpy())
    np.testing.assert_allclose(found.log_weights, -found.energies / chain(400.0).kT - found.log_prob)
    assert found.provenance["temperature"] == 400.0
    with pytest.raises(ValueError, match="the energy is at 300 K, the samples are at 400 K"):
        cold = TorchForceField(chain(), compiled=False)
        sample(path, 30, weights=True, temperature=400.0, energy=cold)


def test_the_file_notes_its_inputs(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.h5"
    assert noted_samples(out) is None
    sample(model, 20, out, seed=3)
    wanted = sample_inputs(model, 20, seed=3)
    assert made_of(noted_samples(out), wanted)
    for other in (
        {"seed": 4},
        {"weights": True},
        {"float64": True},
        {"keep_mirrored": True},
        {"temperature": 400.0},
    ):
        assert not made_of(noted_samples(out), sample_inputs(model, 20, **{"seed": 3, **other}))
    chain_generator().double().save(model)
    assert not made_of(noted_samples(out), sample_inputs(model, 20, seed=3))
    with pytest.raises(FileExistsError, match="exists already"):
        sample(model, 20, out)
    out.write_bytes(b"no samples")
    assert noted_samples(out) is None
