"""What a training tells while it runs: a CSV file and a progress line."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from knotflow.files import write_atomically
from knotflow.log_file import as_text, read_log
from knotflow.training.module import flow_module


class CsvLog(Logger):
    """Appends a row (step, name, value) for every number logged.

    Rows beyond the step at which a run resumes are dropped, because that part is done again.
    """

    def __init__(self, path: Path, resume_at: int = 0) -> None:
        super().__init__()
        self.path = path
        kept = [row for row in read_log(path) if row[0] <= resume_at] if resume_at else []
        write_atomically(path, as_text(kept, header=True).encode())

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the configuration is in config.json."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(as_text((step or 0, name, value) for name, value in metrics.items()))


class ProgressLine(pl.Callback):
    """Steps done, losses and time left of the whole training; plain lines where there is no terminal.

    Args:
        title: what is trained.
        console: where to write.
    """

    def __init__(self, title: str = "training", console: Console | None = None) -> None:
        self.title, self.console = title, console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[losses]}"),
            console=self.console,
            refresh_per_second=2,
            disable=not self.console.is_terminal,
        )
        self.task: TaskID | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        module = flow_module(pl_module)
        start = trainer.datamodule.first_step  # type: ignore[attr-defined]
        first = "compiling the loss" if module.loss.compiled else ""
        if first and not self.console.is_terminal:
            self.console.print(f"{self.title}: {first}, which may take minutes", highlight=False)
        self.task = self.progress.add_task(
            self.title, total=module.config.steps, completed=start, losses=first
        )
        self.progress.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module = flow_module(pl_module)
        done, steps = module.step + 1, module.config.steps
        if done % module.config.log_every == 0 or done == steps:
            losses = "  ".join(f"{name} {value:.5g}" for name, value in module.latest.items())
            if self.task is not None:
                self.progress.update(self.task, completed=done, losses=losses)
            if not self.console.is_terminal and done % max(1, steps // 10) < module.config.log_every:
                self.console.print(f"{self.title}: step {done} of {steps}  {losses}", highlight=False)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.progress.stop()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self.progress.stop()
