"""What a training reports: its steps, and the numbers of its log."""

from pathlib import Path

import pytest

from knotflow.log_file import read_log
from knotflow.training import progress as module
from tests.training import runs
from tests.training.stopping import StopError


def logged(folder: Path, step: int) -> dict[str, float]:
    return {name: value for number, name, value in read_log(folder / "log.csv") if number == step}


def test_it_reports_its_steps_and_the_rows_of_its_log(tmp_path: Path) -> None:
    seen: list[tuple] = []

    def stop(*now: object) -> None:
        seen.append(now)
        if now[1] == 30:
            raise StopError

    with pytest.raises(StopError):
        runs.run(tmp_path, progress=stop)
    trained = [now for now in seen if now[0] == "training"]
    assert [now[1] for now in trained] == [0, 10, 20, 30] and {now[2] for now in trained} == {70}
    assert trained[0][3] == "" and f"nll {logged(tmp_path, 10)['nll']:.5g}, force_matching" in trained[1][3]
    # The checkpoint of step 20 has been there since.
    assert f"validation_nll {logged(tmp_path, 20)['validation_nll']:.5g}" in trained[3][3]

    seen.clear()
    runs.run(tmp_path, progress=lambda *now: seen.append(now))
    assert [now[:3] for now in seen] == [("training", step, 70) for step in range(20, 71, 10)]
    assert all(f"nll {logged(tmp_path, now[1])['nll']:.5g}" in now[3] for now in seen[1:])

    seen.clear()
    runs.run(tmp_path, progress=lambda *now: seen.append(now))  # finished: loaded
    assert seen == []


def test_slow_steps_are_reported_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPORT_EVERY", 0.0)
    seen: list[tuple] = []
    runs.run(tmp_path, progress=lambda *now: seen.append(now))
    assert [now[1] for now in seen if now[0] == "training"] == list(range(71))
