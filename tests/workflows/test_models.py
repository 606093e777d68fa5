"""Models by what users call them, and molecules by name."""

from pathlib import Path

import pytest

import knotflow as kf
from knotflow.flows.pretrained import pretrained_file
from knotflow.inputs import file_fingerprint
from knotflow.storage import trajectory
from knotflow.workflows.models import find_chains, model_file, results_folder
from tests.analysis.generators import chain, chain_data, chain_generator


def test_a_model_is_a_file_a_folder_or_a_name(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    assert model_file(file) == model_file(str(tmp_path)) == file
    assert results_folder(file) == tmp_path
    assert model_file("ala2") == pretrained_file("ala2")
    assert results_folder(model_file("ala2")) == Path("runs/ala2")


def test_missing_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors in .*; a training writes it"):
        model_file(tmp_path)
    with pytest.raises(FileNotFoundError, match="come with knotflow: ala2"):
        model_file("nothing")


def test_simulate_refuses_what_it_cannot_make(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be ala2, a file \(\.pdb, .*got 'AAA'"):
        kf.simulate("AAA", tmp_path / "out.h5")
    with pytest.raises(ValueError, match=r"ending in \.h5"):
        kf.simulate("ala2", tmp_path / "out.dcd")
    with pytest.raises(ValueError, match="unknown key 'evry'"):
        kf.simulate("ala2", tmp_path / "out.h5", evry=2.0)
    assert not list(tmp_path.iterdir())


def test_exact_chains_are_those_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "chain"
    run.mkdir(parents=True)
    model = run / "model.safetensors"
    chain_generator().save(model)
    assert find_chains(model) is None
    frames = trajectory.read(chain_data(tmp_path / "data.h5", 20))
    own = {"command": "exact", "source": {"fingerprint": file_fingerprint(model)}}
    for folder in (tmp_path, run):  # the one beside the model comes first
        trajectory.create(folder / "exact.h5", chain(), own)
        assert find_chains(model) is None or folder == run  # no frames yet
        trajectory.append(folder / "exact.h5", frames, at=0)
        assert find_chains(model).resolve() == folder / "exact.h5"
    for other in ({"command": "exact", "source": {"fingerprint": "other"}}, {"command": "simulate"}):
        for folder in (tmp_path, run):
            (folder / "exact.h5").unlink()
            trajectory.create(folder / "exact.h5", chain(), other)
            trajectory.append(folder / "exact.h5", frames, at=0)
        assert find_chains(model) is None
