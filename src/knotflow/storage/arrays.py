"""Arrays in ``.npz`` files, which are written completely or not at all and never unpickled."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from knotflow.files import write_atomically


def write_arrays(path: Path, arrays: Mapping[str, ArrayLike], *, compressed: bool = False) -> None:
    """Write named arrays."""
    content = io.BytesIO()
    write: Any = np.savez_compressed if compressed else np.savez
    write(content, **arrays)
    write_atomically(path, content.getvalue())


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read what `write_arrays` wrote.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is another kind of file, or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"no arrays can be read from {path.name}: {error}") from None
