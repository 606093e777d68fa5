"""Which model: what the argument of commands on trained models stands for, and the energy that fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

import knotflow
from knotflow.transforms.families import FAMILIES, RENAMED

if TYPE_CHECKING:
    from knotflow.energies import MolecularEnergy
    from knotflow.molecules import MolecularSystem


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
MANY: Final = 500_000
"""Structures from which on the torch force field is worth the most of a minute that it takes to compile."""
MODELS: Final = Path(knotflow.__file__).parent / "models"
"""The folder of `knotflow.flows.pretrained`, which cannot be asked at every Tab: it imports torch."""


def complete_model(incomplete: str) -> list[str]:
    """What may follow in a shell: models of the package, model files and folders of runs nearby.

    Nothing for other beginnings; the shell then completes names of files.
    """
    names = [path.stem for path in sorted(MODELS.glob("*.safetensors"))]
    files = [str(path) for path in sorted(Path().glob("*.safetensors"))]
    runs = [str(path.parent) for path in sorted(Path().glob("*/model.safetensors"))]
    runs += [str(path.parent) for path in sorted(Path().glob("*/*/model.safetensors"))]
    return [word for word in (*names, *files, *runs) if word.startswith(incomplete)]


ModelArgument = Annotated[
    Path,
    typer.Argument(
        help="Model file (.safetensors), the folder of a training run, or ala2, which comes with knotflow.",
        autocompletion=complete_model,
    ),
]


def model_file(model: Path) -> Path:
    """The model file that is meant: itself, the one in the folder of a run, or one of the package by name.

    Raises:
        FileNotFoundError: if there is none.
    """
    from knotflow.flows.pretrained import pretrained_file, pretrained_names

    path = model / "model.safetensors" if model.is_dir() else model
    if path.is_file():
        return path
    if model.is_dir():
        raise FileNotFoundError(
            f"there is no model.safetensors in {model}; a training run writes it at its end: let it finish, "
            "or give another folder or file."
        )
    if str(model) in pretrained_names():
        return pretrained_file(str(model))
    raise FileNotFoundError(
        f"there is no model file {model}; with knotflow come: {', '.join(pretrained_names())}."
    )


def results_folder(path: Path) -> Path:
    """Where results about a model go: beside it, or to ``runs`` for a model of the package."""
    from knotflow.flows.pretrained import FOLDER

    return Path("runs") / path.stem if path.parent == FOLDER else path.parent


@contextmanager
def force_field(system: MolecularSystem, structures: int) -> Iterator[MolecularEnergy]:
    """The energy of a molecule for so many structures: OpenMM's or, for many, the compiled one in torch.

    The latter does not know every kind of force; then it is OpenMM's in any case.
    """
    from knotflow.energies.openmm_energy import OpenMMEnergy
    from knotflow.energies.torch_force_field import TorchForceField

    field = None
    if structures >= MANY:
        with suppress(ValueError):  # a force that it does not know
            field = TorchForceField(system)
    if field is not None:
        yield field
        return
    with OpenMMEnergy(system) as energy:
        yield energy
