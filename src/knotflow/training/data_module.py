"""Training and validation data as Lightning takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import lightning.pytorch as pl
import torch

from knotflow.training.data import Batches, check_data, select
from knotflow.training.objectives import Batch

VALIDATION_PIECE = 1000
"""Validation data are handled so many points at a time, if batches are not larger."""


class FlowData(pl.LightningDataModule):
    """Training and validation data, served in blocks of steps.

    To Lightning every block is an epoch, and a checkpoint is written after each.

    Args:
        train: training data.
        validation: data to judge by; may be None.
        batch_size: points in a batch.
        steps: number of steps of the whole training.
        block: number of steps between checkpoints.
        seed: seed of the order of the data.
        done: number of blocks that an earlier process has finished.
        own: maps the first step of a block to the model's own samples to train on in it, or to None.
        own_size: how many of them are in a batch.
    """

    def __init__(
        self,
        train: Batch,
        validation: Batch | None,
        *,
        batch_size: int,
        steps: int,
        block: int,
        seed: int,
        done: int = 0,
        own: Callable[[int], Batch | None] = lambda first: None,
        own_size: int = 0,
    ) -> None:
        super().__init__()
        self.own, self.own_size = own, own_size
        self.train, self.validation, self.done = train, validation, done
        self.batch_size, self.steps, self.block, self.seed = batch_size, steps, block, seed
        check_data("training", train, batch_size)
        if validation is not None:
            check_data("validation", validation, 1)

    @property
    def blocks_left(self) -> int:
        """Number of blocks still to do."""
        return -(-self.steps // self.block) - self.done

    @property
    def first_step(self) -> int:
        """Number of the first step of the current block."""
        return (self.done + (self.trainer.current_epoch if self.trainer else 0)) * self.block

    def train_dataloader(self) -> Batches:
        trainer = self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        first = self.first_step
        last = min(first + self.block, self.steps)
        return Batches(
            self.train,
            self.batch_size,
            self.seed,
            first,
            last,
            rank=rank,
            world=world,
            own=lambda: self.own(first),
            own_size=self.own_size,
        )

    def val_dataloader(self) -> _Pieces | list[Batch]:
        size = max(self.batch_size, VALIDATION_PIECE)
        return [] if self.validation is None else _Pieces(self.validation, size)


class _Pieces:
    """Data in order, a batch at a time; Lightning would take a plain list for several data sets."""

    def __init__(self, data: Batch, size: int) -> None:
        self.data, self.size = data, size

    def __len__(self) -> int:
        return -(-len(self.data.x) // self.size)

    def __iter__(self) -> Iterator[Batch]:
        n = len(self.data.x)
        for first in range(0, n, self.size):
            yield select(self.data, torch.arange(first, min(first + self.size, n)))
