"""Progress of long work: the one kind of callback that all of knotflow uses."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A callback for long work: called now and then, returns at once and changes nothing."""

    def __call__(self, doing: str, done: float, total: float, note: str = "") -> None:
        """Report progress.

        Stages usually count from 0 to their own total. Stages that share one total, each counting on from
        where the last one stopped, are a single piece of work under changing names.

        Args:
            doing: The stage, in a few words: ``"sampling"``.
            done: The work done, in any unit. Resumed work starts above 0.
            total: The work to do, in the same unit; 0 if unknown.
            note: Anything else worth a glance: a loss, a temperature, an acceptance rate.
        """


def silent(doing: str, done: float, total: float, note: str = "") -> None:
    """Ignore all reports."""


def titled(title: str, progress: Progress) -> Progress:
    """Progress of one part of the work, whose stages are shown as ``title: doing``."""

    def report(doing: str, done: float, total: float, note: str = "") -> None:
        progress(f"{title}: {doing}", done, total, note)

    return report
