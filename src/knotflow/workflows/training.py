"""Train a Boltzmann generator on a trajectory, and recognise a model by its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knotflow.energies import force_field
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.progress import Progress, silent
from knotflow.storage import trajectory
from knotflow.training.molecules import MoleculeTraining, train_generator


def train(
    data: str | Path,
    out: str | Path = "runs/train",
    preset: str = "best",
    *,
    progress: Progress = silent,
    **settings: Any,
) -> BoltzmannGenerator:
    """Train a Boltzmann generator on a trajectory.

    Called again with the same arguments, an interrupted training is continued and a finished one is loaded.

    Args:
        data: A trajectory of `simulate`, or of ``knotflow import``.
        out: The run folder. It gets ``model.safetensors``, which is all that sampling needs.
        preset: ``"best"``, ``"quick"`` or ``"paper"``.
        progress: Called with the progress.
        **settings: Departures from the preset: any field of `MoleculeTraining`, such as ``epochs``,
            ``forces``, ``transform``, ``bins``, ``batch_size``, ``seed``.

    Raises:
        ValueError: if a setting is wrong, or the folder holds another training.
        OSError: if a file is missing or damaged.
    """
    choice = MoleculeTraining.parse({"preset": preset, **settings})
    return train_generator(data, out, choice, energy=force_field, progress=progress)


def described(data: Path) -> str:
    """A trajectory by its name and length, which is what a model notes of its data."""
    return _named(data.name, trajectory.open_info(data).n_frames)


def training_inputs(choice: MoleculeTraining, data: Path) -> dict[str, Any]:
    """Everything that a model trained on a trajectory depends on."""
    return {"data": described(data), **_choice(choice)}


def noted_training(notes: Mapping[str, Any]) -> dict[str, Any]:
    """The same, as far as the notes of a model say."""
    found = {}
    if notes.get("split"):
        found["data"] = _named(notes["split"]["file"], notes["split"]["frames"])
    if notes.get("choice"):
        # Version 0.2 and before had own samples in the place of the refinement.
        known = {key: value for key, value in notes["choice"].items() if key != "own_samples"}
        found |= _choice(MoleculeTraining.parse(known))
    return found


def _named(file: str, frames: int) -> str:
    return f"{file} ({frames:,} frames)"


def _choice(choice: MoleculeTraining) -> dict[str, Any]:
    """The settings, less ``compile``, which earlier versions set themselves and which changes no result."""
    return {key: value for key, value in choice.plain().items() if key != "compile"}
