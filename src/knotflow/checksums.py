"""Checksums inside files: every file that knotflow writes says what its bytes must be.

A file has a *seal* somewhere in its content: the word ``knotflow-sha256:`` and the SHA-256 of the whole
content with zeros in the place of these digits. So each format keeps its own layout, and no byte is left out.
The seal is in the metadata of tensors, in a key of JSON, in the comment of an ``.npz``. HDF5 has checksums of
its own (`knotflow.storage.hdf5`).

Files of earlier versions have no seal, and are read as they are.
"""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path
from typing import Final

log = logging.getLogger("knotflow")

KEY: Final = "checksum"
"""The key of the seal, in formats that have keys."""
_WORD: Final = b"knotflow-sha256:"
_ZEROS: Final = b"0" * 64
BLANK: Final = (_WORD + _ZEROS).decode()
"""What a writer puts in the place of the seal, before `sealed`."""
_SEAL: Final = re.compile(re.escape(_WORD) + rb"([0-9a-f]{64})")


def sealed(content: bytes) -> bytes:
    """The content of a file with its seal in the place of `BLANK`, which it must have once."""
    (place,) = _SEAL.finditer(content)
    return content[: place.start(1)] + _digest(content, place) + content[place.end(1) :]


def has_seal(path: str | Path, content: bytes) -> bool:
    """Whether the content of a file has a seal; False for files of earlier versions.

    Raises:
        ValueError: if it has one that does not fit.
    """
    place = _SEAL.search(content)
    if place is None:
        return False
    if _digest(content, place) != place[1]:
        raise damaged(path)
    return True


def check_key(path: str | Path, content: bytes, keyed: bool, *, note: bool = False) -> None:
    """Refuse a file that does not fit its seal, or whose seal cannot be recognised.

    Args:
        path: The file, for messages.
        content: All of it.
        keyed: Whether it has the `KEY` of a seal.
        note: Whether to say so if it has none.
    """
    if has_seal(path, content) != keyed:
        raise damaged(path)
    if note and not keyed:
        log.warning(f"{path} is of an earlier version, without a checksum; damage to it would go unnoticed.")


def damaged(path: str | Path) -> ValueError:
    """The error of a file that does not fit its checksum."""
    return ValueError(
        f"{path} is damaged or was changed by hand: its content does not fit its checksum; copy it again "
        "from where it came, or remove it and make it again."
    )


def _digest(content: bytes, place: re.Match[bytes]) -> bytes:
    """SHA-256 of the content, with zeros in the place of the digits of the seal."""
    view = memoryview(content)
    found = hashlib.sha256(view[: place.start(1)])
    found.update(_ZEROS)
    found.update(view[place.end(1) :])
    return found.hexdigest().encode()
