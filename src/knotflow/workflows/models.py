"""Find what users name: a model's file, the folder for its results, the energy of its molecule."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from knotflow.energies import MolecularEnergy, force_field
from knotflow.flows.pretrained import FOLDER, pretrained_file, pretrained_names
from knotflow.molecules import MolecularSystem


def model_file(model: str | Path) -> Path:
    """The model file: the path itself, the model in a run folder, or a model that comes with knotflow.

    Args:
        model: A ``.safetensors`` file, the folder of a training run, or a name such as ``"ala2"``. Files and
            folders take precedence over names.

    Raises:
        FileNotFoundError: if there is no such model.
    """
    model = Path(model)
    path = model / "model.safetensors" if model.is_dir() else model
    if path.is_file():
        return path
    if model.is_dir():
        raise FileNotFoundError(
            f"there is no model.safetensors in {model}; a training writes it at its end: let it finish, or "
            "give another folder or file."
        )
    if str(model) in pretrained_names():
        return pretrained_file(str(model))
    raise FileNotFoundError(
        f"there is no model file {model}; models that come with knotflow: {', '.join(pretrained_names())}."
    )


def results_folder(model: Path) -> Path:
    """The folder of a model file or, for a model that comes with knotflow, a folder in ``runs``."""
    return Path("runs") / model.stem if model.parent == FOLDER else model.parent


def energy_of(
    system: MolecularSystem, given: MolecularEnergy | None = None, **options: Any
) -> AbstractContextManager[MolecularEnergy]:
    """The energy to use in a ``with`` block: the one that is given, or the molecule's force field.

    Args:
        system: The molecule.
        given: Used as it is, and left open at the end of the block.
        **options: How to compute the force field, see `knotflow.energies.force_field`; it is closed at the
            end of the block.
    """
    return force_field(system, **options) if given is None else nullcontext(given)
