"""Only one process writes a file."""

import os
from pathlib import Path

import pytest

from knotflow.dynamics.chains import ChainState
from knotflow.files import check_ending, only_writer, read_file, read_json
from knotflow.flows.io import load
from knotflow.storage.arrays import read_arrays
from knotflow.training.checkpoint import read_checkpoint


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child made by fork")
def test_the_lock_is_nested_exclusive_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "file"
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with only_writer(path), only_writer(path):
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os._exit(9)  # without a clean-up
    os.read(ready[0], 1)
    with pytest.raises(OSError, match="is being written by another process; wait until it is done"):  # noqa: SIM117
        with only_writer(path):
            pass
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    with only_writer(path):
        assert [p.name for p in tmp_path.iterdir()] == [".file.lock"]
    assert not list(tmp_path.iterdir())


READERS = [read_file, read_json, read_arrays, read_checkpoint, ChainState.load, load]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__qualname__)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_only_files_are_read(tmp_path: Path, read, make) -> None:
    """A pipe without a writer would be waited for, without end."""
    make(tmp_path / "name")
    with pytest.raises((OSError, ValueError), match="name"):
        read(tmp_path / "name")


def test_results_are_not_written_over_files_of_another_kind(tmp_path: Path) -> None:
    check_ending(tmp_path / "a.h5", "out")
    check_ending(tmp_path / "a.json", "out", ".json")
    with pytest.raises(ValueError, match=r"--out must be a file ending in \.json, got 'data\.h5'"):
        check_ending(Path("data.h5"), "--out", ".json")
