"""Frames of a trajectory as a flow sees them: internal coordinates and scores, split for validation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.geometry import InternalCoordinates
from knotflow.molecules.units import BOLTZMANN
from knotflow.progress import Progress, silent
from knotflow.resources import check_disk
from knotflow.storage import trajectory
from knotflow.storage.intake import Intake
from knotflow.storage.split import Split
from knotflow.training.data import select
from knotflow.training.mapped import RowsOnDisk
from knotflow.training.objectives import Batch


class MolecularData(NamedTuple):
    """A trajectory in internal coordinates, split into training and validation data."""

    train: Batch
    validation: Batch
    split: Split


def internal_frames(
    path: str | Path,
    coordinates: InternalCoordinates,
    folder: str | Path,
    n_frames: int,
    progress: Progress = silent,
    *,
    ladder: bool = False,
) -> Iterator[tuple[NDArray[np.intp], Batch]]:
    r"""Internal coordinates $q$ and the scores of their density, from a trajectory or ladder file, in pieces.

    The score is $-\partial u/\partial q + \partial L/\partial q$ with $u = U/kT$ at the temperature of the
    frame and $L = \log|\partial x/\partial q|$; the flow's score should equal it. Both are computed in
    float64 and kept in float32. Labels of equivalent hydrogens are brought to the order of the file's
    structure, and mirror images are set aside (`Intake`).

    Args:
        path: the file.
        coordinates: internal coordinates of the molecule.
        folder: where the frames will be kept; its disk must have space for them.
        n_frames: number of frames to read.
        progress: called with the frames read.
        ladder: whether it is a ladder file.

    Yields:
        numbers of the rows in a piece of the file that are usable, and a batch of them: coordinates, scores,
        and as context their temperatures in K, in float64.

    Raises:
        ValueError: if there are fewer than 100 frames, or most are mirror images of the structure.
        OSError: if the disk has no space for so many.
    """
    if n_frames < 100:
        raise ValueError(f"training needs at least 100 frames, {path} has {n_frames}; simulate longer.")
    info = trajectory.open_info(path, ladder=ladder)
    check_disk(Path(folder), f"training on {n_frames:,} frames", 8.0 * n_frames * coordinates.n_coordinates)
    intake, done = Intake(info.system, [path]), 0
    for found in trajectory.pieces(path, n_frames=n_frames, ladder=ladder):
        frames, usable = intake(found)
        x = torch.from_numpy(frames.positions).double()
        usual = np.full(len(x), info.system.temperature)
        temperature = torch.from_numpy(usual if frames.temperature is None else frames.temperature)
        force = torch.from_numpy(frames.forces).double() / (BOLTZMANN * temperature)[:, None, None]
        q, _ = coordinates(x)
        volume = torch.func.grad(lambda q: coordinates.inverse(q)[1].sum())(q)
        score = coordinates.internal_force(x, force) + volume
        yield done + np.flatnonzero(usable), Batch(q.float(), score.float(), temperature[:, None])
        done += len(found)
        progress("reading frames", done, n_frames)
    intake.conclude()


def load_data(
    path: str | Path,
    coordinates: InternalCoordinates,
    progress: Progress = silent,
    *,
    folder: str | Path = ".",
) -> MolecularData:
    """Training and validation data of a trajectory file, see `internal_frames`, mapped from a disk.

    Args:
        path: the file.
        coordinates: internal coordinates of the molecule.
        progress: called with the frames read.
        folder: where they are kept, see `RowsOnDisk`.

    Raises:
        ValueError: if there are fewer than 100 frames, or most are mirror images of the structure.
        OSError: if the disk has no space for so many.
    """
    (replica,) = trajectory.numbers(path, "replica")
    split = Split.of(Path(path).name, replica)
    held_out = split.mask()
    train, validation = RowsOnDisk(folder), RowsOnDisk(folder)
    for rows, found in internal_frames(path, coordinates, folder, len(replica), progress):
        held, batch = torch.from_numpy(held_out[rows]), found._replace(context=None)
        train.append(select(batch, ~held))
        validation.append(select(batch, held))
    return MolecularData(train.mapped(), validation.mapped(), split)
