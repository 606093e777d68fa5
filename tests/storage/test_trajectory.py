"""Trajectory files: what goes in comes out, mdtraj reads them, and no fate of a writer harms them."""

import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import mdtraj
import numpy as np
import pytest
import torch

import knotflow
from knotflow import files
from knotflow.molecules.system import MolecularSystem, ala2
from knotflow.storage import trajectory
from knotflow.storage.samples import SampleWriter
from knotflow.storage.trajectory import Frames

FIELDS = list(trajectory.COLUMNS)


@pytest.fixture(scope="module")
def system() -> MolecularSystem:
    return ala2()


@pytest.fixture
def path(tmp_path: Path, system: MolecularSystem) -> Path:
    path = tmp_path / "data.h5"
    trajectory.create(path, system, {"seed": 3})
    return path


def make(rows: range, run: int = 0) -> Frames:
    """Frames that can be told from their row and run."""
    rng = np.random.default_rng(run)
    row = np.array(rows)
    values = (row[:, None, None] + rng.normal(size=(22, 3))).astype(np.float32)
    return Frames(values, -values, row / 3 + run, row % 4, row // 4, row * 0.1)


def same(a: Frames, b: Frames) -> bool:
    return all(
        getattr(a, name).dtype == getattr(b, name).dtype
        and np.array_equal(getattr(a, name), getattr(b, name))
        for name in FIELDS
    )


def in_child(work: Callable[[], object]) -> str:
    """What the function returns, or raises, in a forked process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def test_appended_frames_come_back_bit_by_bit(path: Path, system: MolecularSystem) -> None:
    length = 0
    for n in (1, 3, 1000, 5000, 7):
        trajectory.append(path, make(range(length, length + n)), at=length)
        length += n
    everything = make(range(length))
    assert same(trajectory.read(path), everything)
    for rows in (slice(5, 5), slice(990, 1010), slice(-3, None), slice(10, 5000, 7), slice(0, 10**9)):
        assert same(trajectory.read(path, rows), everything[rows])
    parts = list(trajectory.pieces(path, 1000))
    assert [len(part) for part in parts] == [1000] * 6 + [11]
    assert all(same(part, everything[slice(i * 1000, (i + 1) * 1000)]) for i, part in enumerate(parts))
    first = list(trajectory.pieces(path, 1000, n_frames=2500))
    assert [len(part) for part in first] == [1000, 1000, 500] and same(first[2], everything[2000:2500])
    frame, energies = trajectory.numbers(path, "frame", "energies")
    assert np.array_equal(frame, everything.frame) and np.array_equal(energies, everything.energies)
    info = trajectory.open_info(path)
    assert info.n_frames == length
    assert info.provenance == {"seed": 3, "knotflow": knotflow.__version__}
    assert info.system.plain() == system.plain()
    assert sorted(p.name for p in path.parent.iterdir()) == ["data.h5"]


@pytest.mark.parametrize("at", [0, 1, 700, 1499, 1500])
def test_an_append_replaces_what_came_after(path: Path, at: int) -> None:
    trajectory.append(path, make(range(1500)), at=0)
    new = make(range(at, at + 40), run=1)
    trajectory.append(path, new, at=at)
    assert same(trajectory.read(path, slice(0, at)), make(range(at)))
    assert same(trajectory.read(path, slice(at, None)), new)
    assert trajectory.open_info(path).n_frames == at + 40


def test_mdtraj_reads_coordinates_times_and_topology(path: Path, system: MolecularSystem) -> None:
    assert mdtraj.load(str(path)).n_frames == 0
    frames = make(range(2500))
    trajectory.append(path, frames, at=0)
    trajectory.append(path, frames[:200], at=2500)
    loaded = mdtraj.load(str(path))
    np.testing.assert_array_equal(loaded.xyz, np.concatenate([frames.positions, frames.positions[:200]]))
    np.testing.assert_array_equal(loaded.time, np.concatenate([frames.time, frames.time[:200]]))
    assert loaded.topology == system.topology
    bonds = sorted(sorted((a.index, b.index)) for a, b in loaded.topology.bonds)
    assert bonds == [list(bond) for bond in system.bonds] and len(bonds) == 21
    assert loaded.unitcell_lengths is None
    with mdtraj.formats.HDF5TrajectoryFile(str(path)) as file:
        np.testing.assert_array_equal(file.read().potentialEnergy[:2500], frames.energies)


@pytest.mark.parametrize("round_", range(4))
def test_killed_at_any_moment_no_confirmed_frame_is_lost(path: Path, round_: int) -> None:
    """A writer appends as fast as it can and says so; it is killed, and the next one continues."""
    rng = random.Random(round_)
    confirmed = 0
    for _ in range(12):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            length = trajectory.open_info(path).n_frames
            while True:
                n = rng.choice([1, 20, 300, 1500])
                trajectory.append(path, make(range(length, length + n)), at=length)
                length += n
                os.write(writer, f"{length}\n".encode())
        os.close(writer)
        with os.fdopen(reader) as said:
            said.readline()
            time.sleep(rng.uniform(0, 0.04))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            confirmed = max([confirmed, *(int(line) for line in said)])
        seen = trajectory.read(path)
        assert len(seen) >= confirmed
        assert same(seen, make(range(len(seen))))
    trajectory.append(path, make(range(confirmed, confirmed + 1)), at=confirmed)
    np.testing.assert_array_equal(mdtraj.load(str(path)).xyz, make(range(confirmed + 1)).positions)


def test_readers_see_whole_appends_while_someone_writes(path: Path) -> None:
    trajectory.append(path, make(range(100)), at=0)
    child = os.fork()
    if child == 0:
        for length in range(100, 10**6, 100):
            trajectory.append(path, make(range(length, length + 100)), at=length)
            time.sleep(0.03)
        os._exit(0)
    try:
        lengths: list[int] = []
        end = time.monotonic() + 60  # on a busy machine
        while len(set(lengths)) < 20 and time.monotonic() < end:
            seen = trajectory.read(path)
            assert len(seen) % 100 == 0
            assert same(seen, make(range(len(seen))))
            lengths.append(len(seen))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert lengths == sorted(lengths) and len(set(lengths)) == 20


def test_two_writers_are_refused(path: Path) -> None:
    with files.only_writer(path):
        trajectory.append(path, make(range(5)), at=0)
        refusal = in_child(lambda: (files._held.clear(), trajectory.append(path, make(range(5)), 5)))
        assert refusal.startswith("OSError") and "is being written by another process" in refusal
        assert in_child(lambda: len(trajectory.read(path))) == "5"
    assert in_child(lambda: trajectory.append(path, make(range(5, 6)), 5)) == "None"
    assert same(trajectory.read(path), make(range(6)))


@pytest.mark.parametrize("room", [0, 300, 100_000, 700_000])
def test_a_file_that_cannot_grow_keeps_its_frames(path: Path, room: int) -> None:
    trajectory.append(path, make(range(1000)), at=0)
    before = path.read_bytes()

    def append_in_little_room() -> str:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
        try:
            trajectory.append(path, make(range(1000, 9000)), at=1000)
        except OSError as error:
            message = str(error)
        assert path.read_bytes() == before
        assert same(trajectory.read(path), make(range(1000)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        trajectory.append(path, make(range(1000, 9000)), at=1000)
        return message

    message = in_child(append_in_little_room)
    assert message.startswith(
        f"8000 frames could not be written to {path}, File too large: this needs 5.1 MB, "
    )
    assert message.endswith("run the same command again; the 1000 frames in the file are kept.")
    assert same(trajectory.read(path), make(range(9000)))
    assert [p.name for p in path.parent.iterdir()] == ["data.h5"]


def test_a_full_disk_is_noticed_before_writing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trajectory.append(path, make(range(10)), at=0)
    before = path.read_bytes()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=200_000))
    with pytest.raises(
        OSError, match=r"No space left on device: this needs 1\.\d MB, 0\.2 MB are free; free some"
    ):
        trajectory.append(path, make(range(10, 2000)), at=10)
    assert path.read_bytes() == before


def test_interrupts_wait_until_an_append_is_done(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = trajectory.journal.Overlay.write

    def interrupted(overlay, data) -> int:
        signal.raise_signal(signal.SIGINT)
        return write(overlay, data)

    monkeypatch.setattr(trajectory.journal.Overlay, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trajectory.append(path, make(range(10)), at=0)
    assert same(trajectory.read(path), make(range(10)))


def test_create_never_overwrites(path: Path, system: MolecularSystem) -> None:
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"data\.h5 exists already; remove it or choose another name\."):
        trajectory.create(path, system, {})
    assert path.read_bytes() == before


def test_frames_that_do_not_fit_are_refused(path: Path) -> None:
    trajectory.append(path, make(range(5)), at=0)
    before = path.read_bytes()
    for at in (-1, 6):
        with pytest.raises(ValueError, match=f"has 5 frames, so new ones can go to row 0 to 5, got {at}"):
            trajectory.append(path, make(range(5)), at=at)
    with pytest.raises(ValueError, match="at least one frame, got none"):
        trajectory.append(path, make(range(0)), at=5)
    few = Frames(np.zeros((1, 21, 3)), np.zeros((1, 21, 3)), [0.0], [0], [0], [0.0])
    with pytest.raises(ValueError, match="has frames of 22 atoms, got 21"):
        trajectory.append(path, few, at=5)
    with pytest.raises(ValueError, match=r"energies must have shape \(2,\) like the positions, got \(3,\)"):
        Frames(np.zeros((2, 22, 3)), np.zeros((2, 22, 3)), np.zeros(3), [0, 0], [0, 0], [0, 0])
    with pytest.raises(ValueError, match="step of rows must be at least 1, got -1"):
        trajectory.read(path, slice(None, None, -1))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "use", [trajectory.read, trajectory.open_info, lambda p: trajectory.append(p, make(range(1)), 0)]
)
def test_what_is_no_trajectory_is_refused_in_one_sentence(path: Path, use: Callable[[Path], object]) -> None:
    missing = path.with_name("missing.h5")
    with pytest.raises(
        FileNotFoundError, match=r"there is no trajectory .*missing\.h5; make one with `knotflow"
    ):
        use(missing)
    text = path.with_name("text.h5")
    text.write_text("not HDF5 at all")
    with pytest.raises(ValueError, match=r"text\.h5 is not an HDF5 file; `knotflow import`"):
        use(text)
    plain = path.with_name("plain.h5")
    trajectory.append(path, make(range(1)), at=0)
    mdtraj.load(str(path)).save_hdf5(str(plain))
    with pytest.raises(
        ValueError, match=r"plain\.h5 is an MDTraj trajectory without .*`knotflow import plain\.h5"
    ):
        use(plain)
    drawn = path.with_name("drawn.h5")
    molecule = trajectory.open_info(path).system.plain()
    with SampleWriter(drawn, molecule) as writer:
        writer.write(torch.tensor(molecule["positions"])[None], torch.zeros(1))
        writer.complete({})
    with pytest.raises(ValueError, match=r"drawn\.h5 holds samples of a model; read it with .*read_samples"):
        use(drawn)
    with h5py.File(path, "r+") as file:
        file["knotflow"].attrs["version"] = 99
    with pytest.raises(ValueError, match=r"of version 99, but this knotflow .* reads version 1; upgrade"):
        use(path)


def test_a_file_cut_anywhere_says_so(path: Path) -> None:
    trajectory.append(path, make(range(700)), at=0)
    whole = path.read_bytes()
    for size in (8, 20, 48, 500, 5000, 50_000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        for use in (trajectory.read, trajectory.open_info, lambda p: trajectory.append(p, make(range(1)), 0)):
            with pytest.raises(
                OSError, match=r"data\.h5 is cut off or damaged \(.*\); copy it again from where"
            ):
                use(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is not an HDF5 file"):
        trajectory.read(path)


def test_damage_inside_is_noticed_where_checksums_are(path: Path) -> None:
    trajectory.append(path, make(range(700)), at=0)
    content = bytearray(path.read_bytes())
    for position in range(60, 3000, 41):
        content[position] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(OSError, match="is cut off or damaged"):
        trajectory.read(path)


def test_fingerprints_tell_contents(path: Path, system: MolecularSystem, tmp_path: Path) -> None:
    def found(frames: Frames, system: MolecularSystem = system) -> str:
        file = tmp_path / "other.h5"
        file.unlink(missing_ok=True)
        trajectory.create(file, system, {"seed": 4})
        trajectory.append(file, frames, at=0)
        return trajectory.fingerprint(file)

    empty = trajectory.fingerprint(path)
    trajectory.append(path, make(range(12)), at=0)
    known = trajectory.fingerprint(path)
    assert known != empty and found(make(range(12))) == known
    frames = make(range(12))
    others = [
        frames[:11],
        replace(frames, energies=frames.energies + np.eye(12)[3]),
        replace(frames, replica=frames.replica[::-1]),
    ]
    assert len({known, *map(found, others), found(frames, ala2(310.0))}) == 5


def test_a_ladder_file_keeps_the_temperature_of_every_frame(path: Path, system: MolecularSystem) -> None:
    hot = trajectory.ladder_file(path)
    assert hot.name == "data.ladder.h5" and hot.parent == path.parent
    trajectory.create(hot, system, {"seed": 3}, ladder=True)
    frames = replace(make(range(20)), temperature=400.0 + np.arange(20))
    trajectory.append(hot, frames[:12], at=0)
    trajectory.append(hot, frames[10:], at=10)
    found = trajectory.read(hot, ladder=True)
    assert same(found, frames) and found.temperature is not None and found.temperature.dtype == np.float64
    np.testing.assert_array_equal(found.temperature, frames.temperature)
    parts = [part.temperature for part in trajectory.pieces(hot, 6, ladder=True)]
    np.testing.assert_array_equal(np.concatenate(parts), frames.temperature)
    assert trajectory.open_info(hot, ladder=True).n_frames == 20
    with mdtraj.formats.HDF5TrajectoryFile(str(hot)) as file:
        np.testing.assert_array_equal(file.read().temperature, frames.temperature)
    known = trajectory.fingerprint(hot, ladder=True)
    trajectory.append(hot, replace(frames, temperature=500.0 + np.arange(20)), at=0)
    assert trajectory.fingerprint(hot, ladder=True) != known


def test_files_of_one_temperature_and_ladder_files_are_not_confused(
    path: Path, system: MolecularSystem
) -> None:
    trajectory.append(path, make(range(4)), at=0)
    assert trajectory.read(path).temperature is None and make(range(4))[:2].temperature is None
    hot = trajectory.ladder_file(path)
    trajectory.create(hot, system, {}, ladder=True)
    for use in (trajectory.read, trajectory.open_info, trajectory.fingerprint):
        with pytest.raises(ValueError, match=r"above its target temperature; give the file beside it"):
            use(hot)
        with pytest.raises(ValueError, match=r"data\.h5 holds frames of one temperature"):
            use(path, ladder=True)
    with pytest.raises(ValueError, match="above its target temperature"):
        trajectory.append(hot, make(range(4)), at=0)
    with pytest.raises(ValueError, match=r"temperature must have shape \(4,\)"):
        replace(make(range(4)), temperature=np.zeros(3))
