"""The argument of all commands that take a trained model: its file, and where results go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

import knotflow
from knotflow.files import check_ending
from knotflow.transforms.families import FAMILIES

if TYPE_CHECKING:
    TransformName = str
else:
    TransformName = Literal[tuple(FAMILIES)]
MODELS: Final = Path(knotflow.__file__).parent / "models"
"""The folder of `knotflow.flows.pretrained`, which imports torch: too slow for completion with Tab."""


def complete_model(incomplete: str) -> list[str]:
    """Completions with Tab: models that come with knotflow, model files and run folders nearby.

    If none fits, the shell completes file names.
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


def results_file(path: Path, out: Path | None, name: str) -> Path:
    """The file for results about a model: as the user says, or by its usual name, whose ending it must have.

    Raises:
        ValueError: if it has another ending.
        IsADirectoryError: if it is a folder.
    """
    from knotflow.workflows.models import results_folder

    target = results_folder(path) / name if out is None else out
    if target.is_dir():
        raise IsADirectoryError(f"--out must be a file, such as {name}, but {target} is a folder.")
    check_ending(target, "--out", Path(name).suffix)
    return target
