"""Times per sample: what is timed, what is kept, and the numbers of a clock that the test moves."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import sem

from knotflow.files import read_json
from knotflow.inputs import file_fingerprint
from knotflow.paper import table2
from knotflow.paper.numbers import spread
from tests.analysis.generators import chain_generator


class Timed:
    """A flow that takes a second for each point drawn, and a tenth of it for each density."""

    def __init__(self) -> None:
        self.now, self.drawn, self.seen = 0.0, [], []

    def sample(self, n: int) -> torch.Tensor:
        return self.sample_and_log_prob(n)[0]

    def sample_and_log_prob(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.now += n
        self.drawn.append(n)
        return torch.zeros(n, 2), torch.zeros(n)

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        self.now += 0.1 * len(x)
        self.seen.append(len(x))
        return torch.zeros(len(x))


def test_all_samples_are_timed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Timed()
    monkeypatch.setattr(table2.time, "perf_counter", lambda: flow.now)
    times = table2.time_flow(flow, 2_500, 3)  # type: ignore[arg-type]
    assert times == [pytest.approx((2_500, 250))] * 3
    assert flow.drawn == flow.seen == [500, *[1_000, 1_000, 500] * 3]


def test_mean_and_two_standard_errors() -> None:
    values = [1.0, 2.0, 4.0]
    assert spread(values) == pytest.approx((np.mean(values), 2 * sem(values)))
    assert spread([3.0])[0] == 3.0 and np.isnan(spread([3.0])[1])


def test_what_was_timed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, said = tmp_path / "model.safetensors", []
    generator = chain_generator().float()
    generator.save(model)
    found = table2.run({"bspline": model}, tmp_path, 20, 2, say=said.append)
    assert said == ["B-spline: 2 times 20 samples, there and back"]
    (row,) = found
    assert row.parameters == sum(p.numel() for p in generator.flow.parameters())
    assert row.model == file_fingerprint(model) and row.threads == torch.get_num_threads()
    kept = read_json(tmp_path / "table2.json")
    assert kept["bspline"]["reverse"] == list(row.reverse)
    honest = table2.measure
    monkeypatch.setattr(table2, "measure", None)
    assert table2.run({"bspline": model}, tmp_path, 20, 2, say=said.append) == found
    monkeypatch.setattr(table2, "measure", honest)
    table2.run({"bspline": model, "rq": model}, tmp_path, 30, 2, say=said.append)
    assert said[1:] == [f"{name}: 2 times 30 samples, there and back" for name in ("RQ-spline", "B-spline")]


def test_the_papers_rows() -> None:
    assert set(table2.PAPER) == set(table2.FAMILIES)
    assert table2.PAPER["smooth"][0][0] / table2.PAPER["bspline"][0][0] == pytest.approx(17.7, abs=0.05)
