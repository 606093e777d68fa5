"""Work in steps: a step is skipped if its result exists and was made of the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knotflow.inputs import made_of
from knotflow.progress import Progress, silent

Say = Callable[[str], None]
"""Called with a line for the user."""


@dataclass(frozen=True)
class Step:
    """Work whose result is complete or absent, and notes its inputs (`knotflow.inputs`)."""

    doing: str
    """In a few words: "training"."""
    inputs: Callable[[], Mapping[str, Any]]
    """Everything that the result depends on; called only if there is a result."""
    found: Callable[[], Mapping[str, Any] | None]
    """What the result on disk notes, its inputs included; None if there is no result. May refuse results that
    took long and were made of other inputs."""
    run: Callable[[Progress], object]
    """Makes the result, or continues it."""
    seconds: float = 1.0
    """Rough duration: its share of the whole."""
    stages: Sequence[float] = (1.0,)
    """Relative lengths of the stages that it reports one after the other."""
    quiet: float = 0.0
    """Rough fraction of its time that passes before the first report."""

    @property
    def is_done(self) -> bool:
        """Whether there is a result of these inputs."""
        found = self.found()
        return found is not None and made_of(found, self.inputs())


def run_steps(steps: Sequence[Step], progress: Progress = silent) -> int:
    """Run the steps that are not done, in order, and return their number.

    Args:
        steps: A step may use the results of those before it.
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
