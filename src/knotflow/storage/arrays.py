"""Arrays in ``.npz`` files: ours are sealed, written completely or not at all; none is ever unpickled."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from knotflow import checksums
from knotflow.files import read_file, write_atomically
from knotflow.sentences import one_line

FREELY: Final = 2**28
UNPACKED: Final = 100
"""Arrays may take this many bytes, or else this many times the size of their file. Numbers that mean anything
are not compressed as much."""


def write_arrays(path: Path, arrays: Mapping[str, ArrayLike], *, compressed: bool = False) -> None:
    """Write named arrays."""
    content = io.BytesIO()
    write: Any = np.savez_compressed if compressed else np.savez
    write(content, **arrays)
    with zipfile.ZipFile(content, "a") as archive:
        archive.comment = checksums.BLANK.encode()
    write_atomically(path, checksums.sealed(content.getvalue()))


def read_arrays(path: Path, *, note: bool = False) -> dict[str, NDArray[Any]]:
    """Read what `write_arrays` wrote.

    Args:
        path: The file.
        note: Whether to say so if the file is of an earlier version, without a checksum.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is another kind of file, or damaged.
    """
    content = read_file(path)
    with opened_arrays(path, source=io.BytesIO(content)) as arrays:
        found = {name: array.whole() for name, array in arrays.items()}
    with _understood(path), zipfile.ZipFile(io.BytesIO(content)) as archive:
        keyed = archive.comment != b""
    checksums.check_key(path, content, keyed, note=note)
    return found


@dataclass(frozen=True)
class StoredArray:
    """An array in an ``.npz`` file, to be read as a whole or some rows at a time."""

    path: Path
    stream: IO[bytes]
    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]

    def read(self, n: int) -> NDArray[Any]:
        """The next ``n`` rows of an array that is stored row by row."""
        size = n * math.prod(self.shape[1:])
        with _understood(self.path):
            content = self.stream.read(size * self.dtype.itemsize)
            return np.frombuffer(content, self.dtype, count=size).reshape(n, *self.shape[1:])

    def end(self) -> None:
        """Check, after the last row, that all bytes were as they should be."""
        with _understood(self.path):
            if self.stream.read(1):
                raise ValueError("an array is longer than it says")

    def whole(self) -> NDArray[Any]:
        """All of it."""
        with _understood(self.path):
            content = self.stream.read(math.prod(self.shape) * self.dtype.itemsize)
            found = np.frombuffer(bytearray(content), self.dtype, count=math.prod(self.shape))
            self.end()
            return found.reshape(self.shape, order="F" if self.by_columns else "C")


@contextmanager
def opened_arrays(
    path: Path, names: Container[str] | None = None, source: IO[bytes] | None = None
) -> Iterator[dict[str, StoredArray]]:
    """The arrays of an ``.npz`` file by name, of which nothing but shapes and types has been read.

    Args:
        path: The file.
        names: Those wanted; None: all.
        source: The content of the file, to be read instead of the path.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is another kind of file, or is damaged, or says that it holds far more than it does.
    """
    with ExitStack() as stack:
        with _understood(path):
            archive = stack.enter_context(zipfile.ZipFile(source or path))
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if names is not None:
                members = {name: info for name, info in members.items() if name in names}
            if not archive.infolist():
                raise ValueError("it is empty")
            _check_sizes(archive.infolist(), path.stat().st_size)
            arrays = {
                name: _opened(path, name, info, stack.enter_context(archive.open(info)))
                for name, info in members.items()
            }
        yield arrays


def _opened(path: Path, name: str, info: zipfile.ZipInfo, stream: IO[bytes]) -> StoredArray:
    major, minor = np.lib.format.read_magic(stream)
    read_header = getattr(np.lib.format, f"read_array_header_{major}_{minor}")
    shape, by_columns, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError(f"{name} must be an array of plain numbers, not of Python objects")
    declared = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or declared != info.file_size - stream.tell():
        raise ValueError(
            f"{name} would have {declared:,} bytes by its shape {shape}, but there are "
            f"{info.file_size - stream.tell():,}"
        )
    return StoredArray(path, stream, shape, by_columns, dtype)


def _check_sizes(members: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse an archive whose content would fill the memory, before any of it is unpacked."""
    unpacked = sum(info.file_size for info in members)
    if unpacked > max(FREELY, UNPACKED * size):
        raise ValueError(f"its {size:,} bytes would become {unpacked:,} in memory, too many for numbers")


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    """Errors of reading as a ValueError that names the file; NumPy, zip and its decompressors have many."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        reason = one_line(error)
        if str(path) in reason:
            raise
        raise ValueError(f"{path} cannot be read as an .npz file: {reason}.") from None
