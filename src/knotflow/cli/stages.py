"""Progress of work in stages: a bar for each on a terminal, a line for each elsewhere."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Stages:
    """Draws progress, a bar for each thing that is done; a line where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("time left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, doing: str, done: int, total: int) -> None:
        if doing not in self.tasks:
            self.tasks[doing] = self.bar.add_task(doing, total=total)
            if not self.console.is_terminal:
                self.console.print(f"{doing} ({total:,})", highlight=False)
        self.bar.update(self.tasks[doing], completed=done)
