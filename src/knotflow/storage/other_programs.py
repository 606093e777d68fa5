"""Frames made by other programs: any format that mdtraj reads, or arrays in an ``.npz`` file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.extras import optional
from knotflow.molecules.structure import PLACEHOLDER_CELL, plain_suffix
from knotflow.molecules.system import MolecularSystem
from knotflow.sentences import one_line
from knotflow.storage import trajectory
from knotflow.storage.arrays import StoredArray, opened_arrays
from knotflow.storage.atom_order import Order, atom_order
from knotflow.storage.pickles import check_no_pickles

if TYPE_CHECKING:
    import mdtraj

WITH_ATOMS: Final = (".pdb", ".cif", ".h5", ".hdf5", ".gro")
"""Endings of files that name their own atoms."""


@dataclass(frozen=True, eq=False)
class RawFrames:
    """Frames of a file, in the units of our own files; times, energies and forces may be missing.

    Args:
        row: Number of the frame in its file, shape ``(n,)``.
        segment: Number of the trajectory within the file, shape ``(n,)``.
        positions: In nm, shape ``(n, atoms, 3)``.
        time: In ps, shape ``(n,)``.
        energies: In kJ/mol, shape ``(n,)``.
        forces: In kJ/mol/nm, shape ``(n, atoms, 3)``.
    """

    row: NDArray[np.int64]
    segment: NDArray[np.int64]
    positions: NDArray[Any]
    time: NDArray[Any] | None = None
    energies: NDArray[Any] | None = None
    forces: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: slice | NDArray[Any]) -> RawFrames:
        """Some of the frames."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[rows] for name, value in values.items() if value is not None})

    def with_order(self, atoms: NDArray[np.int64]) -> RawFrames:
        """The same frames with their atoms in another order."""
        forces = None if self.forces is None else self.forces[:, atoms]
        return replace(self, positions=self.positions[:, atoms], forces=forces)


def count_frames(path: Path) -> int | None:
    """Number of frames in a file; None if it is unknown before the file is read."""
    if path.suffix == ".npz":
        with _npz_arrays(path) as arrays:
            return arrays["positions"].shape[0]
    with optional("trajectories"):
        import mdtraj
    try:
        check_no_pickles(path)
        with mdtraj.open(str(path)) as file:
            return len(file)
    except Exception:  # not every format knows it; errors of a damaged file are raised when it is read
        return None


