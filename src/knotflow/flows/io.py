"""Model files: weights and configuration in one ``.safetensors`` file; nothing is ever unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from knotflow.errors import ConfigError
from knotflow.flows.config import FlowConfig
from knotflow.flows.flow import Flow
from knotflow.tensor_files import as_metadata, parse_metadata, read_metadata, read_tensors, write_tensors

FORMAT = "knotflow-flow-1"


def save(flow: Flow, path: str | Path, **notes: Any) -> None:
    """Write a flow to a ``.safetensors`` file, with its configuration and notes (anything JSON can hold).

    Raises:
        ValueError: if the flow was made of couplings by hand, and so has no configuration.
    """
    if flow.config is None:
        raise ValueError(
            "this flow was put together by hand and has no configuration to save; build it from a "
            "FlowConfig, or save its state_dict yourself."
        )
    metadata = {"format": FORMAT, **as_metadata(config=flow.config.plain(), notes=notes)}
    write_tensors(Path(path), flow.state_dict(), metadata)


def load(path: str | Path, device: str = "cpu") -> Flow:
    """Read a flow that `save` wrote, in its saved dtype.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is another kind of file, or damaged.
    """
    path = Path(path)
    _check_exists(path)
    tensors, metadata = read_tensors(path, device)
    _check_format(path, metadata)
    try:
        config = FlowConfig.read(parse_metadata(path, metadata, "config"))
    except ConfigError as error:
        raise ValueError(f"{path} has no usable configuration: {error}") from None
    flow = _empty(path, config, tensors)
    dtypes = {tensor.dtype for tensor in tensors.values()}
    flow = flow.to(dtypes.pop() if len(dtypes) == 1 else None).to_empty(device=device)
    flow.load_state_dict(tensors)
    return flow


def notes(path: str | Path) -> dict[str, Any]:
    """The notes in a model file, without reading its weights."""
    path = Path(path)
    _check_exists(path)
    metadata = read_metadata(path)
    _check_format(path, metadata)
    found = parse_metadata(path, metadata, "notes") if "notes" in metadata else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: its notes must be a table, got {type(found).__name__}.")
    return found


def _empty(path: Path, config: FlowConfig, tensors: dict[str, Tensor]) -> Flow:
    """A flow without memory for its weights, if those in the file fit it."""
    try:
        with torch.device("meta"):  # no weights are drawn that would be replaced at once
            flow = config.build()
    except (ValueError, RuntimeError, TypeError, OverflowError, MemoryError) as error:  # of absurd sizes
        raise ValueError(f"{path}: no flow can be built by the configuration: {error}") from None
    expected = {name: tuple(tensor.shape) for name, tensor in flow.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in (*expected, *found):
        if expected.get(name) != found.get(name):
            raise ValueError(
                f"{path}: the weights do not fit the configuration: {name} must have shape "
                f"{expected.get(name, 'none')}, got {found.get(name, 'none')}."
            )
    return flow


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}.")


def _check_format(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} is not a knotflow model of format {FORMAT}, got {metadata.get('format')!r}; it may come "
            "from another program or version."
        )
