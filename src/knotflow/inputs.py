"""Of what was a result made? One answer to "is it there, may it go on, or must it be made again?".

A result notes its *inputs*: a dictionary, as JSON can hold it, of everything that its numbers depend on
(data, model, seed, samples, rows, dtype, version). Whoever needs the result compares dictionaries: equal ones
mean that it is there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from knotflow.json_values import plain


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """SHA-256 of inputs, whatever the order of their keys."""
    text = json.dumps(plain(inputs), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_fingerprint(path: str | Path) -> str:
    """SHA-256 of the content of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same(found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether a result with these inputs is the one that is wanted; nothing was found: no."""
    return found is not None and not any(_differences(plain(found), plain(wanted)))


def refuse_others(path: Path, what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on with a result of other inputs.

    Args:
        path: The file or folder of the result.
        what: What it holds, in the plural: "chains".
        found: The inputs that it notes.
        wanted: Those that were asked for.

    Raises:
        ValueError: names the inputs that differ, with both values.
    """
    changed = list(_differences(plain(found), plain(wanted)))
    if changed:
        there = ", ".join(f"{key} {_short(value)}" for key, value, _ in changed)
        here = ", ".join(f"{key} {_short(value)}" for key, _, value in changed)
        raise ValueError(
            f"{path} holds {what} made with {there}, but you asked for {here}; ask for the same, or choose "
            "another name."
        )


def _differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Keys whose values differ, with both values; of nested dictionaries the inner keys."""
    for key in dict.fromkeys((*wanted, *found)):
        there, here = found.get(key), wanted.get(key)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            yield from _differences(there, here, f"{prefix}{key}.")
        elif there != here:
            yield f"{prefix}{key}", there, here


def _short(value: Any) -> str:
    """A value for a sentence: a fingerprint by its first digits."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
