"""Split of a trajectory into training and validation rows, chosen once and recorded in the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from knotflow.config import Config

BLOCKS = 10
"""One part in this many is held out for validation."""

Bools = NDArray[np.bool_]
Rows = Annotated[tuple[int, int], Field(strict=False)]
"""First row, and the row after the last."""


class Split(Config):
    """Rows of a trajectory that are held out for validation."""

    file: str
    frames: int
    kind: Literal["replica", "time"]
    validation: Annotated[tuple[Rows, ...], Field(strict=False)]
    """Ranges of rows."""

    @classmethod
    def of(cls, file: str, replica: NDArray[np.int32]) -> Split:
        """Hold out every tenth replica or, with fewer than ten, every tenth part of the time of each."""
        numbers = np.unique(replica)
        if len(numbers) >= BLOCKS:
            kind: Literal["replica", "time"] = "replica"
            mask = np.isin(replica, numbers[BLOCKS - 1 :: BLOCKS])
        else:
            kind, mask = "time", np.zeros(len(replica), dtype=bool)
            for number in numbers:
                rows = np.flatnonzero(replica == number)
                parts = np.array_split(rows, 2 * BLOCKS)
                mask[np.concatenate(parts[BLOCKS - 1 :: BLOCKS])] = True
        edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
        ranges = tuple((int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True))
        return cls(file=file, frames=len(replica), kind=kind, validation=ranges)

    def mask(self) -> Bools:
        """True for held-out rows, shape ``(frames,)``."""
        return _mask(self.validation, self.frames)


def held_out(split: Mapping[str, Any] | None, path: str | Path, n_frames: int) -> Bools | None:
    """Rows of a file that training did not see: True if held out, shape ``(n_frames,)``.

    Args:
        split: The ``split`` recorded in a model, as returned by `Split.plain`.
        path: The file.
        n_frames: Number of its frames.

    Returns:
        None if the model was not trained on a file of this name and length, or nothing was held out.

    Raises:
        ValueError: if the split is damaged.
    """
    if not split or split.get("file") != Path(path).name or split.get("frames") != n_frames:
        return None
    try:
        mask = _mask(split["validation"], n_frames)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"the split recorded in the model is damaged: expected ranges of {n_frames} rows as pairs "
            f"[first, after last], got {split.get('validation')!r}; evaluate on all frames."
        ) from None
    return mask if mask.any() else None


def _mask(ranges: Iterable[tuple[int, int]], n_frames: int) -> Bools:
    mask = np.zeros(n_frames, dtype=bool)
    for first, last in ranges:
        if not 0 <= first <= last <= n_frames:
            raise ValueError(f"expected rows from 0 to {n_frames}, got {first} to {last}.")
        mask[first:last] = True
    return mask
