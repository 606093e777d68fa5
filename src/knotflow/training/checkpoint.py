"""Checkpoint files without pickle: tensors in safetensors, everything else as JSON in the metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from knotflow.files import write_atomically

FORMAT = "knotflow-checkpoint-1"


def write_checkpoint(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write nested dictionaries and lists of tensors, numbers and strings."""
    tensors: dict[str, Tensor] = {}
    tree = _pack(checkpoint, tensors)
    write_atomically(path, to_bytes(tensors, {"format": FORMAT, "tree": json.dumps(tree)}))


def read_checkpoint(path: Path, device: str = "cpu") -> dict[str, Any]:
    """Read what `write_checkpoint` wrote."""
    try:
        with safe_open(path, "pt", device=device) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a checkpoint of knotflow, or is damaged: {error}") from None
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of format {FORMAT}; remove it to start over.")
    checkpoint: dict[str, Any] = _unpack(json.loads(metadata["tree"]), tensors)
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
