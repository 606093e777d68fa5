"""Work in steps: a step whose result is there, made of the same inputs, is not done again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knotflow.inputs import same
from knotflow.progress import Progress, silent

Say = Callable[[str], None]
"""Called with a line for the user."""


@dataclass(frozen=True)
class Step:
    """Work that leaves a result, complete or absent, which notes its inputs (`knotflow.inputs`)."""

    doing: str
    """In a few words: "training"."""
    inputs: Callable[[], Mapping[str, Any]]
    """Everything that the result depends on; asked only if there is a result."""
    found: Callable[[], Mapping[str, Any] | None]
    """The inputs that the result on disk notes; None if there is no result. May refuse results that took long
    and were made with other inputs."""
    run: Callable[[Progress], None]
    """Makes the result, or goes on with it."""
    seconds: float = 1.0
    """What it takes, roughly: its share of the whole."""
    stages: Sequence[float] = (1.0,)
    """Relative lengths of the stages that it reports one after the other."""
    quiet: float = 0.0
    """Part of its time, about, that passes before the first report."""

    @property
    def is_done(self) -> bool:
        """Whether the result is there."""
        found = self.found()
        return found is not None and same(found, self.inputs())


def run_steps(steps: Sequence[Step], progress: Progress = silent) -> int:
    """Do the steps that are not done, in order; how many these were.

    Args:
        steps: What to do; a step may use the results of those before it.
        progress: Called with the expected seconds of work done, of all steps together.
    """
    made, before, total = 0, 0.0, sum(step.seconds for step in steps)
    for number, step in enumerate(steps, 1):
        title = f"step {number} of {len(steps)}: {step.doing}"
        if not step.is_done:
            progress(title, before, total)
            step.run(_part(progress, title, step, before, total))
            progress(title, before + step.seconds, total)
            made += 1
        before += step.seconds
    return made


def _part(progress: Progress, title: str, step: Step, before: float, seconds: float) -> Progress:
    """The progress of a step as a part of the whole; a stage begins where the share done falls back."""
    stage, last = 0, 0.0

    def report(doing: str, done: float, total: float, note: str = "") -> None:
        nonlocal stage, last
        part = done / total if total else last
        stage, last = stage + (part < last), part
        length = step.stages[stage] if stage < len(step.stages) else 0.0
        share = (sum(step.stages[:stage]) + part * length) / sum(step.stages)
        share = step.quiet + (1 - step.quiet) * share
        progress(title, before + step.seconds * share, seconds, note)

    return report
