"""What was a result made of? One answer to "is it there, may it go on, or must it be made again?".

A result notes its *inputs*: a dictionary, as JSON can hold it, of everything that its numbers depend on
(data, model, seed, samples, rows, dtype, configuration). Whoever needs the result compares dictionaries:

- `same`: the result is there, and is not made again;
- `refuse_others`: the result took long, and is not replaced or continued with other inputs.

An input that is None counts as one that is not noted. The version of knotflow is an input of what is quickly
made again, such as evaluations and figures. Simulations, chains and trainings go on with any version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from knotflow.json_values import plain

NAMED: Final = 4
"""Differences that a refusal names."""


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """SHA-256 of inputs, whatever the order of their keys."""
    text = json.dumps(plain(inputs), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_fingerprint(path: str | Path) -> str:
    """SHA-256 of the content of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same(found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether a result with these inputs is the one that is wanted; None stands for no result."""
    return found is not None and not any(_differences(plain(found), plain(wanted)))


def among(noted: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Of all that a result notes, what belongs to the inputs that are wanted."""
    return {key: noted.get(key) for key in wanted}


def refuse_others(path: Path, what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on with a result of other inputs.

    Args:
        path: The file or folder of the result.
        what: What it holds: "chains".
        found: The inputs that it notes.
        wanted: Those that were asked for.

    Raises:
        ValueError: names the inputs that differ, with both values.
    """
    changed = list(_differences(plain(found), plain(wanted)))
    if changed:
        there = ", ".join(f"{key} {_short(value)}" for key, value, _ in changed[:NAMED])
        here = ", ".join(f"{key} {_short(value)}" for key, _, value in changed[:NAMED])
        more = f" (and {len(changed) - NAMED} more differences)" if len(changed) > NAMED else ""
        raise ValueError(
            f"{path} holds {what} made with {there}, but you asked for {here}{more}; ask for the same, or "
            "choose another name."
        )


def made_of(noted: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether a result was made of these inputs, by what it notes; it may note more. None: no result."""
    return noted is not None and same(among(noted, wanted), wanted)


def _differences(found: Any, wanted: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two values differ, with both; within dictionaries, and lists of one length, the inner keys."""
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        found, wanted = dict(enumerate(found)), dict(enumerate(wanted))
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for inner in dict.fromkeys((*wanted, *found)):
            name = f"{key}.{inner}" if key else str(inner)
            yield from _differences(found.get(inner), wanted.get(inner), name)
    elif found != wanted:
        yield key, found, wanted


def _short(value: Any) -> str:
    """A value for a sentence: of a fingerprint, the first digits."""
    text = "unknown" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
