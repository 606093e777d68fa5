"""Training data of all temperatures of a tempering run, for a flow that is conditioned on the temperature."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from knotflow.flows.boltzmann import line_centres, unwound
from knotflow.flows.presets import fitted_domains
from knotflow.flows.temperature import TemperatureRange
from knotflow.geometry import InternalCoordinates
from knotflow.progress import Progress, silent
from knotflow.storage import trajectory
from knotflow.storage.split import Split
from knotflow.training.data import select
from knotflow.training.frames import MolecularData, internal_frames
from knotflow.training.mapped import RowsOnDisk
from knotflow.training.objectives import Batch
from knotflow.transforms import Domain


def load_ladder(
    path: str | Path,
    coordinates: InternalCoordinates,
    progress: Progress = silent,
    *,
    folder: str | Path = ".",
) -> MolecularData:
    """The data of all temperatures of a tempering run; the context of a point is its temperature in K.

    Training data are of all temperatures, validation data of the lowest, the target. A moment of a ladder
    that is held out at the target temperature is held out at all others.

    Args:
        path: trajectory of the target temperature; the others are in the file beside it
            (`knotflow.storage.trajectory.ladder_file`).
        coordinates: internal coordinates of the molecule.
        progress: called with the frames read.
        folder: where the data are kept, see `RowsOnDisk`.

    Raises:
        ValueError: if there is no such file, it is of another molecule, or there are too few frames.
        OSError: if the disk has no space for so many.
    """
    file = trajectory.ladder_file(path)
    if not file.exists():
        raise ValueError(
            f"a model of many temperatures needs frames of many, but there is no {file.name} beside {path}; "
            "`knotflow simulate --method tempering` writes both."
        )
    system = trajectory.open_info(path).system
    if trajectory.open_info(file, ladder=True).system.plain() != system.plain():
        raise ValueError(f"{file} and {path} differ in molecule or force field; simulate both again.")
    temperature, *hot = trajectory.numbers(file, "temperature", "replica", "frame", ladder=True)
    if not (temperature > system.temperature).all():
        raise ValueError(f"{file} must hold frames above the {system.temperature:g} K of {path}.")
    replica, frame = trajectory.numbers(path, "replica", "frame")
    split = Split.of(Path(path).name, replica)
    held_out = split.mask()
    hot_held_out = np.isin(_moments(*hot), _moments(replica, frame)[held_out])
    train, validation = RowsOnDisk(folder), RowsOnDisk(folder)
    for rows, found in internal_frames(path, coordinates, folder, len(replica), progress):
        held = torch.from_numpy(held_out[rows])
        # In float32 as ever, so that trainings of earlier versions resume.
        batch = found._replace(context=cast(Tensor, found.context).float().double())
        train.append(select(batch, ~held))
        validation.append(select(batch, held))
    for rows, found in internal_frames(file, coordinates, folder, len(temperature), progress, ladder=True):
        train.append(select(found, torch.from_numpy(~hot_held_out[rows])))
    return MolecularData(train.mapped(), validation.mapped(), split)


def temperature_range(train: Batch) -> TemperatureRange:
    """From the lowest to the highest temperature of training data of `load_ladder`."""
    low, high = torch.aminmax(cast(Tensor, train.context))
    return TemperatureRange(float(low), float(high))


def shape_at_lowest(train: Batch, temperatures: TemperatureRange, coordinates: InternalCoordinates) -> Tensor:
    """Coordinates (n, d) as they would be at the lowest temperature, to fit domains to (`fitted_domains`).

    Coordinates that are stiff at all temperatures together are brought to the lowest about their mean.
    """
    domains = fitted_domains(coordinates, train.x)
    q = unwound(train.x, line_centres(coordinates, domains))
    return temperatures.cooled(q, cast(Tensor, train.context)[:, 0], domains)


def conditioned(data: Batch, temperatures: TemperatureRange, domains: Sequence[Domain]) -> Batch:
    r"""Data for the flow $p_y$ of `TemperatureRange`: points $y$, their scores, and contexts.

    The score of $y$ is that of $q$ times $\partial q/\partial y = \sqrt{T/T_0}$. In a harmonic well it has
    the same size at all temperatures, so forces of all of them weigh alike.

    Args:
        data: unwound points $q$, their scores, and temperatures in K as context.
        temperatures: their range.
        domains: those of the flow.
    """
    temperature = cast(Tensor, data.context)[:, 0]
    stretch = temperatures.stretch(temperature.to(data.x), domains)
    return data._replace(
        x=temperatures.cooled(data.x, temperature, domains),
        force=cast(Tensor, data.force) * stretch,
        context=temperatures.context(temperature).to(data.x),
    )


def _moments(replica: NDArray[np.int32], frame: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for the moment and the replica of each row of a file."""
    return replica.astype(np.int64) * 2**40 + frame
