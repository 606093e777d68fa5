"""Changes happen at once or not at all, wherever the process dies."""

import os
import random
import sys
from pathlib import Path

import pytest

from knotflow.storage import journal

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills children made by fork")


def change(path: Path, seed: int) -> bytes:
    """Overwrite, extend and perhaps shorten the file in an overlay, and in a plain copy of its bytes."""
    rng = random.Random(seed)
    content = bytearray(path.read_bytes())
    with journal.Overlay(path) as overlay:
        for _ in range(12):
            start, data = rng.randrange(len(content) + 1), rng.randbytes(rng.randrange(1, 300))
            overlay.seek(start)
            assert overlay.write(data) == len(data)
            content[start : start + len(data)] = data
            overlay.seek(start := rng.randrange(len(content)))
            assert overlay.read(50) == content[start : start + 50]
        if seed % 3 == 0:
            size = rng.randrange(10, len(content))
            overlay.truncate(size)
            del content[size:]
        overlay.seek(0)
        assert overlay.read(10**6) == content
        overlay.commit()
    return bytes(content)


@pytest.mark.parametrize("seed", range(9))
def test_an_overlay_is_the_file_after_the_writes(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(random.Random(seed).randbytes(1000))
    expected = change(path, seed)
    assert path.read_bytes() == expected
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


# All calls by which `commit` changes anything on disk.
CALLS = {"open", "write", "writelines", "flush", "truncate", "fsync", "replace", "unlink"}


def die_at_call(k: int, path: Path, seed: int) -> bool:
    """Change the file in a child that ends, without any clean-up, before the k-th of these calls."""
    child = os.fork()
    if child == 0:
        calls = 0

        def count(frame: object, event: str, function: object) -> None:
            nonlocal calls
            if event == "c_call" and getattr(function, "__name__", "") in CALLS:
                calls += 1
                if calls == k:
                    os._exit(9)

        commit = journal.Overlay.commit

        def watched(overlay: journal.Overlay) -> None:
            sys.setprofile(count)
            commit(overlay)

        journal.Overlay.commit = watched  # type: ignore[method-assign]
        change(path, seed)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("seed", [1, 3])  # 1: the file grows; 3: it is shortened
def test_killed_at_any_call_the_file_is_the_old_or_the_new_one(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "file"
    old = random.Random(seed).randbytes(1000)
    path.write_bytes(old)
    new = change(path, seed)
    outcomes = []
    for k in range(1, 2000):
        path.write_bytes(old)
        killed = die_at_call(k, path, seed)
        waiting = journal.pending(path)
        seen = path.read_bytes() if waiting is None else waiting.read(10**6)
        journal.settle(path)
        settled = path.read_bytes()
        assert journal.pending(path) is None
        # Bytes behind the end mean nothing yet.
        assert settled == new or settled[: len(old)] == old
        assert seen == settled
        outcomes.append(settled == new)
        if not killed:
            break
    assert len(outcomes) > 10 and outcomes[-1] and not outcomes[0]
    assert outcomes == sorted(outcomes)


def test_a_write_torn_in_the_middle_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    old = random.Random(1).randbytes(1000)
    path.write_bytes(old)
    new = change(path, 1)
    path.write_bytes(old)
    child = os.fork()
    if child == 0:
        settle, write_all = journal.settle, journal._write_all

        def torn(file, offset, data) -> None:
            write_all(file, offset, data[: len(data) // 2])
            os._exit(9)

        def settle_torn(path: Path) -> None:
            journal._write_all = torn
            settle(path)

        journal.settle = settle_torn
        change(path, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert path.read_bytes()[: len(old)] != old
    waiting = journal.pending(path)
    assert waiting is not None and waiting.read(10**6) == new
    journal.settle(path)
    assert path.read_bytes() == new


def test_a_journal_of_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    journal._write_journal(path, [(0, b"abc")], 1000)
    path.write_bytes(bytes(10))
    with pytest.raises(OSError, match=r"was cut off, or is not the file that .*\.file\.journal belongs to"):
        journal.pending(path)
    with pytest.raises(OSError, match="was cut off"):
        journal.settle(path)
    journal.forget(path)
    assert journal.pending(path) is None and path.read_bytes() == bytes(10)
