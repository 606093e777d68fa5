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
    """The model file that the argument means: itself, that of a run folder, or one of the package.

    Raises:
        FileNotFoundError: if there is none.
    """
    from knotflow.flows.pretrained import pretrained_file, pretrained_names

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


def results_folder(path: Path) -> Path:
    """Where results about a model go: beside it, or to ``runs`` for a model of the package."""
    from knotflow.flows.pretrained import FOLDER

    return Path("runs") / path.stem if path.parent == FOLDER else path.parent


def results_file(path: Path, out: Path | None, name: str) -> Path:
    """The file for results about a model: as the user says, or by its usual name.

    Raises:
        IsADirectoryError: if it is a folder.
    """
    target = results_folder(path) / name if out is None else out
    if target.is_dir():
        raise IsADirectoryError(f"--out must be a file, such as {name}, but {target} is a folder.")
    return target
