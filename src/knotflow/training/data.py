"""Batches of training data, in an order that depends only on the seed and the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor

from knotflow.training.objectives import Batch

OWN_STREAM = 2**31
"""Added to a seed, which is smaller, so that a model's own samples get their own random numbers."""
PIECE: Final = 8192
"""Rows handled at a time where all of them are gone through, to bound memory."""
NUMBERS: Final = 10_000_000
"""Numbers in each part of thinned data, 40 MB: 166,666 frames of 60 coordinates."""


def step_seed(seed: int, step: int) -> int:
    """Seed of all random numbers of one step, so that they do not depend on earlier steps."""
    return (seed * 1_000_003 + step) % 2**63


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of the steps ``first .. last - 1`` of a training.

    Data are shuffled for every pass. The permutation of a pass is drawn from the seed and the number of the
    pass, so the batch of any step can be made without the batches before it. This is why an interrupted
    training resumes exactly. The incomplete batch at the end of a pass is dropped.

    If there are samples of the model itself, they replace some of the data in every batch.
    """

    data: Batch
    """All training data."""
    batch_size: int
    """Number of points in a batch, all processes together."""
    seed: int
    """Seed of the order."""
    first: int
    last: int
    """One more than the last step."""
    rank: int = 0
    """Number of this process; each takes its share of every batch."""
    world: int = 1
    """Number of processes."""
    own: Callable[[], Batch | None] = lambda: None
    """Returns the model's own samples, or None; called when the first batch is requested."""
    own_size: int = 0
    """Number of own samples in a batch, all processes together."""

    def __len__(self) -> int:
        return self.last - self.first

    def __iter__(self) -> Iterator[Batch]:
        pool = self.own() if self.own_size else None
        if pool is None:
            yield from self._ordered(self.data, self.batch_size, self.seed)
            return
        check_data("the model's own", pool, self.own_size)
        data = self._ordered(self.data, self.batch_size - self.own_size, self.seed)
        own = self._ordered(pool, self.own_size, self.seed + OWN_STREAM)
        for pair in zip(data, own, strict=True):
            yield joined(*pair)

    def _ordered(self, data: Batch, size: int, seed: int) -> Iterator[Batch]:
        """This process's share of ``size`` points for every step."""
        n = len(data.x)
        in_a_pass = n // size
        current, order = -1, torch.empty(0, dtype=torch.long)
        for step in range(self.first, self.last):
            number, place = divmod(step, in_a_pass)
            if number != current:
                generator = torch.Generator().manual_seed(step_seed(seed, number))
                current, order = number, torch.randperm(n, generator=generator)
            indices = order[place * size : (place + 1) * size]
            yield select(data, indices[self.rank :: self.world])


def select(batch: Batch, rows: Tensor | slice) -> Batch:
    """Some rows of a batch, by their numbers or by a mask; of a slice, views."""
    x, *rest = (
        None if part is None else part[rows if isinstance(rows, slice) else rows.to(part.device)]
        for part in batch
    )
    return Batch(cast(Tensor, x), *rest)


def joined(*batches: Batch) -> Batch:
    """The rows of several batches; a part that one of them lacks is dropped."""
    x, *rest = (
        None if any(part is None for part in parts) else torch.cat([part.to(parts[0]) for part in parts])
        for parts in zip(*batches, strict=True)
    )
    return Batch(cast(Tensor, x), *rest)


def pieces(data: Batch) -> Iterator[Batch]:
    """All rows of a batch in order, `PIECE` at a time, as views."""
    for start in range(0, max(1, len(data.x)), PIECE):
        yield select(data, slice(start, start + PIECE))


def thinned(data: Batch, numbers: int = NUMBERS, *, among: Tensor | None = None) -> Batch:
    """Some rows that stand for all of them, so many that memory holds them; few data stay as they are.

    One row is drawn out of each of many equal stretches, always the same one. So no stretch of a simulation
    is left out, and no pattern in the order of the rows is hit.

    Args:
        data: all rows.
        numbers: how many numbers each part may have.
        among: which rows to choose from, by their numbers; None: all.
    """
    n, most = len(data.x if among is None else among), max(1, numbers // data.x.shape[1])
    if n <= most:
        return data if among is None else select(data, among)
    place = torch.rand(most, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chosen = ((torch.arange(most) + place) * (n / most)).long().clamp(max=n - 1)
    return select(data, chosen if among is None else among[chosen.to(among.device)])


def check_data(name: str, data: Batch, batch_size: int) -> None:
    """Refuse data that cannot be used for training, before any work is done."""
    if data.x.ndim != 2:
        raise ValueError(f"{name} data must have shape (points, coordinates), got {tuple(data.x.shape)}.")
    n = len(data.x)
    if n < batch_size:
        raise ValueError(f"{name} data must hold at least one batch of {batch_size} points, got {n}.")
    for part, tensor in zip(Batch._fields, data, strict=True):
        if tensor is None:
            continue
        if len(tensor) != n:
            raise ValueError(f"{name} data have {n} points, but {len(tensor)} rows of {part}.")
        finite = torch.cat([some.isfinite().reshape(len(some), -1).all(-1) for some in tensor.split(PIECE)])
        bad = (~finite).nonzero().flatten()
        if len(bad):
            raise ValueError(
                f"{part} of the {name} data is not finite in {len(bad)} rows, first in row {int(bad[0])}; "
                "remove those rows."
            )
