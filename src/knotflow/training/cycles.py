"""How long the cycles of a refinement are: each twice as long as the one before, or what the time allows."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from knotflow.files import read_json

CYCLES: Final = 3
"""Largest number of cycles for up to `FEW` coordinates; each doubling of these adds one."""
FEW: Final = 60


@dataclass(frozen=True)
class Deadline:
    """When a refinement should end."""

    until: float
    """On the clock of `time.time`."""
    step: float
    """Seconds that a step of the training before it took, without energies."""

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.until - time.time())


@dataclass
class Cycles:
    """The cycles of a refinement; one that was begun keeps its length."""

    folder: Path
    """Has a folder for each cycle."""
    first: int
    """Steps of the first cycle; with a deadline, it has at least as many, unless time is short."""
    most: int
    """Largest number of cycles."""
    deadline: Deadline | None = None
    seconds: float = 1.0
    """Of a step, as far as known; needed with a deadline only."""

    def path(self, number: int) -> Path:
        """The folder of a cycle, by its number from 1."""
        return self.folder / f"cycle-{number}"

    def steps(self, number: int) -> int:
        """Steps of a cycle, to be asked when it begins; 0: there is no time for it."""
        if self.deadline is None:
            return self.first << (number - 1)
        begun = self.path(number) / "config.json"
        if begun.exists():
            return int(read_json(begun, "training")["training"]["steps"])
        last = self.steps(number - 1) if number > 1 else self.first / 2
        return filling(self.deadline.left / self.seconds, last, self.most - number + 1)

    @property
    def total(self) -> float:
        """Steps of all cycles together, at most; with a deadline, those for which there is time now."""
        if self.deadline is None:
            return self.first * relative_length(self.most)
        return self.deadline.left / self.seconds


def most_cycles(n_coordinates: int) -> int:
    """Largest number of cycles of the refinement of a flow of so many coordinates."""
    return CYCLES + max(0, round(math.log2(n_coordinates / FEW)))


def relative_length(cycles: int) -> int:
    """Steps of so many cycles together, relative to those of the first."""
    return (1 << cycles) - 1


def filling(left: float, last: float, most: int) -> int:
    """Steps of the next cycle, so that cycles of doubling length fill what is left.

    Args:
        left: Steps for which there is time.
        last: Steps of the cycle before. The next one has at least twice as many, unless time is short.
        most: Largest number of cycles.

    Returns:
        The steps; 0 if they would be fewer than half of the last ones, which hardly help.
    """
    if left < max(1.0, last / 2):
        return 0
    cycles = min(most, max(1, int(math.log2(left / (2 * last) + 1))))
    return int(left / relative_length(cycles))
