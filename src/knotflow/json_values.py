"""Conversion of values to JSON, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Final

DEEPEST: Final = 200
TOO_DEEP: Final = f"it is nested more than {DEEPEST} levels deep"


def plain(value: Any) -> Any:
    """A value for JSON: dataclasses become objects, paths strings, and non-finite numbers null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if it is not JSON, or nested too deeply.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level = [value]
    for _ in range(DEEPEST):
        level = [item for outer in level for item in _inside(outer)]
        if not level:
            return value
    raise ValueError(TOO_DEEP)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
