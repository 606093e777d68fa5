"""Models by what users call them, and molecules by name."""

from pathlib import Path

import pytest

import knotflow as kf
from knotflow.flows.pretrained import pretrained_file
from knotflow.workflows.models import model_file, results_folder


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
    with pytest.raises(ValueError, match=r'a \.pdb file or "ala2", got \'AAA\'; make peptides'):
        kf.simulate("AAA", tmp_path / "out.h5")
    with pytest.raises(ValueError, match=r"ending in \.h5"):
        kf.simulate("ala2", tmp_path / "out.dcd")
    with pytest.raises(ValueError, match="unknown key 'evry'"):
        kf.simulate("ala2", tmp_path / "out.h5", evry=2.0)
    assert not list(tmp_path.iterdir())
