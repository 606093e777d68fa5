"""How work that takes long says how far it is: one kind of call for all of knotflow."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then by work that takes long. It returns at once and changes nothing."""

    def __call__(self, doing: str, done: float, total: float, note: str = "") -> None:
        """Say how far the work is.

        Stages usually count from 0 to their own total. Stages that share one total and count on where the
        one before stopped are a single piece of work under changing names.

        Args:
            doing: The stage, in a few words: ``"sampling"``.
            done: How much is done, in any unit. Resumed work begins above 0.
            total: How much there is to do, in the same unit; 0 if that is not known.
            note: What else is worth a glance: a loss, a temperature, a rate of acceptance.
        """


def silent(doing: str, done: float, total: float, note: str = "") -> None:
    """Say nothing."""


def titled(title: str, progress: Progress) -> Progress:
    """Progress of one piece of work among several: its stages are called ``title: doing``."""

    def report(doing: str, done: float, total: float, note: str = "") -> None:
        progress(f"{title}: {doing}", done, total, note)

    return report
