"""Commands on a small disk that is full: one sentence that names a file, and nothing lost."""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from knotflow.storage.samples import read_samples
from tests.cli.test_kills import COMMANDS, INPUTS, Child, content, inputs, quick  # noqa: F401

SIZES = {
    "simulate": 200_000, "train": 400_000, "sample": 100_000, "sample-xtc": 30_000, "exact": 60_000,
    "dynamics": 8_000, "evaluate": 4_000, "import": 120_000,
    "reweight": 12_000,
}  # fmt: skip
"""Bytes left on the disk: too few for each command."""


@pytest.fixture
def disk(tmp_path: Path, inputs: Path) -> Iterator[Path]:  # noqa: F811
    """A disk of two megabytes, with the inputs."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        for name in INPUTS:
            shutil.copy(inputs / name, folder)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, left: int) -> Path:
    """A file that leaves only so many bytes on the disk."""
    path = folder / "filling"
    path.write_bytes(bytes(max(0, shutil.disk_usage(folder).free - left)))
    return path


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_full_disk(disk: Path, name: str, share: float) -> None:
    before = content(disk)
    filling = fill(disk, int(share * SIZES[name]))
    child = Child(disk, COMMANDS[name])
    status, said = child.wait(), child.log.read_text()
    assert status != -signal.SIGSEGV and "Traceback" not in said, said
    assert status == 2, said
    assert re.search(r"Error: .*(No space left|are free|no space left)", said), said
    assert re.search(r"new\S* ", said), said
    filling.unlink()
    child = Child(disk, COMMANDS[name])
    assert child.wait() == 0, child.log.read_text()
    assert before.items() <= content(disk).items()


def test_old_samples_stay_when_the_disk_fills(disk: Path) -> None:
    command = "sample chain.safetensors -n 100 --out new.h5"
    assert Child(disk, command).wait() == 0
    filling = fill(disk, 100_000)
    more = Child(disk, command.replace("100", "5000") + " --overwrite")
    assert more.wait() == 2, more.log.read_text()
    assert len(read_samples(disk / "new.h5")) == 100
    filling.unlink()
    assert sorted(path.name for path in disk.iterdir() if "new" in path.name) == ["new.h5", "new.h5.toml"]
    assert np.isfinite(read_samples(disk / "new.h5").log_prob).all()
