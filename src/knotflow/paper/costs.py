"""Time that work takes, added up over interruptions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from knotflow.files import read_json, write_json
from knotflow.progress import Progress, silent

SAVE_SECONDS: Final = 10.0
"""Seconds between saves of the costs."""


@contextmanager
def spent(file: Path, name: str, progress: Progress = silent) -> Iterator[Progress]:
    """Add the time of the ``with`` block to a file: ``{name: {"wall": seconds, "cpu": seconds}}``.

    Seconds of all cores are added up, those of processes that were started and have ended included. The file
    is written every `SAVE_SECONDS` as well, so little is lost when a run is killed.

    Yields:
        The progress to use inside.
    """
    before = read_json(file) if file.exists() else {}
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    saved = wall

    def save() -> None:
        known = before.get(name, {"wall": 0.0, "cpu": 0.0})
        now = {"wall": time.perf_counter() - wall, "cpu": sum(os.times()[:4]) - cpu}
        write_json(file, {**before, name: {key: known[key] + now[key] for key in known}})

    def counted(doing: str, done: float, total: float, note: str = "") -> None:
        nonlocal saved
        if time.perf_counter() - saved > SAVE_SECONDS:
            save()
            saved = time.perf_counter()
        progress(doing, done, total, note)

    try:
        yield counted
    finally:
        save()