def read_frames(
    path: Path,
    system: MolecularSystem,
    topology: Path | None,
    rows: int,
    reordered: Callable[[Path, Order], None] = lambda path, order: None,
) -> Iterator[RawFrames]:
    """All frames of a file, at most ``rows`` at a time.

    Args:
        path: An ``.npz`` with ``positions`` in nm, shape ``(frames, atoms, 3)``, and optionally ``forces`` in
            kJ/mol/nm, ``energies`` in kJ/mol, ``time`` in ps and ``segment`` (whole numbers, one for each
            independent trajectory); or any format that mdtraj reads.
        system: The molecule; frames are returned with their atoms in its order.
        topology: File with names and elements of the atoms, for formats without them; by default they are
            those of the molecule.
        rows: Largest number of frames at a time.
        reordered: Called if the atoms of the file are in another order.

    Raises:
        ValueError: if the file cannot be read or belongs to another molecule.
        OSError: if it is missing.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    check_no_pickles(path)
    names = topology if topology is not None and plain_suffix(path) not in WITH_ATOMS else None
    known = None if names is None else _read_topology(names)
    pieces = _read_npz(path, system, rows) if path.suffix == ".npz" else _read_mdtraj(path, system, rows)
    order: Order | None = None
    for i, (found, own) in enumerate(pieces):
        if i == 0 and len(found):
            atoms = known or own
            order = None if atoms is None else atom_order(names or path, atoms, system, found.positions[0])
            if order is not None:
                reordered(path, order)
        yield found if order is None else found.with_order(order.indices)


def _read_npz(
    path: Path, system: MolecularSystem, rows: int
) -> Iterator[tuple[RawFrames, mdtraj.Topology | None]]:
    with _npz_arrays(path) as arrays:
        _check_arrays(path, arrays, system)
        total = arrays["positions"].shape[0]
        for start in range(0, total, rows):
            n = min(rows, total - start)
            found = {name: array.read(n) for name, array in arrays.items()}
            segment = found.setdefault("segment", np.zeros(n, dtype=np.int64))
            if segment.min() < 0 or segment.max() > np.iinfo(np.int32).max:
                raise ValueError(f"{path}: segment must hold numbers from 0 to 2^31 - 1, got others.")
            found["segment"] = segment.astype(np.int64)
            yield RawFrames(row=np.arange(start, start + n), **found), None
        for array in arrays.values():
            array.end()


@contextmanager
def _npz_arrays(path: Path) -> Iterator[dict[str, StoredArray]]:
    """The arrays of an ``.npz`` file by known names; `numpy.load` would read each of them as a whole."""
    with opened_arrays(path, ("positions", "forces", "energies", "time", "segment")) as arrays:
        if "positions" not in arrays:
            raise ValueError(
                f"{path} has no array 'positions'; expected positions in nm of shape (frames, atoms, 3)."
            )
        for name, array in arrays.items():
            if array.by_columns or not array.shape:
                raise ValueError(f"{path}: {name} must be an array with a row for each frame, in C order.")
        yield arrays


def _check_arrays(path: Path, arrays: dict[str, StoredArray], system: MolecularSystem) -> None:
    n_frames = arrays["positions"].shape[:1]
    shapes = {name: n_frames for name in arrays} | {
        name: (*n_frames, system.n_atoms, 3) for name in ("positions", "forces") if name in arrays
    }
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise ValueError(
                f"{path}: {name} must have shape {shapes[name]} for the {system.n_atoms} atoms of "
                f"{system.name}, got {array.shape}; is this the right molecule?"
            )
        kind, expected = ("iu", "whole") if name == "segment" else ("f", "floating-point")
        if array.dtype.kind not in kind:
            raise ValueError(f"{path}: {name} must hold {expected} numbers, got {array.dtype}.")


def _read_mdtraj(
    path: Path, system: MolecularSystem, rows: int
) -> Iterator[tuple[RawFrames, mdtraj.Topology | None]]:
    with optional("trajectories"):
        import mdtraj
    if path.suffix in (".h5", ".hdf5"):
        _check_not_ours(path)
    # Formats that store their atoms ignore this topology.
    pieces = mdtraj.iterload(str(path), chunk=rows, top=system.topology)
    start = 0
    while True:
        try:
            piece = next(pieces, None)
        except Exception as error:  # mdtraj raises errors of many types
            kind = f"as a trajectory of the {system.n_atoms} atoms of {system.name}"
            raise _unreadable(path, error, kind) from None
        if piece is None:
            return
        _check_no_cell(path, piece)
        row = np.arange(start, start + len(piece))
        found = RawFrames(row=row, segment=np.zeros_like(row), positions=piece.xyz, time=piece.time)
        yield found, piece.topology
        start += len(piece)


def _check_not_ours(path: Path) -> None:
    """Refuse our own files: mdtraj would join all their replicas into one."""
    try:
        trajectory.open_info(path)
    except ValueError:
        return
    raise ValueError(f"{path} is a trajectory of knotflow already; use it as it is.")


def _read_topology(path: Path) -> mdtraj.Topology:
    with optional("trajectories"):
        import mdtraj
    if not path.is_file():
        raise FileNotFoundError(f"there is no topology {path}.")
    check_no_pickles(path)
    try:
        return mdtraj.load_topology(str(path))
    except Exception as error:  # mdtraj raises errors of many types
        raise _unreadable(path, error, "as a topology") from None


def _check_no_cell(path: Path, piece: mdtraj.Trajectory) -> None:
    """Refuse a periodic box, unless it is only a placeholder of the format."""
    lengths = piece.unitcell_lengths
    if lengths is not None and (lengths > PLACEHOLDER_CELL).any():
        raise ValueError(
            f"{path} has a periodic unit cell of {lengths.max():.3g} nm, but only vacuum and implicit "
            "solvent are supported; if the simulation was not periodic, remove the cell (in mdtraj: "
            "trajectory.unitcell_vectors = None)."
        )


def _unreadable(path: Path, error: Exception, kind: str) -> ValueError:
    return ValueError(f"{path} cannot be read {kind}: {one_line(error)}.")
