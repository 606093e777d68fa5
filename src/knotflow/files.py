"""Atomic writing of files, JSON files, and locks against two processes writing the same file.

A killed process may leave hidden files behind: what it had not finished to write, and its lock. They have
fixed names, so whoever writes the same file next takes them over, and removes them at the end.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from knotflow import checksums
from knotflow.json_values import parse_json, plain
from knotflow.resources import size
from knotflow.sentences import listed

try:
    import fcntl
except ImportError:  # Windows: two writers at once are not noticed there.
    fcntl = None  # type: ignore[assignment]

_held: set[Path] = set()


NO_SPACE: Final = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""Numbers of the errors of a full disk, a file system with small files, and a used-up quota."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file; an older one of the same name stays until the new one is complete and on disk.

    Raises:
        OSError: if it cannot be written, see `writing`.
    """
    with writing(path, len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _new_file(path) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """An empty hidden file, which gets its name at the end of the block; who comes second waits."""
    part = path.with_name(f".{path.name}.part")
    while True:
        with part.open("ab") as file:
            if fcntl is not None:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(file, part):  # who came first has moved it
                continue
            try:
                file.truncate(0)
                yield file
                if fcntl is None:
                    file.close()  # Windows moves only closed files
                part.chmod(0o644)
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            return


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def writing(path: Path, needed: int | None = None) -> Iterator[None]:
    """Say which file could not be written, and what to do, if the block raises an error of the disk.

    Args:
        path: The file that the block writes.
        needed: Bytes that it needs, if known.

    Raises:
        OSError: with a sentence, and the number of the original error.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # it is a sentence already
            raise
        failed = OSError(unwritten(path, error, needed))
        failed.errno = error.errno
        raise failed from error


def unwritten(path: Path, error: OSError, needed: int | None = None) -> str:
    """The sentence about a file that could not be written; for the arguments see `writing`."""
    reason = os.strerror(error.errno) if error.errno is not None else str(error)
    if error.errno not in NO_SPACE:
        return f"{path} could not be written ({reason}); choose another place."
    with suppress(OSError):
        free = size(shutil.disk_usage(path.parent).free)
        reason += f": {free} are free" + (f", {size(needed)} needed" if needed else "")
    return (
        f"{path} could not be written ({reason}); free some space or choose another place, then run the same "
        "command again."
    )


def check_ending(path: Path, name: str, ending: str = ".h5") -> None:
    """Refuse a path for a file to write, given as argument ``name``, unless it has this ending.

    So no result is ever written over a file of another kind, such as the model or the data it is about.
    """
    if path.suffix != ending:
        raise ValueError(f"{name} must be a file ending in {ending}, got '{path}'.")


def read_file(path: Path) -> bytes:
    """The content of a file.

    Raises:
        OSError: if there is none, or it is something else, see `check_file`.
    """
    check_file(path)
    return path.read_bytes()


def check_file(path: Path) -> None:
    """Refuse a folder, and what may never end: pipes and devices. No file at all passes."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe or a device"
        raise OSError(f"{path} must be a file, but is {kind}; move it away, or give another name.")


@contextmanager
def only_writer(path: str | Path) -> Iterator[None]:
    """Keep other processes from writing to a file while this block runs; blocks may be nested.

    The lock ends with the process, however that ends.

    Raises:
        OSError: if another process has the lock.
    """
    path = Path(path).resolve()
    if fcntl is None or path in _held:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock_path = hidden_beside(path, "lock")
    with lock_path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # If the last holder has just removed the file, this is not the one that others lock.
            ours = _is_at(lock, lock_path)
        except BlockingIOError:
            ours = False
        if not ours:
            raise OSError(
                f"{path} is being written by another process; wait until it is done, stop it, or choose "
                "another file."
            )
        _held.add(path)
        try:
            yield
        finally:
            _held.discard(path)
            lock_path.unlink(missing_ok=True)


def remove_lock(path: Path) -> None:
    """Remove the lock that a killed process left beside a file that is finished; one in use stays."""
    with suppress(OSError), only_writer(path):
        pass


def hidden_beside(path: Path, kind: str) -> Path:
    """A hidden file beside a file; the same one whichever links lead to the file."""
    path = path.resolve()
    return path.with_name(f".{path.name}.{kind}")


def json_bytes(value: Any) -> bytes:
    """A value as the content of a JSON file; `plain` converts dataclasses, paths and NaN."""
    return (json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, completely or not at all; a table gets a checksum, and an empty last line.

    Without that line, a file that has lost its whole checksum would look like one of an earlier version.
    """
    found = plain(value)
    if not isinstance(found, dict):
        write_atomically(path, json_bytes(found))
    else:
        content = json_bytes({**found, checksums.KEY: checksums.BLANK}) + b"\n"
        write_atomically(path, checksums.sealed(content))


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """Read a JSON file that holds a table.

    Args:
        path: The file.
        *keys: What the table must have.

    Raises:
        OSError: if there is none.
        ValueError: if it is damaged, or holds something else.
    """
    content = read_file(path)
    try:
        found = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON, or is damaged ({error}); remove it.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a table of keys and values, and is damaged; remove it.")
    checksums.check_key(path, content, checksums.KEY in found or content.endswith(b"\n\n"))
    found.pop(checksums.KEY, None)
    missing = [key for key in keys if key not in found]
    if missing:
        raise ValueError(f"{path} has no {listed(missing)}, and is damaged; remove it.")
    return found
