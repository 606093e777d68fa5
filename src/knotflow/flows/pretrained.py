"""Trained models that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "models"
"""Model files, each with a card (``.md``) of the same name on its data, training and measures."""


def pretrained_names() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def pretrained_file(name: str) -> Path:
    """The file of a model that comes with the package; its card is next to it.

    Raises:
        ValueError: if there is no such model.
    """
    names = pretrained_names()
    if name not in names:
        raise ValueError(f"models that come with knotflow: {', '.join(names)}; got {name!r}.")
    return FOLDER / f"{name}.safetensors"
