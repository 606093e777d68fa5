"""Model files: weights and configuration in one ``.safetensors`` file; nothing is ever unpickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from knotflow.errors import ConfigError
from knotflow.files import write_atomically
from knotflow.flows.config import FlowConfig
from knotflow.flows.flow import Flow

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
    metadata = {"format": FORMAT, "config": json.dumps(flow.config.plain()), "notes": json.dumps(notes)}
    tensors = {name: tensor.detach().contiguous() for name, tensor in flow.state_dict().items()}
    write_atomically(Path(path), to_bytes(tensors, metadata))


def load(path: str | Path, device: str = "cpu") -> Flow:
    """Read a flow that `save` wrote, in its saved dtype."""
    tensors, metadata = _read(Path(path), device)
    try:
        config = FlowConfig.read(json.loads(metadata["config"]))
    except (ConfigError, json.JSONDecodeError, KeyError) as error:
        raise ValueError(f"{path} has no usable configuration: {error}") from None
    with torch.device("meta"):  # no weights are drawn that would be replaced at once
        flow = config.build()
    dtypes = {tensor.dtype for tensor in tensors.values()}
    flow = flow.to(dtypes.pop() if len(dtypes) == 1 else None).to_empty(device=device)
    try:
        flow.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path}: the weights do not fit the configuration: {error}") from None
    return flow


def notes(path: str | Path) -> dict[str, Any]:
    """The notes in a model file, without reading its weights."""
    found: dict[str, Any] = json.loads(_read(Path(path), "cpu", weights=False)[1].get("notes", "{}"))
    return found


def _read(path: Path, device: str, *, weights: bool = True) -> tuple[dict[str, Any], dict[str, str]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}.")
    try:
        with safe_open(path, "pt", device=device) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()} if weights else {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a .safetensors file, or is damaged: {error}") from None
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} is not a knotflow model of format {FORMAT}, got {metadata.get('format')!r}; it may come "
            "from another program or version."
        )
    return tensors, metadata
