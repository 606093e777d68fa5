"""Rows on the disk: the same as in memory, in files that nobody sees, and gone when nobody needs them."""

import gc
import os
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from knotflow.training import Batch, data
from knotflow.training.data import pieces, select
from knotflow.training.mapped import RowsOnDisk, rewritten


def rows(n: int) -> Batch:
    random = torch.Generator().manual_seed(0)
    x, force = torch.randn(2, n, 3, generator=random)
    return Batch(x, force, context=torch.rand(n, 1, generator=random, dtype=torch.float64))


def mapped(batch: Batch, folder: Path, sizes: list[int]) -> Batch:
    """The rows on the disk, appended so many at a time."""
    on_disk, start = RowsOnDisk(folder), 0
    for size in sizes:
        on_disk.append(select(batch, slice(start, start + size)))
        start += size
    return on_disk.mapped()


def same(a: Batch, b: Batch) -> bool:
    pairs = zip(a, b, strict=True)
    return all(p is q is None or (torch.equal(p, q) and p.dtype == q.dtype) for p, q in pairs)


def mapped_files() -> list[tuple[range, str]]:
    """Addresses and names of the files that this process has mapped."""
    found = re.findall(r"^(\w+)-(\w+) \S+ \w+ \S+ \d+ +(/.*)$", Path("/proc/self/maps").read_text(), re.M)
    return [(range(int(first, 16), int(last, 16)), name) for first, last, name in found]


def file_of(tensor: Tensor) -> str | None:
    """The file whose content the tensor is; None if it is in memory."""
    return next((name for addresses, name in mapped_files() if tensor.data_ptr() in addresses), None)


def test_rows_come_back_bit_by_bit(tmp_path: Path) -> None:
    batch = rows(1000)
    found = mapped(batch, tmp_path, [0, 1, 700, 0, 299])
    assert same(found, batch)
    some = torch.randperm(1000)[:50]
    assert same(select(found, some), select(batch, some))
    assert same(select(found, slice(3, 9)), select(batch, torch.arange(3, 9)))
    mask = torch.arange(1000) % 3 == 1
    assert same(select(found, mask), select(batch, mask.nonzero()[:, 0]))


def test_no_rows_are_a_batch_too(tmp_path: Path) -> None:
    empty = mapped(rows(10), tmp_path, [0, 0])
    assert same(empty, rows(0)) and same(rewritten(empty, lambda part: part, tmp_path), empty)


def test_all_rows_are_changed_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(part: Batch) -> Batch:
        sizes.append(len(part.x))
        return part._replace(x=2 * part.x, context=part.context.float())

    sizes: list[int] = []
    monkeypatch.setattr(data, "PIECE", 300)
    batch = rows(1000)
    assert same(rewritten(batch, change, tmp_path), Batch(2 * batch.x, batch.force, batch.context.float()))
    assert sizes == [300, 300, 300, 100]
    assert same(batch, rows(1000))
    assert torch.equal(torch.cat([part.x for part in pieces(batch)]), batch.x)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at the maps of a process of Linux")
def test_files_have_no_names_and_live_as_long_as_their_tensors(tmp_path: Path) -> None:
    opened = len(os.listdir("/proc/self/fd"))
    found = mapped(rows(1000), tmp_path / "none" / "yet", [500, 500])
    assert not list(tmp_path.iterdir()), "neither files nor the folder"
    for part in (found.x, found.force, found.context):
        assert str(tmp_path) in file_of(part) and "(deleted)" in file_of(part)
    assert file_of(found.x.clone()) is None
    assert len(os.listdir("/proc/self/fd")) <= opened + 3  # which the maps hold
    view = found.x[5:7]
    del part, found
    gc.collect()
    assert torch.equal(view, rows(1000).x[5:7])
    del view
    gc.collect()
    assert not [name for _, name in mapped_files() if str(tmp_path) in name]
    assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: open("/dev/full", "r+b", buffering=0))  # noqa: SIM115
    with pytest.raises(OSError, match=r"run/frames could not be written \(No space left.*free some space"):
        mapped(rows(1000), tmp_path / "run", [1000])
