"""How long work says how far it is: one kind of call for simulations, trainings, samples and evaluations."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then by work that takes long; it returns at once and changes nothing."""

    def __call__(self, doing: str, done: float, total: float, note: str = "") -> None:
        """Say how far the work is.

        Args:
            doing: The stage, in a few words: ``"sampling"``. Another one begins when it changes.
            done: How much of the stage is done, in any unit.
            total: How much there is to do, in the same unit.
            note: What else is worth a glance: a loss, a temperature, a rate of acceptance.
        """


def silent(doing: str, done: float, total: float, note: str = "") -> None:
    """Say nothing."""
