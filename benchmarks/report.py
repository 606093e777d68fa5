"""Tables for the terminal, Markdown and JSON, each with the machine on which they were made."""

from __future__ import annotations

import json
import os
import platform
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable

LIBRARIES = ("knotflow", "zuko", "nflows", "normflows", "openmm")


@dataclass(frozen=True)
class Table:
    """Cells are texts, made by the benchmark; all columns but the first ``n_labels`` are figures."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    n_labels: int = 1

    def rich(self) -> RichTable:
        table = RichTable(title=self.title, title_justify="left", caption_justify="left", box=box.SIMPLE)
        table.caption = "\n".join(self.notes) or None
        for i, column in enumerate(self.columns):
            label = i < self.n_labels
            table.add_column(column, justify="left" if label else "right", no_wrap=label)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        rule = [":--" if i < self.n_labels else "--:" for i in range(len(self.columns))]
        lines = [_markdown_row(row) for row in [self.columns, rule, *self.rows]]
        return "\n".join([f"## {self.title}", "", *lines, "", *(f"* {note}" for note in self.notes)])


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def environment() -> dict[str, Any]:
    """What the figures depend on besides the code; to be taken before a run, for the load of the machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "load before": f"{os.getloadavg()[0]:.2f}",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _version(name) for name in LIBRARIES},
    }


def cpu_model() -> str:
    """The model string of the processor, as Linux gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{models[0]}, {len(models)} cores" if models else platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def publish(
    name: str,
    tables: list[Table],
    records: list[dict[str, Any]],
    facts: dict[str, Any],
    out: Path,
    console: Console,
) -> None:
    """Print the tables; write ``name.md`` with the same tables and ``name.json`` with all figures."""
    for table in tables:
        console.print(table.rich())
    out.mkdir(parents=True, exist_ok=True)
    head = [f"# {name}", "", *(f"* {key}: {value}" for key, value in facts.items()), ""]
    text = "\n".join(head) + "\n" + "\n\n".join(table.markdown() for table in tables) + "\n"
    (out / f"{name}.md").write_text(text)
    (out / f"{name}.json").write_text(json.dumps({"environment": facts, "records": records}, indent=1) + "\n")
    console.print(f"written: {out / name}.md, {out / name}.json")


def progress(console: Console) -> Progress:
    """A progress bar that says how much time is left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
    )


def first_line(error: BaseException) -> str:
    """Type and first line of the message of an error; without a message, the line of code that raised it.

    A line that ends in a colon announces the next, which is added.
    """
    name, lines = type(error).__name__, str(error).strip().splitlines()
    if lines:
        announces = lines[0].rstrip().endswith(":")
        return f"{name}: {' '.join(line.strip() for line in lines[: 2 if announces else 1])}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} at {Path(frames[-1].filename).name}: {frames[-1].line}" if frames else name
