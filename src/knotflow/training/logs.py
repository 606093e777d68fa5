"""Lightning logger that writes the log of a training to a CSV file."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from knotflow.files import write_atomically
from knotflow.log_file import as_text, read_log
from knotflow.ranks import leads


class CsvLog(Logger):
    """Appends a row (step, name, value) for every number logged.

    Rows beyond the step at which a run resumes are dropped, because these steps are repeated.
    """

    def __init__(self, path: Path, resume_at: int = 0) -> None:
        super().__init__()
        self.path = path
        kept = [row for row in read_log(path) if row[0] <= resume_at] if resume_at else []
        if leads():
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
