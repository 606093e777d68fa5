"""The inputs of a result, which decide whether it can be reused or continued, or must be computed again.

A result stores its *inputs*: a dictionary of JSON values with everything that its numbers depend on (data,
model, seed, samples, rows, dtype, configuration). Before it is used, the dictionaries are compared:

- `same`: if nothing differs, a result is not computed again;
- `refuse_others`: a result that took long is not replaced or continued with other inputs;
- `refuse_strangers`: files of unknown inputs are neither used nor replaced.

An input that is None counts as missing. The version of knotflow is an input of results that are quickly
computed again, such as evaluations and figures. Simulations, chains and trainings continue with any version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from knotflow.json_values import plain
from knotflow.sentences import listed

NAMED: Final = 4
"""A refusal names at most this many differences."""


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """SHA-256 of inputs, in which the order of keys does not matter."""
    text = json.dumps(plain(inputs), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_fingerprint(path: str | Path) -> str:
    """SHA-256 of a file's content."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same(found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether a result with the inputs ``found`` is the one that is wanted; None: there is no result."""
    return found is not None and not any(_differences(plain(found), plain(wanted)))


def among(noted: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a result's notes that has the keys of the wanted inputs."""
    return {key: noted.get(key) for key in wanted}


def refuse_others(path: Path, what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to continue or replace a result that has other inputs.

    Args:
        path: The file or folder of the result.
        what: The kind of result: "chains".
        found: Its inputs.
        wanted: The inputs that the user asks for.

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


def refuse_strangers(note: Path, what: str, files: Iterable[Path]) -> None:
    """Refuse a folder with files that a run would take for its own, or replace, but without its note.

    Args:
        note: The file in which every run of this kind notes its inputs before it writes anything else.
        what: The kind of run: "a training".
        files: The files that such a run writes.

    Raises:
        FileExistsError: names those that are there.
    """
    there = [] if note.exists() else [file.name for file in files if file.exists()]
    if there:
        raise FileExistsError(
            f"{note.parent} holds {listed(there)}, but no {note.name}, so this is not the folder of {what}; "
            "choose another one with --out, or move the files away."
        )


def made_of(noted: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether a result was made of these inputs, by what it notes; it may note more. None: no result."""
    return noted is not None and same(among(noted, wanted), wanted)


def _differences(found: Any, wanted: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Keys and both values where two values differ, inside dictionaries and lists of equal length."""
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        found, wanted = dict(enumerate(found)), dict(enumerate(wanted))
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for inner in dict.fromkeys((*wanted, *found)):
            name = f"{key}.{inner}" if key else str(inner)
            yield from _differences(found.get(inner), wanted.get(inner), name)
    elif found != wanted:
        yield key, found, wanted


def _short(value: Any) -> str:
    """A value for a sentence: only the first digits of a fingerprint."""
    text = "unknown" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
