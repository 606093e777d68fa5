r"""Sample files: positions and log-densities drawn from a model, and optionally energies and weights.

An HDF5 file has MDTraj's layout (conventions "Pande" 1.1), so ``mdtraj.load("samples.h5")`` reads it:

| dataset | shape | unit |
| --- | --- | --- |
| ``coordinates`` | (samples, atoms, 3) float32 | nm |
| ``logProbability`` | (samples,) float64 | $\log p(x)$, rotations and translations integrated out; x in nm |
| ``potentialEnergy`` | (samples,) float64 | kJ/mol; only with weights |
| ``logWeight`` | (samples,) float64 | $-U(x)/kT - \log p(x)$; only with weights |
| ``topology`` | (1,) | JSON, as MDTraj expects it |
| ``knotflow/system`` | bytes | the molecule, as in `MolecularSystem.plain` |
| ``knotflow/provenance`` | bytes | JSON: how the samples were drawn |

XTC, DCD and PDB files hold positions only; the other columns go to a table of the same name, ``.csv``.
Samples are superposed on the structure of the molecule, which changes neither densities nor energies.

Log-densities and energies belong to the positions before rounding: to float32 here, to 0.001 nm in XTC
files, to 0.001 Å in PDB files.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from knotflow.extras import optional
from knotflow.files import only_writer, write_atomically, writing
from knotflow.geometry.superpose import superposed
from knotflow.molecules.system import MolecularSystem
from knotflow.molecules.units import thermal_energy
from knotflow.statistics.weights import RunningShare
from knotflow.storage import hdf5, journal
from knotflow.storage.hdf5 import Column
from knotflow.storage.pdb import ANGSTROM, PdbFile
from knotflow.version import __version__

VERSION: Final = 1
POSITIONS: Final = Column("coordinates", np.float32, "nanometers", per_atom=True)
NUMBERS: Final = (
    Column("logProbability", np.float64, "dimensionless"),
    Column("potentialEnergy", np.float64, "kilojoules_per_mole"),
    Column("logWeight", np.float64, "dimensionless"),
)
"""Columns of a file besides the positions; without weights only the first."""
Columns = dict[str, NDArray[np.float64]]
ROWS_AT_ONCE: Final = 8192
"""An HDF5 file grows by at least so many samples at a time."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Contents of an HDF5 sample file, in its units."""

    positions: NDArray[np.float32]
    """In nm, shape ``(n, atoms, 3)``."""
    log_prob: NDArray[np.float64]
    """Log-densities of the model, shape ``(n,)``."""
    energies: NDArray[np.float64] | None
    """Potential energies in kJ/mol, shape ``(n,)``; None if the file has no weights."""
    log_weights: NDArray[np.float64] | None
    """Logarithms of the weights for the Boltzmann distribution, shape ``(n,)``; None if there are none."""
    molecule: dict[str, Any]
    """The molecule, for `MolecularSystem.parse`."""
    provenance: dict[str, Any]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def system(self) -> MolecularSystem:
        """The molecule."""
        return MolecularSystem.parse(self.molecule)


