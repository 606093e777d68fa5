"""The progress of a training, reported from within Lightning."""

from __future__ import annotations

import time
from typing import Any, Final

import lightning.pytorch as pl

from knotflow.progress import Progress
from knotflow.training.module import flow_module

REPORT_EVERY: Final = 10.0
"""Seconds after which slow steps are reported one by one."""


class ReportProgress(pl.Callback):
    """Reports when training begins, then every ``log_every`` steps or ten seconds, and at the end.

    The note has the terms of the loss in the last step, and the losses on validation data and what the
    monitor found at the last checkpoint.

    Args:
        progress: Called from the thread that trains; what it raises ends the training.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._last = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        module = flow_module(pl_module)
        if trainer.is_global_zero:
            if module.loss.compiled:
                self.progress("compiling the loss", 0, 0, "which may take minutes")
            start = trainer.datamodule.first_step  # type: ignore[attr-defined]
            self._report(start, module.config.steps, "")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module = flow_module(pl_module)
        done, steps = module.step + 1, module.config.steps
        slow = time.monotonic() - self._last >= REPORT_EVERY
        if trainer.is_global_zero and (slow or done % module.config.log_every == 0 or done == steps):
            self._report(done, steps, ", ".join(f"{name} {x:.5g}" for name, x in module.latest.items()))

    def _report(self, done: int, steps: int, note: str) -> None:
        self._last = time.monotonic()
        self.progress("training", done, steps, note)
