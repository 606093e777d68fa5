"""Frames of a trajectory as a flow sees them: internal coordinates and scores, split for validation."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from knotflow.geometry import InternalCoordinates
from knotflow.molecules.units import BOLTZMANN
from knotflow.progress import Progress, silent
from knotflow.storage import trajectory
from knotflow.storage.intake import Intake
from knotflow.storage.split import Split
from knotflow.training.objectives import Batch


class MolecularData(NamedTuple):
    """A trajectory in internal coordinates, split into training and validation data."""

    train: Batch
    validation: Batch
    split: Split


class InternalFrames(NamedTuple):
    """The frames of a file, in its order."""

    q: Tensor
    """Internal coordinates of usable frames, (n, d)."""
    score: Tensor
    """Gradient of their log-density, (n, d)."""
    temperature: Tensor
    """In K, (n,)."""
    usable: Tensor
    """Whether a row of the file is usable, (rows,)."""
    replica: NDArray[np.int32]
    """Of all rows."""
    frame: NDArray[np.int64]
    """Number of each row within its replica."""


def internal_frames(
    path: str | Path, coordinates: InternalCoordinates, progress: Progress = silent, *, ladder: bool = False
) -> InternalFrames:
    r"""Internal coordinates $q$ and the scores of their density, from a trajectory or ladder file.

    The score is $-\partial u/\partial q + \partial L/\partial q$ with $u = U/kT$ at the temperature of the
    frame and $L = \log|\partial x/\partial q|$; the flow's score should equal it. Both are computed in
    float64 and kept in float32. Labels of equivalent hydrogens are brought to the order of the file's
    structure, and mirror images are set aside (`Intake`).

    Raises:
        ValueError: if there are fewer than 100 frames, or most are mirror images of the structure.
    """
    info = trajectory.open_info(path, ladder=ladder)
    if info.n_frames < 100:
        raise ValueError(f"training needs at least 100 frames, {path} has {info.n_frames}; simulate longer.")
    intake = Intake(info.system, [path])
    points, scores, temperatures, kept, replicas, numbers = [], [], [], [], [], []
    for found in trajectory.pieces(path, ladder=ladder):
        frames, usable = intake(found)
        x = torch.from_numpy(frames.positions).double()
        usual = np.full(len(x), info.system.temperature)
        temperature = torch.from_numpy(usual if frames.temperature is None else frames.temperature)
        force = torch.from_numpy(frames.forces).double() / (BOLTZMANN * temperature)[:, None, None]
        q, _ = coordinates(x)
        volume = torch.func.grad(lambda q: coordinates.inverse(q)[1].sum())(q)
        points.append(q.float())
        scores.append((coordinates.internal_force(x, force) + volume).float())
        temperatures.append(temperature)
        kept.append(torch.from_numpy(usable))
        replicas.append(found.replica)
        numbers.append(found.frame)
        progress("reading frames", sum(map(len, replicas)), info.n_frames)
    intake.conclude()
    return InternalFrames(
        torch.cat(points),
        torch.cat(scores),
        torch.cat(temperatures),
        torch.cat(kept),
        np.concatenate(replicas),
        np.concatenate(numbers),
    )


def load_data(
    path: str | Path, coordinates: InternalCoordinates, progress: Progress = silent
) -> MolecularData:
    """Training and validation data of a trajectory file, see `internal_frames`.

    Raises:
        ValueError: if there are fewer than 100 frames, or most are mirror images of the structure.
    """
    return split_frames(path, internal_frames(path, coordinates, progress))


def split_frames(path: str | Path, frames: InternalFrames) -> MolecularData:
    """The frames of a file, split as its model will note."""
    split = Split.of(Path(path).name, frames.replica)
    held_out = torch.from_numpy(split.mask())[frames.usable]
    q, score = frames.q, frames.score
    return MolecularData(Batch(q[~held_out], score[~held_out]), Batch(q[held_out], score[held_out]), split)
