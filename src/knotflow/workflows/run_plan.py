"""The plan of a run: its time shared out over the stages, and the amounts of work decided so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from knotflow.config import Config
from knotflow.errors import ConfigError
from knotflow.files import read_json, write_json
from knotflow.progress import Progress

SHARES: Final = {
    "simulate": 0.3,
    "train": 0.45,
    "sample": 0.03,
    "evaluate": 0.05,
    "exact": 0.12,
    "report": 0.05,
}
"""Shares of the time, by stage; time that a stage does not need goes to those after it."""

DECIDED: Final[dict[str, tuple[str, ...]]] = {
    "simulate": ("frames",),
    "train": ("steps", "refine"),
    "sample": ("samples",),
    "evaluate": (),
    "exact": ("rows",),
    "report": (),
}
"""Amounts that each stage decides."""

Count = Annotated[int, Field(ge=0)]


class Amounts(Config):
    """How much work each stage does; None: to be decided when it begins."""

    frames: Count | None = None
    """Frames of each ladder."""
    steps: Count | None = None
    """Steps of the training."""
    refine: bool = True
    """Whether the energy is fast enough for the refinement."""
    samples: Count | None = None
    rows: Count | None = None
    """States of each exact chain; 0: the weights are good enough without chains."""


class Plan(Config):
    """What ``plan.json`` holds: the settings of a run, the amounts decided so far, and the time spent."""

    molecule: str
    temperature: float
    hours: float
    seed: int
    amounts: Amounts = Amounts()
    spent: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Seconds that each stage has taken so far."""

    @property
    def inputs(self) -> dict[str, Any]:
        """The settings."""
        return self.model_dump(exclude={"amounts", "spent"})


@dataclass(frozen=True)
class PlanFile:
    """The plan on disk, which an interrupted run goes on with."""

    path: Path
    asked: Plan
    """The plan before anything is decided."""
    given: Amounts
    """Amounts that are not to be decided."""

    def noted(self) -> Plan:
        """The plan so far."""
        if not self.path.exists():
            return self.asked
        try:
            return Plan.parse(read_json(self.path))
        except ValueError as error:
            raise ConfigError(
                f"{self.path} is not the plan of a run, or is damaged ({error}); what is beside it is for "
                "other commands, choose another --out for a new run."
            ) from None

    def note(self, **parts: Any) -> None:
        """Change parts of the plan."""
        write_json(self.path, self.noted().model_copy(update=parts).plain())

    def amounts(self) -> Amounts:
        """The amounts so far."""
        return self.noted().amounts.model_copy(update=self.given.model_dump(exclude_unset=True))

    def decide(self, **amounts: Any) -> None:
        """Note amounts; None: they are to be decided again."""
        self.note(amounts=self.amounts().model_copy(update=amounts))

    def decided(self, amount: str) -> int:
        """An amount; 0 if it is not decided yet."""
        return int(getattr(self.amounts(), amount) or 0)

    def undecide(self, stages: list[str]) -> None:
        """Forget the amounts of some stages, and the time they took."""
        names = [amount for stage in stages for amount in DECIDED[stage]]
        kept = self.amounts().model_dump(exclude_unset=True, exclude=set(names))
        spent = {name: seconds for name, seconds in self.noted().spent.items() if name not in stages}
        self.note(amounts=Amounts.parse(kept), spent=spent)

    def seconds(self, stage: str) -> float:
        """The time for a stage: its share of what those before it have left, at least half of its own."""
        stages = list(SHARES)
        before, after = stages[: stages.index(stage)], stages[stages.index(stage) :]
        all_time, spent = 3600 * self.asked.hours, self.noted().spent
        left = all_time - sum(spent.get(name, all_time * SHARES[name]) for name in before)
        own = SHARES[stage]
        return max(left * own / sum(SHARES[name] for name in after), all_time * own / 2)

    @property
    def all_left(self) -> float:
        """The time for everything, less what was spent before."""
        return 3600 * self.asked.hours - sum(self.noted().spent.values())

    def left(self, stage: str) -> float:
        """The time for a stage, less what an interrupted start of it has taken."""
        return self.seconds(stage) - self.noted().spent.get(stage, 0.0)

    def timed(self, stage: str, work: Callable[[Progress], Any]) -> Callable[[Progress], None]:
        """The work of a stage, its time noted also if it is interrupted."""

        def timed(progress: Progress) -> None:
            began = time.perf_counter()
            try:
                work(progress)
            finally:
                spent = self.noted().spent
                self.note(spent={**spent, stage: spent.get(stage, 0.0) + time.perf_counter() - began})

        return timed