class SampleWriter:
    """Writes samples piece by piece into a file that appears when it is complete.

    Use it in a ``with`` block and call `complete` at its end. Otherwise nothing is left behind.

    Args:
        path: The file; its suffix chooses the format: ``.h5``, ``.xtc``, ``.dcd`` or ``.pdb``.
        molecule: The molecule, as returned by `MolecularSystem.plain`; OpenMM is not needed.
        weights: Whether energies will be given.
        overwrite: Whether existing files may be replaced.

    Raises:
        FileExistsError: if the file or its table exists and may not be replaced.
        ValueError: if the suffix is unknown.
        OSError: if another process writes the same file.
    """

    def __init__(
        self, path: str | Path, molecule: Mapping[str, Any], *, weights: bool = False, overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        self.paths = output_files(self.path)
        """The files to be written, the one with the positions first."""
        check_free(self.path, overwrite=overwrite)
        self.weights = weights
        self._kT = thermal_energy(molecule["temperature"])
        self._reference = torch.tensor(molecule["positions"], dtype=torch.float64)
        self._molecule = molecule
        self._parts = [file.with_name(f".{self.path.name}.part{file.suffix}") for file in self.paths]
        self.effective = RunningShare()
        """Effective sample size of the weights so far."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(only_writer(self.path))
            stack.callback(self._remove_parts)
            self._remove_parts()  # left by a process that was killed
            columns = NUMBERS if self.weights else NUMBERS[:1]
            kind = _Hdf5 if len(self._parts) == 1 else _WithTable
            with self._writing():
                self._file: _Hdf5 | _WithTable = kind(self._parts, self._molecule, columns)
            stack.callback(self._file.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, x: Tensor, log_prob: Tensor, energy: Tensor | None = None) -> None:
        """Add samples.

        Args:
            x: Positions in nm, shape ``(n, atoms, 3)``.
            log_prob: Log-densities, shape ``(n,)``.
            energy: Reduced energies, shape ``(n,)``, if and only if the file has weights.
        """
        if (energy is not None) != self.weights:
            raise ValueError("a sample file has energies for all of its samples, or for none.")
        y = x.detach().cpu().double()
        y = superposed(y, self._reference.expand(len(y), -1, -1)).float()
        columns = {"logProbability": _plain(log_prob)}
        if energy is not None:
            u = _plain(energy)
            columns |= {"potentialEnergy": u * self._kT, "logWeight": -u - columns["logProbability"]}
            self.effective.add(columns["logWeight"])
        for name, values in columns.items():
            if values.shape != (len(y),):
                raise ValueError(
                    f"{name} must have shape ({len(y)},), one for each sample, got {values.shape}."
                )
        with self._writing():
            self._file.write(y.numpy(), columns)

    def complete(self, provenance: Mapping[str, Any]) -> None:
        """Finish the file and give it its name; ``provenance`` says how it was made, as JSON values."""
        with self._writing():
            if isinstance(self._file, _Hdf5):  # other formats have no place for it
                self._file.note({**provenance, "knotflow": __version__})
            self._file.close()
            for part in self._parts:
                with part.open("r+b") as file:
                    os.fsync(file.fileno())
        # Positions last, and no old ones next to a new table: existing positions always match the table.
        if len(self.paths) > 1:
            self.path.unlink(missing_ok=True)
        for part, path in zip(reversed(self._parts), reversed(self.paths), strict=True):
            part.replace(path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Name the file that the user asked for, whatever cannot be written."""
        try:
            with writing(self.path):
                yield
        except RuntimeError as error:  # of MDTraj
            raise OSError(
                f"{self.path} could not be written ({error or type(error).__name__}); free some space or "
                "choose another place, then run the same command again."
            ) from error

    def _remove_parts(self) -> None:
        for part in self._parts:
            journal.forget(part)
            part.unlink(missing_ok=True)


def output_files(path: Path) -> list[Path]:
    """The files for samples: the one with the positions and, for some formats, a table.

    Raises:
        ValueError: if the suffix is unknown.
    """
    if path.suffix == ".h5":
        return [path]
    if path.suffix in (".xtc", ".dcd", ".pdb"):
        return [path, path.with_suffix(".csv")]
    raise ValueError(f"samples go to a file ending in .h5, .xtc, .dcd or .pdb, got '{path}'.")


def check_free(path: Path, *, overwrite: bool = False) -> None:
    """Refuse to write samples over folders, and over files unless they may be replaced."""
    for file in output_files(path):
        if file.is_dir():
            raise IsADirectoryError(f"samples go to a file, but {file} is a folder; choose another name.")
        if file.exists() and not overwrite:
            raise FileExistsError(
                f"{file} exists already; remove it, choose another name, or overwrite it (--overwrite)."
            )


def read_samples(path: str | Path, rows: slice = slice(None)) -> Samples:
    """Read an HDF5 file that `SampleWriter` wrote; OpenMM is not needed.

    Args:
        path: The file.
        rows: Samples to read, all by default; the step must be positive.

    Raises:
        ValueError: if it is another kind of file.
        OSError: if it is missing or damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; make one with `knotflow sample`.")
    with hdf5.reading(path, "samples in other formats are read by mdtraj.load") as file:
        if "knotflow" not in file or "samples" not in file["knotflow"].attrs:
            raise ValueError(
                f"{path} holds no samples of knotflow; trajectories are read by "
                "knotflow.storage.trajectory.read."
            )
        hdf5.check_version(path, file, "samples", VERSION)
        return Samples(
            positions=file["coordinates"][rows],
            log_prob=file["logProbability"][rows],
            energies=file["potentialEnergy"][rows] if "potentialEnergy" in file else None,
            log_weights=file["logWeight"][rows] if "logWeight" in file else None,
            molecule=hdf5.load_json(file, "system"),
            provenance=hdf5.load_json(file, "provenance"),
        )


class _Hdf5:
    """Everything in one growing file, which HDF5 never writes itself: a full disk would crash it."""

    def __init__(self, paths: list[Path], molecule: Mapping[str, Any], columns: Sequence[Column]) -> None:
        self._path, self._n = paths[0], 0
        self._waiting: list[dict[str, NDArray[Any]]] = []
        content = io.BytesIO()
        with hdf5.open_file(content, "w") as file:
            hdf5.begin(file, molecule, (POSITIONS, *columns), "samples", VERSION)
        write_atomically(self._path, content.getvalue())

    def write(self, positions: NDArray[np.float32], columns: Columns) -> None:
        self._waiting.append({POSITIONS.name: positions, **columns})
        if sum(len(rows[POSITIONS.name]) for rows in self._waiting) >= ROWS_AT_ONCE:
            self._change()

    def note(self, provenance: Mapping[str, Any]) -> None:
        self._change(provenance)

    def close(self) -> None:
        self._waiting = []

    def _change(self, provenance: Mapping[str, Any] | None = None) -> None:
        """Write what waits, and the provenance if it is given: all of it or nothing."""
        waiting, self._waiting = self._waiting, []
        with journal.interrupts_later(), journal.Overlay(self._path) as overlay:
            with hdf5.open_file(overlay, "r+") as file:
                for name in waiting[0] if waiting else ():
                    rows = np.concatenate([piece[name] for piece in waiting])
                    hdf5.put_rows(file[name], self._n, rows)
                if provenance is not None:
                    hdf5.store_json(file, "provenance", provenance)
            overlay.commit()
        self._n += sum(len(rows[POSITIONS.name]) for rows in waiting)


class _WithTable:
    """Positions in a format of other programs, everything else in a table."""

    def __init__(self, paths: list[Path], molecule: Mapping[str, Any], columns: Sequence[Column]) -> None:
        self._suffix = paths[0].suffix
        self._n = 0
        with ExitStack() as stack:
            self._trajectory = stack.enter_context(_trajectory_file(paths[0], molecule["topology"]))
            table = stack.enter_context(paths[1].open("w", newline=""))
            self._table = csv.writer(table)
            self._table.writerow(column.name for column in columns)
            self._stack = stack.pop_all()

    def write(self, positions: NDArray[np.float32], columns: Columns) -> None:
        numbers = np.arange(self._n, self._n + len(positions))
        self._n += len(positions)
        if self._suffix == ".xtc":
            self._trajectory.write(positions, time=numbers.astype(np.float32), step=numbers.astype(np.int32))
        elif self._suffix == ".dcd":
            self._trajectory.write(positions / np.float32(ANGSTROM))
        else:
            self._trajectory.write(positions)
        self._table.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))

    def close(self) -> None:
        self._stack.close()


def _trajectory_file(path: Path, topology: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Our own PDB file, or MDTraj's XTC or DCD file."""
    if path.suffix == ".pdb":
        return closing(PdbFile(path, topology))
    with optional("samples"):
        from mdtraj.formats import DCDTrajectoryFile, XTCTrajectoryFile
    kind = DCDTrajectoryFile if path.suffix == ".dcd" else XTCTrajectoryFile
    file: AbstractContextManager[Any] = kind(str(path), "w")
    return file


def _plain(values: Tensor) -> NDArray[np.float64]:
    return values.detach().cpu().double().numpy()
