"""Training and validation data in the form that Lightning expects."""

from __future__ import annotations

from collections.abc import Callable

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from knotflow import ranks
from knotflow.training.config import TrainingConfig
from knotflow.training.data import Batches, select
from knotflow.training.objectives import Batch

VALIDATION_PIECE = 1000
"""Smallest number of validation points that are evaluated at a time; larger batches are used as they are."""


class FlowData(pl.LightningDataModule):
    """Training and validation data, served in blocks of steps.

    To Lightning every block is an epoch. A checkpoint is written after each.

    Args:
        train: training data.
        validation: data for validation, or None.
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
        """Number of blocks still to do when this process starts."""
        return -(-self.config.steps // self.config.checkpoint_every) - self.done

    @property
    def block(self) -> int:
        """Number of the current block, counted over the whole training."""
        return self.done + (self.trainer.current_epoch if self.trainer else 0)

    @property
    def first_step(self) -> int:
        """Number of the first step of the current block."""
        return self.block * self.config.checkpoint_every

    def train_dataloader(self) -> Batches:
        config, first = self.config, self.first_step
        return Batches(
            self.train,
            config.batch_size,
            config.seed,
            first,
            min(first + config.checkpoint_every, config.steps),
            rank=ranks.rank(),
            world=ranks.size(),
            own=lambda: self.own(first),
            own_size=int(config.own_share * config.batch_size),
        )

    def val_dataloader(self) -> DataLoader[Batch] | list[Batch]:
        if self.validation is None:
            return []
        rows = torch.arange(len(self.validation.x)).split(max(self.config.batch_size, VALIDATION_PIECE))
        mine = [select(self.validation, piece[ranks.mine()]) for piece in rows]
        # Lightning would take a plain list for several data sets.
        return DataLoader(mine, batch_size=None)  # type: ignore[arg-type]
