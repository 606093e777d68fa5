"""Lightning callback that reports the progress of a training."""

from __future__ import annotations

import time
from typing import Any, Final

import lightning.pytorch as pl

from knotflow.progress import Progress
from knotflow.training.data_module import FlowData
from knotflow.training.module import FlowModule

REPORT_EVERY: Final = 10.0
"""Seconds after which a step is reported even between the reports of every ``log_every`` steps."""


class ReportProgress(pl.Callback):
    """Reports when training begins, then every ``log_every`` steps or ten seconds, and at the end.

    The note has the terms of the loss in the last step, and the validation losses and monitored numbers of
    the last checkpoint.

    Args:
        progress: Called from the thread that trains; an error it raises ends the training.
        module: The training.
        data: Its data.
    """

    def __init__(self, progress: Progress, module: FlowModule, data: FlowData) -> None:
        self.progress, self.module, self.data = progress, module, data
        self._last = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            if self.module.loss.compiled:
                self.progress("compiling the loss", 0, 0, "which may take minutes")
            self._report(self.data.first_step, "")

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0:
            # The first step of a block comes after points were drawn: its time says nothing of the others.
            self._last = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        done, config = self.module.step + 1, self.module.config
        slow = time.monotonic() - self._last >= REPORT_EVERY
        if trainer.is_global_zero and (slow or done % config.log_every == 0 or done == config.steps):
            self._report(done, ", ".join(f"{name} {x:.5g}" for name, x in self.module.latest.items()))

    def _report(self, done: int, note: str) -> None:
        self._last = time.monotonic()
        self.progress("training", done, self.module.config.steps, note)
