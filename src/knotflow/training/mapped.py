"""Rows of data in files that are mapped to memory, so that there may be more of them than memory holds."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from knotflow.files import writing
from knotflow.resources import nearest_folder
from knotflow.training.data import pieces
from knotflow.training.objectives import Batch


class RowsOnDisk:
    """A batch that grows by rows, in files of its own.

    The tensors of `mapped` are as any others, but the system reads from the disk what is used of them, and
    drops it when memory is short. The files have no names: they are gone when nobody uses their tensors any
    more, or when the process ends, however that ends.

    Args:
        folder: a folder on the disk to use; if there is none yet, the nearest one above it is taken.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._columns: list[_Column | None] = []

    def append(self, rows: Batch) -> None:
        """Write more rows; all batches have the same parts.

        Raises:
            OSError: if the disk is full.
        """
        with writing(self.folder / "frames"):
            if not self._columns:
                folder = nearest_folder(self.folder)
                self._columns = [None if part is None else _Column(part, folder) for part in rows]
            for column, part in zip(self._columns, rows, strict=True):
                if column is not None and part is not None:
                    column.append(part)

    def mapped(self) -> Batch:
        """All rows; nothing may be appended any more."""
        with writing(self.folder / "frames"):
            x, *rest = (None if column is None else column.mapped() for column in self._columns)
        return Batch(cast(Tensor, x), *rest)


class _Column:
    """One part of the batch: numbers of the dtype and the shape of a first part, in a file without a name."""

    def __init__(self, first: Tensor, folder: Path) -> None:
        self.dtype, self.shape = first.dtype, first.shape[1:]
        self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  `mapped` closes it

    def append(self, part: Tensor) -> None:
        self.file.write(part.detach().cpu().contiguous().numpy().data)

    def mapped(self) -> Tensor:
        with self.file as file:
            file.flush()
            if not file.tell():
                return torch.empty((0, *self.shape), dtype=self.dtype)
            numbers = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=self.dtype)
        return numbers.reshape(-1, *self.shape)


def rewritten(data: Batch, change: Callable[[Batch], Batch], folder: str | Path) -> Batch:
    """All rows changed, some at a time, in new files; for the folder see `RowsOnDisk`."""
    rows = RowsOnDisk(folder)
    for part in pieces(data):
        rows.append(change(part))
    return rows.mapped()
