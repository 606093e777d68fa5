"""Averages over a trajectory file."""

from pathlib import Path

from knotflow.simulation.summary import summarise
from tests.analysis.test_agreement import made_up


def test_summary_counts_frames(tmp_path: Path) -> None:
    summary = summarise(made_up(tmp_path / "a.h5", 1))
    assert summary.n_frames == 2000 and summary.n_replicas == 40
    assert list(summary.left_handed) == ["ALA2"]
