"""Atomic writing of files, JSON files, and locks against two processes writing the same file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from knotflow import checksums
from knotflow.json_values import parse_json, plain
from knotflow.sentences import listed

try:
    import fcntl
except ImportError:  # Windows: two writers at once are not noticed there.
    fcntl = None  # type: ignore[assignment]

_held: set[Path] = set()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file; an older one of the same name stays until the new one is complete and on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check_h5(path: Path, name: str) -> None:
    """Refuse a path for a data file, given as argument ``name``, unless it ends in .h5."""
    if path.suffix != ".h5":
        raise ValueError(f"{name} must be a file ending in .h5, got '{path}'.")


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
            ours = os.path.samestat(os.fstat(lock.fileno()), lock_path.stat())
        except (BlockingIOError, FileNotFoundError):
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


def hidden_beside(path: Path, kind: str) -> Path:
    """A hidden file beside a file; the same one whichever links lead to the file."""
    path = path.resolve()
    return path.with_name(f".{path.name}.{kind}")


def json_bytes(value: Any) -> bytes:
    """A value as the content of a JSON file; `plain` converts dataclasses, paths and NaN."""
    return (json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, completely or not at all; a table gets a checksum."""
    found = plain(value)
    if not isinstance(found, dict):
        write_atomically(path, json_bytes(found))
    else:
        write_atomically(path, checksums.sealed(json_bytes({**found, checksums.KEY: checksums.BLANK})))


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """Read a JSON file that holds a table.

    Args:
        path: The file.
        *keys: What the table must have.

    Raises:
        OSError: if there is none.
        ValueError: if it is damaged, or holds something else.
    """
    content = path.read_bytes()
    try:
        found = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON, or is damaged ({error}); remove it.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a table of keys and values, and is damaged; remove it.")
    checksums.check_key(path, content, checksums.KEY in found)
    found.pop(checksums.KEY, None)
    missing = [key for key in keys if key not in found]
    if missing:
        raise ValueError(f"{path} has no {listed(missing)}, and is damaged; remove it.")
    return found
