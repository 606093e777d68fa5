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
from knotflow.training.data import joined
from knotflow.training.frames import InternalFrames, MolecularData, internal_frames, split_frames
from knotflow.training.objectives import Batch
from knotflow.transforms import Domain


def load_ladder(
    path: str | Path, coordinates: InternalCoordinates, progress: Progress = silent
) -> MolecularData:
    """The data of all temperatures of a tempering run; the context of a point is its temperature in K.

    Training data are of all temperatures, validation data of the lowest, the target. A moment of a ladder
    that is held out at the target temperature is held out at all others.

    Args:
        path: trajectory of the target temperature; the others are in the file beside it
            (`knotflow.storage.trajectory.ladder_file`).
        coordinates: internal coordinates of the molecule.
        progress: called with the frames read.

    Raises:
        ValueError: if there is no such file, it is of another molecule, or there are too few frames.
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
    target = internal_frames(path, coordinates, progress)
    found = split_frames(path, target)
    hot = internal_frames(file, coordinates, progress, ladder=True)
    if not (hot.temperature > system.temperature).all():
        raise ValueError(f"{file} must hold frames above the {system.temperature:g} K of {path}.")
    held_out = np.isin(_moments(hot), _moments(target)[found.split.mask()])
    rows = torch.from_numpy(~held_out)[hot.usable]
    warm = Batch(hot.q[rows], hot.score[rows], hot.temperature[rows, None])

    def at_target(data: Batch) -> Batch:
        return data._replace(context=data.x.new_full((len(data.x), 1), system.temperature).double())

    train, validation = at_target(found.train), at_target(found.validation)
    return MolecularData(joined(train, warm), validation, found.split)


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


def _moments(frames: InternalFrames) -> NDArray[np.int64]:
    """A number for the moment and the replica of each row of the file."""
    return frames.replica.astype(np.int64) * 2**40 + frames.frame
