"""The file ``log.csv`` of a training as rows; without dependencies, so that every layer can read it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Final

Row = tuple[int, str, float]
"""Step, name, value."""
COLUMNS: Final = ("step", "name", "value")


def read_log(path: Path) -> list[Row]:
    """Rows (step, name, value) of a log, without an unfinished last line; empty if there is no file.

    Raises:
        ValueError: if the file holds something else.
    """
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(line for line in file if line.endswith("\n")))[1:]
        return [(int(step), name, float(value)) for step, name, value in rows]
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{path} must hold rows of step, name and value, and is damaged ({error}); remove it."
        ) from None


def as_text(rows: Iterable[Row], *, header: bool = False) -> str:
    """Rows as lines of a log, with all digits of each number."""
    text = io.StringIO()
    writer = csv.writer(text)
    if header:
        writer.writerow(COLUMNS)
    writer.writerows((step, name, repr(value)) for step, name, value in rows)
    return text.getvalue()
