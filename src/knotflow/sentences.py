"""Parts of sentences: lists of names, errors of other programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NAMED: Final = 4
"""A sentence names at most this many things."""


def listed(names: Iterable[object]) -> str:
    """Some names in a row: "a, b, c, d and 7 more"."""
    found = [str(name) for name in names]
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def one_line(error: object) -> str:
    """The text of an error for the middle of a sentence: one line without a full stop; else its type."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
