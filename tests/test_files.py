"""Only one process writes a file."""

import os
from pathlib import Path

import pytest

from knotflow.files import only_writer


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
