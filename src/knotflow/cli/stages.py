"""Progress of a command: bars on a terminal, lines elsewhere."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


class Bars:
    """A bar for each thing that is done, while the block runs; where there is no terminal, lines.

    Args:
        console: Where.
        columns: What stands behind a bar; text may name ``{task.fields[state]}``.
        options: Further options of `rich.progress.Progress`.
    """

    def __init__(self, console: Console, *columns: str | ProgressColumn, **options: Any) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            console=console,
            disable=not console.is_terminal,
            **options,
        )

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bar.stop()

    def line(self, text: str) -> None:
        """Print a line where there is no terminal."""
        if not self.console.is_terminal:
            self.console.print(text, highlight=False)

    def add(self, doing: str) -> Bar:
        """One more bar, of work whose length is not known yet."""
        return Bar(self, self.bar.add_task(doing, total=None, state=""))


class Bar:
    """One of the bars; where there is no terminal, a line for every tenth of the work."""

    def __init__(self, bars: Bars, task: TaskID) -> None:
        self.bars, self.task = bars, task
        self._tenths = -1

    def show(self, doing: str, done: int, total: int, state: str, line: str | None = None) -> None:
        """So much is done.

        Args:
            doing: What is done now.
            done: How much of it.
            total: How much there is to do.
            state: How it goes, behind the bar.
            line: The same in a line, if other words serve better there.
        """
        self.bars.bar.update(self.task, description=doing, completed=done, total=total, state=state)
        tenths = 10 * done // total
        if tenths > self._tenths:
            self._tenths = tenths
            self.bars.line(f"{doing}: {10 * tenths} % done, {state if line is None else line}")


class Stages(Bars):
    """A bar for each stage, and the time left of it; elsewhere, a line when a stage begins."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, MofNCompleteColumn(), "time left", TimeRemainingColumn(), transient=True)
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, doing: str, done: float, total: float, note: str = "") -> None:
        """Show how far a stage is (`knotflow.progress.Progress`)."""
        if doing not in self.tasks:
            self.tasks[doing] = self.bar.add_task(doing, total=total)
            self.line(f"{doing} ({total:,})")
        self.bar.update(self.tasks[doing], completed=done)
