"""How far a training is, told to a function as it goes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl

from knotflow.training.module import flow_module


@dataclass(frozen=True)
class Progress:
    """How far a training is."""

    step: int
    """Steps done, those before it was resumed included."""
    steps: int
    """Steps in all."""
    seconds_left: float
    """At the speed since the first step of this process, which may take longer; NaN until then."""
    values: Mapping[str, float]
    """Terms of the loss in the last step; losses on validation data and what the monitor found, at the last
    checkpoint. Nothing before the first step."""


Told = Callable[[Progress], None]
"""What is told how far it is."""


class Telling(pl.Callback):
    """Tells when training begins, then every ``log_every`` steps, and at the end.

    Args:
        told: Called from the thread that trains, so it should be quick; what it raises ends the training.
    """

    def __init__(self, told: Told) -> None:
        self.told = told
        self._first: tuple[int, float] | None = None
        """The first step of this process, and when it was done."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            start = trainer.datamodule.first_step  # type: ignore[attr-defined]
            self.told(Progress(start, flow_module(pl_module).config.steps, math.nan, {}))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module = flow_module(pl_module)
        done, steps = module.step + 1, module.config.steps
        self._first = self._first or (done, time.perf_counter())
        if trainer.is_global_zero and (done % module.config.log_every == 0 or done == steps):
            self.told(Progress(done, steps, _seconds_left(done, steps, *self._first), module.latest))


def _seconds_left(done: int, steps: int, first: int, since: float) -> float:
    if done == steps:
        return 0.0
    if done == first:
        return math.nan
    return (steps - done) * (time.perf_counter() - since) / (done - first)
