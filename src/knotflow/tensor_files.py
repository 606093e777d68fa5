"""Tensors in sealed ``.safetensors`` files, which are written completely or not at all, never unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from knotflow import checksums
from knotflow.files import read_file, write_atomically
from knotflow.json_values import parse_json


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write named tensors and words."""
    kept = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    content = to_bytes(kept, {**metadata, checksums.KEY: checksums.BLANK})
    write_atomically(path, checksums.sealed(content))


def read_tensors(
    path: Path, device: str = "cpu", *, note: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `write_tensors` wrote: tensors and metadata.

    Args:
        path: The file.
        device: For the tensors.
        note: Whether to say so if the file is of an earlier version, without a checksum.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is another kind of file, or damaged.
    """
    content = read_file(path)
    metadata = _metadata(path, content, note)
    try:
        tensors = from_bytes(content)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise _unreadable(path, error) from None
    return {name: tensor.to(device) for name, tensor in tensors.items()}, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a file, without its tensors; for errors see `read_tensors`."""
    return _metadata(path, read_file(path), note=False)


def parse_metadata(path: Path, metadata: Mapping[str, str], key: str) -> Any:
    """The JSON value of a key.

    Raises:
        ValueError: if it is missing, or no JSON.
    """
    try:
        return parse_json(metadata[key])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} has no usable {key!r} in its metadata: {error}.") from None


def as_metadata(**values: Any) -> dict[str, str]:
    """JSON values as metadata."""
    return {key: json.dumps(value) for key, value in values.items()}


def _metadata(path: Path, content: bytes, note: bool) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    if not 0 < size <= len(content) - 8:
        raise _unreadable(path, f"its header would have {size:,} bytes")
    try:
        header: Any = parse_json(content[8 : 8 + size])
        found = header.get("__metadata__", {})
        metadata = {str(key): str(value) for key, value in found.items()}
    except (ValueError, AttributeError) as error:
        raise _unreadable(path, error) from None
    checksums.check_key(path, content, checksums.KEY in metadata, note=note)
    metadata.pop(checksums.KEY, None)
    return metadata


def _unreadable(path: Path, error: object) -> ValueError:
    return ValueError(f"{path} is not a .safetensors file, or is damaged: {error}.")
