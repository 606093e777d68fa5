"""Training and validation data as Lightning takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import lightning.pytorch as pl
import torch

from knotflow.training.config import TrainingConfig
from knotflow.training.data import Batches, select
from knotflow.training.objectives import Batch

VALIDATION_PIECE = 1000
"""Validation data come in pieces of this many points, or in batches if these are larger."""


class FlowData(pl.LightningDataModule):
    """Training and validation data, served in blocks of steps.

    To Lightning every block is an epoch, and a checkpoint is written after each.

    Args:
        train: training data.
        validation: data to judge by; may be None.
        config: number of steps, size and order of batches, and steps from checkpoint to checkpoint.
        done: number of blocks that an earlier process has finished.
        own: maps the first step of a block to the model's own samples to train on in it, or to None.
    """

    def __init__(
        self,
        train: Batch,
        validation: Batch | None,
        config: TrainingConfig,
        *,
        done: int = 0,
        own: Callable[[int], Batch | None] = lambda first: None,
    ) -> None:
        super().__init__()
        self.train, self.validation, self.config, self.done, self.own = train, validation, config, done, own

    @property
    def blocks_left(self) -> int:
        """Number of blocks still to do."""
        return -(-self.config.steps // self.config.checkpoint_every) - self.done

    @property
    def first_step(self) -> int:
        """Number of the first step of the current block."""
        block = self.done + (self.trainer.current_epoch if self.trainer else 0)
        return block * self.config.checkpoint_every

    def train_dataloader(self) -> Batches:
        config, first = self.config, self.first_step
        return Batches(
            self.train,
            config.batch_size,
            config.seed,
            first,
            min(first + config.checkpoint_every, config.steps),
            rank=self.trainer.global_rank if self.trainer else 0,
            world=self.trainer.world_size if self.trainer else 1,
            own=lambda: self.own(first),
            own_size=int(config.own_share * config.batch_size),
        )

    def val_dataloader(self) -> _Pieces | list[Batch]:
        size = max(self.config.batch_size, VALIDATION_PIECE)
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
