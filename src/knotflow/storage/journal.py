"""Atomic changes of files: a change interrupted by a kill or a full disk never happened.

A library that edits a file in place, such as HDF5, leaves it damaged if it is killed half-way. Here it works
on an `Overlay` instead: the file on disk, with all writes in memory. `Overlay.commit` then writes them in an
order that is safe at every moment:

1. New bytes are appended to the file, where nothing refers to them yet.
2. Bytes to be changed inside the file are written to a journal next to it, which appears when complete.
3. They are changed, and the journal is removed. A journal that is still there means that the program was
   killed in this step: it is repeated (`settle`), or readers see the file as if it had been (`pending`).
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from knotflow import checksums
from knotflow.files import hidden_beside, read_file, write_atomically
from knotflow.json_values import parse_json

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class Overlay(io.RawIOBase):
    """A file with writes that are kept in memory.

    Args:
        path: The file; it is only read.
        patches: Bytes that differ from those on disk, as ``(offset, bytes)``; later ones win.
        size: Size of the file with these patches, by default as on disk.
    """

    def __init__(
        self, path: Path, patches: list[tuple[int, bytes]] | None = None, size: int | None = None
    ) -> None:
        self._path = path
        self._file = path.open("rb")
        self._disk_size = path.stat().st_size
        self._patches = [] if patches is None else patches
        self._size = self._disk_size if size is None else size
        self._position = 0

    @property
    def bytes_changed(self) -> int:
        """Number of bytes that a commit has to write."""
        return sum(len(data) for _, data in self._patches)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        start, stop = self._position, min(self._position + len(view), self._size)
        count = max(0, stop - start)
        self._file.seek(start)
        on_disk = self._file.readinto(view[:count])
        view[on_disk:count] = bytes(count - on_disk)
        for offset, data in self._patches:
            low, high = max(start, offset), min(stop, offset + len(data))
            if low < high:
                view[low - start : high - start] = data[low - offset : high - offset]
        self._position += count
        return count

    def write(self, buffer: ReadableBuffer, /) -> int:
        data = bytes(buffer)
        inside = max(0, self._disk_size - self._position)
        self._patches += [
            (offset, part)
            for offset, part in ((self._position, data[:inside]), (self._position + inside, data[inside:]))
            if part
        ]
        self._position += len(data)
        self._size = max(self._size, self._position)
        return len(data)

    def truncate(self, size: int | None = None, /) -> int:
        self._size = self._position if size is None else size
        return self._size

    def commit(self) -> None:
        """Carry out the writes on disk: all of them, or none if an error occurs.

        Raises:
            OSError: if there is not enough space, or the disk fails; its ``errno`` says which. The file is
                unchanged or, if only the last step failed, the next `settle` repeats it.
        """
        beyond = [patch for patch in self._patches if patch[0] >= self._disk_size]
        inside = [patch for patch in self._patches if patch[0] < self._disk_size]
        if self.bytes_changed > shutil.disk_usage(self._path.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        try:
            _overwrite(self._path, beyond, max(self._size, self._disk_size))
            _write_journal(self._path, inside, self._size)
        except OSError:
            forget(self._path)
            os.truncate(self._path, self._disk_size)
            raise
        settle(self._path)


def pending(path: Path) -> Overlay | None:
    """The file as it will be after a commit that was interrupted or is still running; None without one."""
    journal = _read_journal(path)
    return None if journal is None else Overlay(path, *journal)


def settle(path: Path) -> None:
    """Finish an interrupted commit, if there is one; call it only while no one else can write."""
    journal = _read_journal(path)
    if journal is not None:
        _overwrite(path, *journal)
        now = time.time_ns()
        os.utime(path, ns=(now, now))  # for `state`: the clock of many file systems ticks only every 4 ms
        _journal(path).unlink()


def forget(path: Path) -> None:
    """Remove the journal that an earlier file of that name left behind."""
    _journal(path).unlink(missing_ok=True)


def state(path: Path) -> tuple[int, ...]:
    """Numbers that change whenever the file does: a read is consistent if they stay the same."""
    seen = path.stat()
    try:
        journal = _journal(path).stat().st_mtime_ns
    except FileNotFoundError:
        journal = 0
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, journal


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block: C libraries do not survive them in callbacks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda which, _: came.append(which)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler or signal.SIG_DFL)
        for which in came[:1]:
            signal.raise_signal(which)


def _journal(path: Path) -> Path:
    return hidden_beside(path, "journal")


def _write_journal(path: Path, patches: list[tuple[int, bytes]], size: int) -> None:
    lengths = [(offset, len(data)) for offset, data in patches]
    head = {"size": size, "patches": lengths, checksums.KEY: checksums.BLANK}
    content = b"".join([json.dumps(head).encode(), b"\n", *(data for _, data in patches)])
    write_atomically(_journal(path), checksums.sealed(content))
    _sync_folder(_journal(path).parent)


def _read_journal(path: Path) -> tuple[list[tuple[int, bytes]], int] | None:
    try:
        content = read_file(_journal(path))
    except FileNotFoundError:
        return None
    line, _, body = content.partition(b"\n")
    try:
        head = parse_json(line)
        checksums.check_key(_journal(path), content, checksums.KEY in head)
        size, lengths = int(head["size"]), [(int(offset), int(length)) for offset, length in head["patches"]]
        if min(map(min, lengths), default=0) < 0 or sum(length for _, length in lengths) != len(body):
            raise ValueError("its parts do not add up")
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise OSError(
            f"the journal {_journal(path)}, with the last change of {path.name}, is damaged ({error}); copy "
            "both files again from where they came, or remove both and make them again."
        ) from None
    if path.stat().st_size < size:
        raise OSError(
            f"{path} was cut off, or is not the file that {_journal(path)} belongs to; copy both files again "
            "from where they came, or remove the journal."
        )
    stream = io.BytesIO(body)
    return [(offset, stream.read(length)) for offset, length in lengths], size


def _overwrite(path: Path, patches: list[tuple[int, bytes]], size: int) -> None:
    """Write patches into a file, set its size, and wait until this is on disk."""
    with path.open("r+b", buffering=0) as file:
        for offset, data in patches:
            _write_all(file, offset, data)
        file.truncate(size)
        os.fsync(file.fileno())


def _write_all(file: BinaryIO, offset: int, data: bytes) -> None:
    file.seek(offset)
    rest = memoryview(data)
    while rest:  # an unbuffered file may write only a part
        rest = rest[file.write(rest) :]


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power cut, where the system supports it."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
