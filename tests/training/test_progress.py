"""What a training tells as it goes: the rows of its log, and the time left."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from knotflow.log_file import read_log
from knotflow.training import Batch, progress
from knotflow.training.module import FlowModule
from knotflow.training.progress import Progress
from tests.training import runs
from tests.training.stopping import StopError


@pytest.fixture
def two_seconds_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on with the steps; the first one, which may compile, takes a minute more."""
    original, now = FlowModule.training_step, [1000.0]

    def step(self: FlowModule, batch: Batch, batch_idx: int) -> None:
        original(self, batch, batch_idx)
        now[0] += 62.0 if now[0] == 1000 else 2.0

    monkeypatch.setattr(FlowModule, "training_step", step)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now[0]))


def logged(folder: Path, step: int) -> dict[str, float]:
    return {name: value for number, name, value in read_log(folder / "log.csv") if number == step}


def test_it_tells_the_rows_of_its_log_and_the_time_left(two_seconds_a_step, tmp_path: Path) -> None:
    told: list[Progress] = []

    def stop(now: Progress) -> None:
        told.append(now)
        if now.step == 30:
            raise StopError

    with pytest.raises(StopError):
        runs.run(tmp_path, told=stop)
    assert [now.step for now in told] == [0, 10, 20, 30] and {now.steps for now in told} == {70}
    assert math.isnan(told[0].seconds_left) and told[0].values == {}
    assert [now.seconds_left for now in told[1:]] == [120.0, 100.0, 80.0]
    assert told[1].values.keys() == {"nll", "force_matching", "reverse_kl"}
    assert told[1].values["nll"] == logged(tmp_path, 10)["nll"]
    # The checkpoint of step 20 has been there since.
    assert told[3].values["validation_nll"] == logged(tmp_path, 20)["validation_nll"]

    told.clear()
    runs.run(tmp_path, told=told.append)
    assert [now.step for now in told] == [20, 30, 40, 50, 60, 70]
    assert math.isnan(told[0].seconds_left) and told[0].values == {}
    assert [now.seconds_left for now in told[1:]] == [80.0, 60.0, 40.0, 20.0, 0.0]
    assert all(now.values["nll"] == logged(tmp_path, now.step)["nll"] for now in told[1:])

    told.clear()
    runs.run(tmp_path, told=told.append)  # finished: loaded
    assert told == []
