"""The argument of all commands on trained models: which file it means, and where results go."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

import knotflow
from knotflow.transforms.families import FAMILIES, RENAMED


class _Renamed(StrEnum):
    """An enumeration that knows the names of earlier versions, which files of settings may have."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls(RENAMED[str(value)]) if value in RENAMED else None


if TYPE_CHECKING:
    TransformName = _Renamed
else:
    TransformName = _Renamed("TransformName", {name: name for name in FAMILIES})
BSPLINE: Final = TransformName("bspline")
MODELS: Final = Path(knotflow.__file__).parent / "models"
"""The folder of `knotflow.flows.pretrained`, which cannot be asked at every Tab: it imports torch."""


def complete_model(incomplete: str) -> list[str]:
    """What Tab offers: models of the package, and model files and run folders nearby.

    Nothing if none of them fits; the shell then completes file names.
    """
    names = [path.stem for path in sorted(MODELS.glob("*.safetensors"))]
    files = [str(path) for path in sorted(Path().glob("*.safetensors"))]
    runs = [str(path.parent) for path in sorted(Path().glob("*/model.safetensors"))]
    runs += [str(path.parent) for path in sorted(Path().glob("*/*/model.safetensors"))]
    return [word for word in (*names, *files, *runs) if word.startswith(incomplete)]


ModelArgument = Annotated[
    Path,
    typer.Argument(
        help="Model file (.safetensors), folder of a training run, or ala2, which comes with knotflow.",
        autocompletion=complete_model,
    ),
]


def model_file(model: Path) -> Path:
    """The model file that a user means, see `knotflow.workflows.models`."""
    from knotflow.workflows import models

    return models.model_file(model)


def results_folder(model: Path) -> Path:
    """The folder for results about a model file, see `knotflow.workflows.models`."""
    from knotflow.workflows import models

    return models.results_folder(model)


def results_file(path: Path, out: Path | None, name: str) -> Path:
    """The file for results about a model: as the user says, or by its usual name.

    Raises:
        IsADirectoryError: if it is a folder.
    """
    target = results_folder(path) / name if out is None else out
    if target.is_dir():
        raise IsADirectoryError(f"--out must be a file, such as {name}, but {target} is a folder.")
    return target
