"""Held-out rows: chosen by replica or time, recorded, and found again."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knotflow.storage.split import BLOCKS, Split, held_out


def runs_of(mask: np.ndarray) -> list[tuple[int, int]]:
    """Stretches of True, by looking at every row."""
    found, first = [], None
    for row, held in enumerate([*mask.tolist(), False]):
        if held and first is None:
            first = row
        elif not held and first is not None:
            found.append((first, row))
            first = None
    return found


@settings(max_examples=200, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 10**6), min_size=1, max_size=25, unique=True),
    lengths=st.lists(st.integers(1, 70), min_size=25, max_size=25),
    shuffled=st.booleans(),
    seed=st.integers(0, 100),
)
def test_splits(numbers: list[int], lengths: list[int], shuffled: bool, seed: int) -> None:
    replica = np.repeat(np.array(numbers, np.int32), lengths[: len(numbers)])
    if shuffled:  # replicas that were simulated at the same time take turns in a file
        replica = np.random.default_rng(seed).permutation(replica)
    split = Split.of("data.h5", replica)
    mask = split.mask()
    assert split.frames == len(replica) == len(mask)
    assert list(split.validation) == runs_of(mask)
    assert Split.parse(json.loads(json.dumps(split.plain()))) == split
    assert split.plain()["file"] == "data.h5"

    held = {int(number) for number in np.unique(replica[mask])}
    if len(numbers) >= BLOCKS:
        assert split.kind == "replica"
        assert held == set(sorted(numbers)[BLOCKS - 1 :: BLOCKS])
        assert set(np.unique(replica[~mask])) == set(numbers) - held
        return
    assert split.kind == "time"
    for number in numbers:
        own = mask[replica == number]
        whole, rest = divmod(len(own), 2 * BLOCKS)
        # Twenty ranges of time, the first ones longer by a frame: the tenth and the last are held out.
        ends = [j * whole + min(j, rest) for j in range(2 * BLOCKS + 1)]
        expected = [(ends[j], ends[j + 1]) for j in (BLOCKS - 1, 2 * BLOCKS - 1) if ends[j] < ends[j + 1]]
        assert runs_of(own) == expected


def test_a_hundred_frames_always_leave_something_to_judge_by() -> None:
    for replicas in range(1, 30):
        split = Split.of("data.h5", np.arange(100, dtype=np.int32) % replicas)
        assert 0 < split.mask().sum() <= 20


@pytest.mark.parametrize("validation", [None, [[5]], [[0, 20]], [["a", "b"]], 3])
def test_a_damaged_split_is_refused(validation) -> None:
    with pytest.raises(ValueError, match="the split recorded in the model is damaged"):
        held_out({"file": "a.h5", "frames": 10, "validation": validation}, "x/a.h5", 10)


def test_a_split_of_another_file_or_without_rows_is_ignored() -> None:
    split = {"file": "a.h5", "frames": 10, "validation": [[2, 4]]}
    assert held_out(split, "x/a.h5", 10).nonzero()[0].tolist() == [2, 3]
    assert held_out(split, "b.h5", 10) is None and held_out(split, "a.h5", 11) is None
    assert held_out(None, "a.h5", 10) is None and held_out({**split, "validation": []}, "a.h5", 10) is None
