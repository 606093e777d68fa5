"""The lengths of the cycles of a refinement: doubling, filling the time, kept once begun."""

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knotflow.files import write_json
from knotflow.training.cycles import Cycles, Deadline, filling, most_cycles, relative_length


@pytest.mark.parametrize(("n", "most"), [(6, 3), (60, 3), (90, 4), (120, 4), (180, 5), (240, 5)])
def test_more_coordinates_need_more_cycles(n: int, most: int) -> None:
    assert most_cycles(n) == most


@given(st.floats(0, 1e6), st.floats(1, 1e4), st.integers(1, 6))
def test_cycles_that_fill_the_time(left: float, last: float, most: int) -> None:
    """They take all of it in at most so many cycles, each at least twice as long as the one before."""
    lengths, start, before = list[int](), left, last
    while len(lengths) < most and (length := filling(left, before, most - len(lengths))):
        lengths.append(length)
        left, before = left - length, length
    assert sum(lengths) <= start
    if not lengths:
        assert start < max(1.0, last / 2)
    else:
        assert lengths[0] >= min(2 * last, start) - 1
        # Rounding down leaves a step or so for each step of a shorter cycle.
        assert all(late >= 2 * early - 1 for early, late in pairwise(lengths))
        assert left <= max(1.0, before / 2, 2**most)


def test_a_cycle_takes_what_time_there_is_and_keeps_it(tmp_path: Path) -> None:
    cycles = Cycles(tmp_path, 100, 3, Deadline(time.time() + 77.0, 0.05), seconds=0.1)
    assert cycles.total == pytest.approx(770, abs=20)
    assert cycles.steps(1) == pytest.approx(110, abs=3)
    write_json(tmp_path / "cycle-1" / "config.json", {"training": {"steps": 123}})
    assert cycles.steps(1) == 123
    cycles.seconds = 0.2  # slower than thought: time for 385 steps, not for 246 and 492
    assert cycles.steps(2) == pytest.approx(385, abs=5)
    cycles.seconds = 10.0
    assert cycles.steps(2) == 0


def test_without_a_deadline_every_cycle_is_twice_as_long() -> None:
    cycles = Cycles(Path("nowhere"), 10, 4)
    assert [cycles.steps(number) for number in (1, 2, 3, 4)] == [10, 20, 40, 80]
    assert cycles.total == 10 * relative_length(4) == 150
