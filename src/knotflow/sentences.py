"""Lists of names in sentences."""

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
