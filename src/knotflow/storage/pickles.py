"""Pickles in HDF5 files of other programs, found before mdtraj lets PyTables open them."""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from knotflow.molecules.structure import plain_suffix
from knotflow.storage import hdf5

ENDINGS: Final = (".h5", ".hdf5", ".lh5")
IMPORTS: Final = frozenset({"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"})
"""Instructions of a pickle that fetch a class or a function, without which it can run nothing."""


def check_no_pickles(path: Path) -> None:
    """Refuse an HDF5 file that could run code when PyTables reads it; other files pass.

    PyTables unpickles attributes that look like pickles, and rows of arrays of objects.

    Raises:
        ValueError: if there is such an attribute or array, or the file cannot be read.
        OSError: if it is damaged.
    """
    if plain_suffix(path) not in ENDINGS or not path.is_file():
        return
    with hdf5.reading(path, "it must be one to be read by its ending") as file:
        found = [file]
        file.visititems(lambda _, item: found.append(item))
        for item in found:
            for name, value in item.attrs.items():
                if any(name == "PSEUDOATOM" or _imports(text) for text in _texts(value)):
                    raise ValueError(
                        f"{path} holds Python objects in {item.name}, attribute {name}, which could run any "
                        "program when they are read; save the frames in another format."
                    )


def _texts(value: Any) -> Iterator[bytes]:
    for part in np.ravel(np.asarray(value, dtype=object)).tolist():
        if isinstance(part, str | bytes):
            yield part.encode(errors="surrogateescape") if isinstance(part, str) else part


def _imports(text: bytes) -> bool:
    """Whether a text is a pickle, or begins like one, that fetches a class or a function."""
    try:
        return any(code.name in IMPORTS for code, _, _ in pickletools.genops(text))
    except (ValueError, IndexError, UnicodeDecodeError):  # not a pickle from here on
        return False
