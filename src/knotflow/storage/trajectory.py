"""Trajectory files: frames with energies and forces, and their molecule, in one HDF5 file.

The layout is MDTraj's (conventions "Pande" 1.1), so ``mdtraj.load("data.h5")`` reads it, with additions:

| dataset | shape | unit |
| --- | --- | --- |
| ``coordinates`` | (frames, atoms, 3) float32 | nm |
| ``forces`` | (frames, atoms, 3) float32 | kJ/mol/nm |
| ``potentialEnergy`` | (frames,) float64 | kJ/mol |
| ``time`` | (frames,) float64 | ps, since the start of the replica |
| ``replica`` | (frames,) int32 | number of the independent simulation |
| ``frame`` | (frames,) int64 | number of the frame within its replica |
| ``topology`` | (1,) | JSON, as MDTraj expects it |
| ``knotflow/system`` | bytes | the whole `MolecularSystem` as JSON, force field included |
| ``knotflow/provenance`` | bytes | JSON: how the file was made |

A *ladder file* (`ladder_file`) holds the frames of a tempering run above its target temperature, in the same
layout, with one more dataset:

| dataset | shape | unit |
| --- | --- | --- |
| ``temperature`` | (frames,) float64 | K, at which the frame was sampled |

Its ``replica`` is the number of the ladder; its ``frame`` and ``time`` are those of the frame that the same
ladder has in the main file at that moment. What reads frames of one temperature refuses a ladder file;
``ladder=True`` reads it.

An append happens completely or not at all (`knotflow.storage.journal`): after a kill or on a full disk, all
earlier frames are still there, and the same append can be repeated.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from knotflow.files import NO_SPACE, only_writer, write_atomically
from knotflow.molecules.system import MolecularSystem
from knotflow.storage import hdf5, journal
from knotflow.storage.hdf5 import Column
from knotflow.version import __version__

if TYPE_CHECKING:
    import h5py

VERSION = 1
ROWS_AT_ONCE = 8192
"""Frames in a piece of a file, by default."""

T = TypeVar("T")

COLUMNS = {
    "positions": Column("coordinates", np.float32, "nanometers", per_atom=True),
    "forces": Column("forces", np.float32, "kilojoules_per_mole/nanometer", per_atom=True),
    "energies": Column("potentialEnergy", np.float64, "kilojoules_per_mole"),
    "replica": Column("replica", np.int32, "dimensionless"),
    "frame": Column("frame", np.int64, "dimensionless"),
    "time": Column("time", np.float64, "picoseconds"),
}
"""Columns of the file, by field of `Frames`."""
TEMPERATURE: Final = Column("temperature", np.float64, "kelvin")
"""The column that only ladder files have."""


@dataclass(frozen=True, eq=False)
class Frames:
    """Frames in the units of the file, with the same order of rows in all arrays.

    Args:
        positions: In nm, shape ``(n, atoms, 3)``, float32.
        forces: In kJ/mol/nm, shape ``(n, atoms, 3)``, float32.
        energies: Potential energies in kJ/mol, shape ``(n,)``, float64.
        replica: Number of the independent simulation, shape ``(n,)``, int32.
        frame: Number of the frame within its replica, shape ``(n,)``, int64.
        time: In ps since the start of the replica, shape ``(n,)``, float64.
        temperature: In K, shape ``(n,)``, float64; None: that of the molecule. Only ladder files have it.

    Raises:
        ValueError: if the shapes do not match.
    """

    positions: NDArray[np.float32]
    forces: NDArray[np.float32]
    energies: NDArray[np.float64]
    replica: NDArray[np.int32]
    frame: NDArray[np.int64]
    time: NDArray[np.float64]
    temperature: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        shape = np.shape(self.positions)
        if len(shape) != 3 or shape[2] != 3:
            raise ValueError(f"positions must have shape (frames, atoms, 3), got {shape}.")
        for name, column in _columns(self.temperature is not None).items():
            value = np.asarray(getattr(self, name), dtype=column.dtype)
            expected = shape if column.per_atom else shape[:1]
            if value.shape != expected:
                raise ValueError(f"{name} must have shape {expected} like the positions, got {value.shape}.")
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: slice | NDArray[Any]) -> Frames:
        """Some of the frames."""
        return Frames(**{name: getattr(self, name)[rows] for name in _columns(self.temperature is not None)})


def _columns(ladder: bool) -> dict[str, Column]:
    """Columns of a file or of a ladder file, by field of `Frames`."""
    return COLUMNS | {"temperature": TEMPERATURE} if ladder else COLUMNS


def ladder_file(path: str | Path) -> Path:
    """The file beside a trajectory for the frames above its temperature: ``a.ladder.h5`` of ``a.h5``.

    Only tempering runs have one. ``replica`` has the same meaning in both, so that a split by replicas holds
    for both.
    """
    return Path(path).with_suffix(".ladder.h5")


@dataclass(frozen=True, eq=False)
class TrajectoryInfo:
    """Contents of a trajectory file besides its frames."""

    system: MolecularSystem
    provenance: dict[str, Any]
    n_frames: int


def create(
    path: str | Path, system: MolecularSystem, provenance: dict[str, Any], *, ladder: bool = False
) -> None:
    """Write a trajectory file without frames.

    Args:
        path: The file, which must not exist.
        system: The molecule.
        provenance: How the frames are made (command, options, seed), as JSON values. The version of knotflow
            is added.
        ladder: Whether frames will have a temperature.

    Raises:
        FileExistsError: if the file exists.
    """
    path = Path(path)
    check_new(path)
    content = io.BytesIO()
    with hdf5.open_file(content, "w") as file:
        hdf5.begin(file, system.plain(), _columns(ladder).values(), "version", VERSION)
        hdf5.store_json(file, "provenance", {**provenance, "knotflow": __version__})
    journal.forget(path)
    write_atomically(path, content.getvalue())


def check_new(path: Path) -> None:
    """Raise a FileExistsError if there is such a file."""
    if path.exists():
        raise FileExistsError(f"{path} exists already; remove it or choose another name.")


def append(path: str | Path, frames: Frames, at: int) -> None:
    """Write frames into rows ``at, at + 1, ...`` of a file, which become its last rows.

    Older rows from ``at`` on are dropped: a run that resumes from its checkpoint makes the later frames
    again. If this fails or is killed, the file is unchanged.

    Args:
        path: The file, made by `create`.
        frames: At least one, of the same molecule, with temperatures if it is a ladder file.
        at: First row to write, at most the number of frames in the file.

    Raises:
        ValueError: if the frames do not fit the file.
        OSError: if another process writes to the file, or there is not enough space; the file is unchanged.
    """
    path = Path(path)
    _check_exists(path)
    if len(frames) == 0:
        raise ValueError("an append needs at least one frame, got none.")
    with only_writer(path), journal.interrupts_later():
        journal.settle(path)
        with _opened(path, ladder=frames.temperature is not None) as file:
            length = len(file["coordinates"])
            _check_fit(path, frames, at, length, file["coordinates"].shape[1])
        with journal.Overlay(path) as overlay:
            with hdf5.understood(path), hdf5.open_file(overlay, "r+") as file:
                for name, column in _columns(frames.temperature is not None).items():
                    hdf5.put_rows(file[column.name], at, getattr(frames, name))
            try:
                overlay.commit()
            except OSError as error:
                raise _full_sentence(path, error, overlay.bytes_changed, len(frames), length) from error


def open_info(path: str | Path, *, ladder: bool = False) -> TrajectoryInfo:
    """Molecule, provenance and number of frames of a file, or of a ladder file.

    Raises:
        ValueError: if the file is not a trajectory of knotflow.
        OSError: if it is missing or damaged.
    """

    def look(file: h5py.File) -> tuple[Any, Any, int]:
        return hdf5.load_json(file, "system"), hdf5.load_json(file, "provenance"), len(file["coordinates"])

    system, provenance, n_frames = _consistently(Path(path), look, ladder)
    try:
        return TrajectoryInfo(MolecularSystem.parse(system), provenance, n_frames)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def fingerprint(path: str | Path, *, ladder: bool = False) -> str:
    """SHA-256 of a file's contents: number of frames, molecule, all energies, replicas and temperatures.

    Files with the same frames have the same fingerprint, wherever they are. Positions are not read.

    Raises:
        ValueError: if the file is not a trajectory of knotflow.
        OSError: if it is missing or damaged.
    """

    def look(file: h5py.File) -> str:
        found = hashlib.sha256(str(len(file["coordinates"])).encode())
        found.update(file["knotflow"]["system"][()].tobytes())
        for name in ("energies", "replica", *(["temperature"] if ladder else [])):
            found.update(file[_columns(ladder)[name].name][()].tobytes())
        return found.hexdigest()

    return _consistently(Path(path), look, ladder)


def read(path: str | Path, rows: slice = slice(None), *, ladder: bool = False) -> Frames:
    """Frames of a file, even while it is being written to.

    Args:
        path: The file.
        rows: Rows to read, all by default; the step must be positive.
        ladder: Whether it is a ladder file, whose frames have a temperature.

    Raises:
        ValueError: if the file is not a trajectory of knotflow.
        OSError: if it is missing or damaged.
    """
    if rows.step is not None and rows.step < 1:
        raise ValueError(
            f"the step of rows must be at least 1, got {rows.step}; reverse the frames yourself."
        )

    def look(file: h5py.File) -> Frames:
        wanted = slice(*rows.indices(len(file["coordinates"])))
        return Frames(*(file[column.name][wanted] for column in _columns(ladder).values()))

    return _consistently(Path(path), look, ladder)


def numbers(path: str | Path, *names: str, ladder: bool = False) -> tuple[NDArray[Any], ...]:
    """Columns of all frames with one number each, by their names in `Frames`; positions are not read.

    Raises:
        ValueError: if the file is not a trajectory of knotflow.
        OSError: if it is missing or damaged.
    """
    datasets = [_columns(ladder)[name].name for name in names]
    return _consistently(Path(path), lambda file: tuple(file[name][()] for name in datasets), ladder)


def pieces(
    path: str | Path, size: int = ROWS_AT_ONCE, *, n_frames: int | None = None, ladder: bool = False
) -> Iterator[Frames]:
    """The first ``n_frames`` of a file, by default all present ones, in order, at most ``size`` at a time."""
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}.")
    if n_frames is None:
        n_frames = _consistently(Path(path), lambda file: len(file["coordinates"]), ladder)
    for start in range(0, n_frames, size):
        yield read(path, slice(start, min(start + size, n_frames)), ladder=ladder)


def _consistently(path: Path, look: Callable[[h5py.File], T], ladder: bool) -> T:
    """The result of ``look``, repeated if the file was written to meanwhile."""
    _check_exists(path)
    for attempt in range(20):
        before = journal.state(path)
        try:
            with _opened(path, ladder) as file:
                found = look(file)
        except (OSError, ValueError):  # parts of two states may not fit together
            if journal.state(path) == before:
                raise
        else:
            if journal.state(path) == before:
                return found
        time.sleep(0.01 * attempt)
    raise OSError(f"{path} is constantly being written to; try again, or read fewer rows at once.")


@contextmanager
def _opened(path: Path, ladder: bool) -> Iterator[h5py.File]:
    """A trajectory file or a ladder file, open for reading."""
    with hdf5.reading(path, "`knotflow import` reads other formats", journal.pending(path)) as file:
        if "knotflow" not in file:
            kind = "an MDTraj trajectory" if "coordinates" in file else "an HDF5 file"
            raise ValueError(
                f"{path} is {kind} without energies, forces and force field; make a trajectory of knotflow "
                f"with `knotflow import {path.name} --out NEW.h5`."
            )
        if "samples" in file["knotflow"].attrs:
            raise ValueError(
                f"{path} holds samples of a model; read it with knotflow.storage.samples.read_samples."
            )
        hdf5.check_version(path, file, "version", VERSION)
        if ladder != (TEMPERATURE.name in file):
            raise ValueError(
                f"{path} holds frames of one temperature; those of others are in {ladder_file(path).name}, "
                "if `knotflow simulate --method tempering` made it."
                if ladder
                else f"{path} holds the frames of a tempering run above its target temperature; give the "
                "file beside it, without .ladder in its name."
            )
        yield file


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no trajectory {path}; make one with `knotflow simulate` or `knotflow import`."
        )


def _check_fit(path: Path, frames: Frames, at: int, length: int, n_atoms: int) -> None:
    if frames.positions.shape[1] != n_atoms:
        raise ValueError(
            f"{path} has frames of {n_atoms} atoms, got {frames.positions.shape[1]}; append only frames of "
            "the same molecule."
        )
    if not 0 <= at <= length:
        raise ValueError(f"{path} has {length} frames, so new ones can go to row 0 to {length}, got {at}.")


def _full_sentence(path: Path, error: OSError, needed: int, n_new: int, n_old: int) -> OSError:
    """The error of an append that failed, and what to do about it."""
    problem = os.strerror(error.errno) if error.errno is not None else str(error)
    if error.errno in NO_SPACE:
        free = shutil.disk_usage(path.parent).free
        problem += f": this needs {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free; free some space"
    failed = OSError(
        f"{n_new} frames could not be written to {path}, {problem}, then run the same command again; the "
        f"{n_old} frames in the file are kept."
    )
    failed.errno = error.errno
    return failed
