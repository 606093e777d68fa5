"""What a trained model was made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knotflow.storage import trajectory
from knotflow.training.molecules import MoleculeTraining


def described(data: Path) -> str:
    """A trajectory by its name and length, which is what a model knows of its data."""
    return _named(data.name, trajectory.open_info(data).n_frames)


def training_inputs(choice: MoleculeTraining, data: Path) -> dict[str, Any]:
    """All that a model trained on a trajectory depends on."""
    return {"data": described(data), **_choice(choice)}


def noted_training(notes: Mapping[str, Any]) -> dict[str, Any]:
    """The same, as far as the notes of a model tell."""
    found = {}
    if notes.get("split"):
        found["data"] = _named(notes["split"]["file"], notes["split"]["frames"])
    if notes.get("choice"):
        found |= _choice(MoleculeTraining.parse(notes["choice"]))
    return found


def _named(file: str, frames: int) -> str:
    return f"{file} ({frames:,} frames)"


def _choice(choice: MoleculeTraining) -> dict[str, Any]:
    """Compiled or not, as earlier versions did by themselves, a training comes to the same."""
    return {key: value for key, value in choice.plain().items() if key != "compile"}
