"""HDF5 files in MDTraj's layout, with the molecule and the provenance: common to trajectories and samples.

MDTraj's layout follows the conventions "Pande" 1.1. The group ``knotflow`` holds the rest: the molecule, how
the file was made, and an attribute that states the kind of file and its version.

Damage is noticed: every piece of a dataset has HDF5's Fletcher-32 checksum, and names, shapes and attributes
are in headers that have one since HDF5 1.10. Datasets of earlier versions of knotflow have none.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from knotflow.extras import optional
from knotflow.json_values import parse_json
from knotflow.sentences import one_line
from knotflow.version import __version__

if TYPE_CHECKING:
    import h5py

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
LIBVER: Final = ("v110", "v110")
"""Readable by HDF5 1.10 and later. Its chunk index only grows and never moves what a reader may look at."""


MOST_PACKED: Final = 100
"""Texts are compressed by less than this factor."""


class Column(NamedTuple):
    """A dataset with one row per frame or sample."""

    name: str
    dtype: DTypeLike
    units: str
    per_atom: bool = False
    """Whether a row has the shape ``(atoms, 3)``; otherwise it is a number."""


def open_file(source: Path | io.IOBase, mode: str) -> h5py.File:
    """Open a path or a stream for reading or writing."""
    with optional("trajectories and samples"):
        import h5py
    return h5py.File(source, mode, libver=None if mode == "r" else LIBVER, locking=False)


def begin(
    file: h5py.File, molecule: Mapping[str, Any], columns: Iterable[Column], kind: str, version: int
) -> None:
    """Write everything except the rows and the provenance into an empty file.

    Args:
        file: The file.
        molecule: The molecule, as returned by `MolecularSystem.plain`.
        columns: The columns, without rows.
        kind: Attribute that states the kind of file.
        version: Value of this attribute.
    """
    file.attrs.update(
        conventions=np.bytes_("Pande"),
        conventionVersion=np.bytes_("1.1"),
        program=np.bytes_("knotflow"),
        programVersion=np.bytes_(__version__),
        application=np.bytes_("knotflow"),
        title=np.bytes_(str(molecule["name"]).encode()),
    )
    topology = np.array([json.dumps(molecule["topology"]).encode()])
    file.create_dataset("topology", data=topology, chunks=(1,), fletcher32=True)
    n_atoms = len(molecule["positions"])
    for column in columns:
        inner = (n_atoms, 3) if column.per_atom else ()
        # Chunks of some 100 kB: few reads for a pass through the file, little waste in a short one.
        rows = max(16, min(1024, 2**18 // (12 * n_atoms))) if column.per_atom else 4096
        dataset = file.create_dataset(
            column.name,
            (0, *inner),
            column.dtype,
            chunks=(rows, *inner),
            maxshape=(None, *inner),
            fletcher32=True,
        )
        dataset.attrs["units"] = np.bytes_(column.units)
    file.create_group("knotflow").attrs[kind] = version
    store_json(file, "system", molecule)


def put_rows(dataset: h5py.Dataset, at: int, values: NDArray[Any]) -> None:
    """Write rows ``at, at + 1, ...``; older rows from ``at`` on are dropped."""
    dataset.resize(at, axis=0)
    dataset.resize(at + len(values), axis=0)
    dataset[at:] = values


def store_json(file: h5py.File, name: str, content: Any) -> None:
    """Store a value as JSON in the group ``knotflow``."""
    raw = np.frombuffer(json.dumps(content).encode(), np.uint8)
    file["knotflow"].create_dataset(name, data=raw, chunks=raw.shape, compression="gzip", fletcher32=True)


def load_json(file: h5py.File, name: str) -> Any:
    """Read what `store_json` wrote."""
    return parse_json(file["knotflow"][name][()].tobytes())


@contextmanager
def reading(path: Path, advice: str, source: io.IOBase | None = None) -> Iterator[h5py.File]:
    """An existing file, open for reading.

    Args:
        path: The file.
        advice: What to do if the file has another format.
        source: Stream with the content of the file, to be read instead of the path.

    Raises:
        ValueError: if it is not an HDF5 file.
        OSError: if it is damaged.
    """
    with path.open("rb") as start:
        if start.read(len(SIGNATURE)) != SIGNATURE:
            raise ValueError(f"{path} is not an HDF5 file; {advice}.")
    with understood(path), open_file(path if source is None else source, "r") as file:
        yield file


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """Errors of HDF5 as one sentence with the name of the file; refusals that name it pass.

    Raises:
        OSError: if the file is damaged.
    """
    try:
        yield
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, MemoryError) as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        reason = one_line(str(error).strip("'\"").partition(", filename")[0]) or type(error).__name__
        raise OSError(
            f"{path} is cut off or damaged ({reason}); copy it again from where it came, or remove it and "
            "make it again."
        ) from error


def check_version(path: Path, file: h5py.File, kind: str, version: int) -> None:
    """Refuse a file of another version of its kind, and one that says it holds more than it does."""
    found = file["knotflow"].attrs.get(kind)
    if found != version:
        raise ValueError(
            f"{path} is of version {found}, but this knotflow {__version__} reads version {version}; upgrade "
            "knotflow, or make the file again."
        )
    for dataset in (*file.values(), *file["knotflow"].values()):
        if hasattr(dataset, "nbytes"):  # not a group
            stored = dataset.id.get_storage_size()
            if dataset.nbytes > stored * (1 if dataset.compression is None else MOST_PACKED):
                raise OSError(f"{dataset.name} would have {dataset.nbytes:,} bytes, {stored:,} are stored")
