"""Checkpoint files without pickle: tensors in safetensors, everything else as JSON in the metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from knotflow.tensor_files import as_metadata, parse_metadata, read_tensors, write_tensors

FORMAT = "knotflow-checkpoint-1"


def write_checkpoint(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write nested dictionaries and lists of tensors, numbers and strings."""
    tensors: dict[str, Tensor] = {}
    tree = _pack(checkpoint, tensors)
    write_tensors(path, tensors, {"format": FORMAT, **as_metadata(tree=tree)})


def read_checkpoint(path: Path, device: str = "cpu") -> dict[str, Any]:
    """Read what `write_checkpoint` wrote.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is another kind of file, or damaged.
    """
    tensors, metadata = read_tensors(path, device, note=True)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of format {FORMAT}; remove it to start over.")
    tree = parse_metadata(path, metadata, "tree")
    try:
        checkpoint: dict[str, Any] = _unpack(tree, tensors)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); remove it to start over.") from None
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path} is damaged: it must hold a table; remove it to start over.")
    return checkpoint


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON: tensors are replaced by their names, dictionaries keep the types of their keys."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [_pack(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}: {value!r}.")


def _unpack(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _unpack(item, tensors) for key, item in content}
    items = [_unpack(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
