"""Files that are complete or not there, and JSON in them."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from knotflow.json_values import plain


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file; an older one of that name stays until the new one is complete and on disk."""
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


def json_bytes(value: Any) -> bytes:
    """A value as the content of a JSON file; see `plain` for what becomes of dataclasses, paths and NaN."""
    return (json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, completely or not at all."""
    write_atomically(path, json_bytes(value))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        OSError: if there is none.
        ValueError: if it is damaged.
    """
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON, or is damaged ({error}); remove it.") from None
