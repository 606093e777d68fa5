"""What trajectories and samples share: HDF5 files in MDTraj's layout, with the molecule and its provenance.

MDTraj's layout are the conventions "Pande" 1.1. The group ``knotflow`` holds the rest: the molecule, how the
file was made, and as an attribute which kind of file it is, with its version.
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
from knotflow.version import __version__

if TYPE_CHECKING:
    import h5py

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
LIBVER: Final = ("v110", "v110")
"""HDF5 1.10 and later read it. Its index of chunks only grows: it never moves what a reader may look at."""


class Column(NamedTuple):
    """A dataset with a row for each frame or sample."""

    name: str
    dtype: DTypeLike
    units: str
    per_atom: bool = False
    """Whether a row has the shape ``(atoms, 3)``; otherwise it is a number."""


def open_file(source: Path | io.IOBase, mode: str) -> h5py.File:
    """A file in this layout, by its path or as a stream, to read or write it."""
    with optional("trajectories and samples"):
        import h5py
    return h5py.File(source, mode, libver=None if mode == "r" else LIBVER, locking=False)


def begin(
    file: h5py.File, molecule: Mapping[str, Any], columns: Iterable[Column], kind: str, version: int
) -> None:
    """Write all but the rows and the provenance.

    Args:
        file: An empty file.
        molecule: As `MolecularSystem.plain` describes it.
        columns: What a row has.
        kind: Name of the attribute that says which kind of file this is.
        version: Its value.
    """
    file.attrs.update(
        conventions=np.bytes_("Pande"),
        conventionVersion=np.bytes_("1.1"),
        program=np.bytes_("knotflow"),
        programVersion=np.bytes_(__version__),
        application=np.bytes_("knotflow"),
        title=np.bytes_(str(molecule["name"]).encode()),
    )
    file["topology"] = np.array([json.dumps(molecule["topology"]).encode()])
    n_atoms = len(molecule["positions"])
    for column in columns:
        inner = (n_atoms, 3) if column.per_atom else ()
        # Chunks of some 100 kB: few reads for a pass through the file, little waste in a short one.
        rows = max(16, min(1024, 2**18 // (12 * n_atoms))) if column.per_atom else 4096
        dataset = file.create_dataset(
            column.name, (0, *inner), column.dtype, chunks=(rows, *inner), maxshape=(None, *inner)
        )
        dataset.attrs["units"] = np.bytes_(column.units)
    file.create_group("knotflow").attrs[kind] = version
    store_json(file, "system", molecule)


def put_rows(dataset: h5py.Dataset, at: int, values: NDArray[Any]) -> None:
    """Write rows ``at, at + 1, ...``; those that were there are dropped."""
    dataset.resize(at, axis=0)
    dataset.resize(at + len(values), axis=0)
    dataset[at:] = values


def store_json(file: h5py.File, name: str, content: Any) -> None:
    """Keep what JSON can hold in the group ``knotflow``."""
    raw = np.frombuffer(json.dumps(content).encode(), np.uint8)
    file["knotflow"].create_dataset(name, data=raw, chunks=raw.shape, compression="gzip")


def load_json(file: h5py.File, name: str) -> Any:
    """Read what `store_json` wrote."""
    return json.loads(file["knotflow"][name][()].tobytes())


def is_hdf5(path: Path) -> bool:
    """Whether a file begins like one of HDF5."""
    with path.open("rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


@contextmanager
def reading(path: Path, remedy: str, source: io.IOBase | None = None) -> Iterator[h5py.File]:
    """A file, open for reading.

    Args:
        path: The file.
        remedy: What to do about a damaged one.
        source: Where its content is to be read from, instead of the path.

    Raises:
        OSError: if it is damaged.
    """
    try:
        with open_file(path if source is None else source, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError) as error:
        reason = str(error).strip("'\"").partition(", filename")[0]
        raise OSError(f"{path} is cut off or damaged ({reason}); {remedy}.") from error


def check_version(path: Path, what: str, found: Any, version: int, remedy: str) -> None:
    """Refuse a file of another version of its kind."""
    if found != version:
        raise ValueError(
            f"{path} is {what} of version {found}, but this knotflow {__version__} reads version {version}; "
            f"upgrade knotflow, or {remedy}."
        )
