"""Trainings that stop in the middle."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from knotflow.training import Batch
from knotflow.training.module import FlowModule


class StopError(RuntimeError):
    """As if the process were killed."""


@contextmanager
def stopped_after(step: int, error: type[BaseException] = StopError) -> Iterator[None]:
    """Trainings raise an error after a step."""
    original = FlowModule.training_step

    def stopping(self: FlowModule, batch: Batch, batch_idx: int) -> None:
        original(self, batch, batch_idx)
        if self.step == step:
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlowModule, "training_step", stopping)
        yield
