"""What work would take, and whether there is as much: memory, disk and time, estimated before work begins.

Estimates are lower bounds, so nothing that can succeed is refused. They are for work that cannot: a typing
error, or a number of samples that no machine can hold.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Final

YEAR: Final = 365.25 * 86400.0
"""In seconds."""
LONGEST: Final = YEAR
"""Work that takes longer is not begun."""


def check_memory(what: str, needed: float) -> None:
    """Refuse work that needs more memory than this machine has.

    Args:
        what: The work, as the user asked for it: "1,000 samples".
        needed: Bytes that it needs at least.

    Raises:
        ValueError: says what it would take, and what there is.
    """
    there = memory()
    if there is not None and not needed <= there:
        raise ValueError(
            f"{what} would take at least {size(needed)} of memory, this machine has {size(there)}; ask for "
            "less."
        )


def check_disk(path: Path, what: str, needed: float) -> None:
    """Refuse a file that is larger than the space left where it goes; for the arguments see `check_memory`.

    Raises:
        OSError: says what it would take, and what there is.
    """
    free = shutil.disk_usage(nearest_folder(path.parent)).free
    if not needed <= free:
        raise OSError(
            f"{what} would take at least {size(needed)} in {path}, where {size(free)} are free; ask for "
            "less, or choose another place."
        )


def nearest_folder(path: Path) -> Path:
    """A folder, or the nearest one above it that exists: on the disk where it would be made."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def check_time(what: str, seconds: float) -> None:
    """Refuse work that takes longer than anyone waits; for the arguments see `check_memory`.

    Raises:
        ValueError: says how long it would take.
    """
    if not seconds <= LONGEST:
        years = f"{seconds / YEAR:,.0f}" if seconds < 1e6 * YEAR else f"{seconds / YEAR:.0e}"
        raise ValueError(f"{what} would take at least {years} years; ask for less.")


def memory() -> int | None:
    """Bytes of memory of this machine; None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None


def size(n_bytes: float) -> str:
    """A number of bytes in a suitable unit: 300 bytes, 3.2 MB, 40 GB."""
    if not n_bytes < 1e27:
        return f"{n_bytes:.0e} bytes" if math.isfinite(n_bytes) else "infinitely many bytes"
    power = min(8, int(math.log10(max(n_bytes, 1)) // 3))
    value = n_bytes / 1000**power
    return f"{value:,.0f} {_UNITS[power]}" if value >= 10 or not power else f"{value:.1f} {_UNITS[power]}"


_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
