"""Find what users name: a model's file, the folder of its results, its chains, its energy."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from knotflow.energies import MolecularEnergy, force_field
from knotflow.flows.pretrained import FOLDER, pretrained_file, pretrained_names
from knotflow.inputs import file_fingerprint
from knotflow.molecules import MolecularSystem
from knotflow.storage import trajectory

CHAINS: Final = "exact.h5"
"""File name of exact chains, unless another is given."""


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


def find_chains(model: Path) -> Path | None:
    """The exact chains of a model: ``exact.h5`` beside it or in the working folder; None if not of it."""
    for path in (results_folder(model) / CHAINS, Path(CHAINS)):
        with suppress(OSError, ValueError):  # no such file, or another one of that name
            info = trajectory.open_info(path)
            source = info.provenance.get("source") if info.provenance.get("command") == "exact" else None
            if source and info.n_frames and source["fingerprint"] == file_fingerprint(model):
                return path
    return None


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
