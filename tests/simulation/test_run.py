"""Runs: reproducible, continued after a kill without losing or repeating a frame."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from knotflow.simulation import run as simulate
from knotflow.simulation.plan import SimulationPlan
from knotflow.simulation.run import Simulation
from knotflow.storage import trajectory
from tests.molecules.molecules import molecule

QUICK = {"replicas": 3, "frames": 6, "interval": 40, "equilibration": 100}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks and a short beginning, so that a run of seconds has several of them."""
    monkeypatch.setattr(simulate, "SPREAD_STEPS", 200)
    monkeypatch.setattr(simulate, "TASK_STEPS", {"openmm": 80, "torch": 80})


def run(path: Path, workers: int = 1, **options: object) -> Simulation:
    simulation = Simulation(path, molecule("ala2"), SimulationPlan(**(QUICK | options)), workers)  # type: ignore[arg-type]
    simulation.run()
    return simulation


def content(path: Path) -> dict[str, np.ndarray]:
    frames = trajectory.read(path)
    return {name: getattr(frames, name) for name in trajectory.COLUMNS}


def assert_same(a: Path, b: Path) -> None:
    left, right = content(a), content(b)
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_every_replica_has_every_frame_once(tmp_path: Path) -> None:
    simulation = run(tmp_path / "a.h5")
    assert simulation.finished and simulation._frames_per_block == 2
    frames = trajectory.read(tmp_path / "a.h5")
    pairs = sorted(zip(frames.replica.tolist(), frames.frame.tolist(), strict=True))
    assert pairs == [(r, f) for r in range(3) for f in range(6)]
    np.testing.assert_allclose(frames.time, 0.04 * (frames.frame + 1))
    assert np.ptp(frames.energies) > 1
    info = trajectory.open_info(tmp_path / "a.h5")
    assert info.provenance["plan"]["seed"] == 0 and info.system.name == "ala2"


def test_seed_decides_and_workers_do_not(tmp_path: Path) -> None:
    run(tmp_path / "a.h5")
    run(tmp_path / "b.h5", workers=2)
    assert_same(tmp_path / "a.h5", tmp_path / "b.h5")
    run(tmp_path / "c.h5", seed=1)
    assert not np.array_equal(
        content(tmp_path / "a.h5")["positions"], content(tmp_path / "c.h5")["positions"]
    )


def test_more_frames_continue_a_run(tmp_path: Path) -> None:
    run(tmp_path / "a.h5", replicas=2)
    run(tmp_path / "b.h5", replicas=2, frames=4)
    run(tmp_path / "b.h5", replicas=2)
    assert_same(tmp_path / "a.h5", tmp_path / "b.h5")
    assert not (tmp_path / "a.ladder.h5").exists()


def test_a_finished_run_does_nothing(tmp_path: Path) -> None:
    run(tmp_path / "a.h5")
    before = (tmp_path / "a.h5").read_bytes()
    assert run(tmp_path / "a.h5").finished
    assert (tmp_path / "a.h5").read_bytes() == before


def test_frames_written_before_a_lost_state_are_not_repeated(tmp_path: Path) -> None:
    """Killed after the frames were written, but before the state: the block is done again in place."""
    run(tmp_path / "a.h5")
    run(tmp_path / "b.h5", frames=2)
    older = (tmp_path / "b.h5.state").read_bytes()
    run(tmp_path / "b.h5", frames=4)
    (tmp_path / "b.h5.state").write_bytes(older)
    run(tmp_path / "b.h5")
    assert_same(tmp_path / "a.h5", tmp_path / "b.h5")


def test_killed_before_its_first_state_it_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    run(tmp_path / "a.h5")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(simulate.RunState, "save", killed)
        run(tmp_path / "b.h5")
    assert (tmp_path / "b.h5").exists() and not (tmp_path / "b.h5.state").exists()
    run(tmp_path / "b.h5")
    assert_same(tmp_path / "a.h5", tmp_path / "b.h5")


def test_a_run_resumes_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same platform, whichever would be the fastest now; elsewhere if that one is gone."""
    monkeypatch.setattr(simulate, "fastest_platform", lambda *_: "Reference")
    run(tmp_path / "a.h5")
    for name in ("b.h5", "c.h5"):
        run(tmp_path / name, frames=2)
    monkeypatch.setattr(simulate, "fastest_platform", lambda *_: "CPU")
    run(tmp_path / "b.h5")
    assert_same(tmp_path / "a.h5", tmp_path / "b.h5")
    monkeypatch.setattr(simulate, "works", lambda *_: False)
    assert run(tmp_path / "c.h5").finished
    other = content(tmp_path / "c.h5")["positions"]
    assert not np.array_equal(content(tmp_path / "a.h5")["positions"], other)


def test_progress_counts_all_steps_from_within_tasks(tmp_path: Path) -> None:
    seen: list[tuple] = []
    simulation = Simulation(tmp_path / "a.h5", molecule("ala2"), SimulationPlan(**QUICK), 1)  # type: ignore[arg-type]
    simulation.run(lambda *now: seen.append(now))
    done = [now[1] for now in seen]
    assert list(dict.fromkeys(now[0] for now in seen)) == ["spreading", "equilibrating", "sampling"]
    assert {now[2] for now in seen} == {3 * (200 + 100 + 6 * 40)} == {done[-1]} and done == sorted(done)
    assert seen[-1][3].startswith("0.0 ns kept, ") and seen[-1][3].endswith(" ns/day of all walkers")
    ends = {200 * n for n in range(1, 4)}
    assert len(ends & set(done)) == 3 and len(seen) > len(set(done) & ends) + 3 + 9  # and in between
    seen.clear()
    simulation.run(lambda *now: seen.append(now))
    assert seen == []  # nothing to do
    plan = SimulationPlan(**(QUICK | {"frames": 8}))  # type: ignore[arg-type]
    Simulation(tmp_path / "a.h5", molecule("ala2"), plan, 1).run(lambda *now: seen.append(now))
    assert seen[0][0] == "sampling" and seen[0][1] > done[-1]  # resumed


SCRIPT = """
import sys
from knotflow.simulation import run as simulate
from knotflow.molecules.system import ala2
simulate.SPREAD_STEPS = 200
simulate.TASK_STEPS = {"openmm": 80, "torch": 80}
simulate.LADDER_STEPS = 80
options = {"method": "tempering", "rungs": 2} if sys.argv[2] == "tempering" else {}
plan = simulate.SimulationPlan(replicas=3, frames=60, interval=40, equilibration=100, **options)
run = simulate.Simulation(sys.argv[1], ala2(), plan, 1)
run.run(lambda doing, done, total, note: print(done, flush=True))
"""


@pytest.mark.parametrize(("wait", "method"), [(0.0, "langevin"), (0.13, "langevin"), (0.05, "tempering")])
def test_killed_runs_resume_to_the_same_end(tmp_path: Path, wait: float, method: str) -> None:
    command = [sys.executable, "-c", SCRIPT, "b.h5", method]
    whole = [sys.executable, "-c", SCRIPT, "a.h5", method]
    subprocess.run(whole, cwd=tmp_path, check=True, capture_output=True, timeout=200)
    for _ in range(2):
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(18):  # two for each task
                process.stdout.readline()
            time.sleep(wait)
            os.kill(process.pid, signal.SIGKILL)
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=200)
    assert_same(tmp_path / "a.h5", tmp_path / "b.h5")
    if method == "tempering":
        hot = [trajectory.read(tmp_path / name, ladder=True) for name in ("a.ladder.h5", "b.ladder.h5")]
        assert len(hot[0]) == 3 * 30
        np.testing.assert_array_equal(hot[0].positions, hot[1].positions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 7}, "a simulation made with seed 0, but you asked for seed 7;"),
        ({"replicas": 4}, "made with replicas 3, but you asked for replicas 4;"),
        ({"method": "tempering"}, "made with method langevin, but you asked for method tempering;"),
    ],
)
def test_another_plan_is_refused_and_the_file_stays(tmp_path: Path, options: dict, message: str) -> None:
    run(tmp_path / "a.h5", frames=2)
    before = (tmp_path / "a.h5").read_bytes()
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "a.h5", **options)
    assert (tmp_path / "a.h5").read_bytes() == before


def test_another_molecule_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "a.h5", frames=2)
    with pytest.raises(ValueError, match=r"made with .*force field .*, but you asked for .*force field"):
        plan = SimulationPlan(**QUICK)  # type: ignore[arg-type]
        Simulation(tmp_path / "a.h5", molecule("vacuum"), plan)
    with pytest.raises(ValueError, match=r"made with temperature 300.0, but you asked for .* 350.0;"):
        Simulation(tmp_path / "a.h5", molecule("ala2").with_temperature(350.0), plan)


@pytest.mark.parametrize("damage", [b"", b"not a state", b"PK\x03\x04 cut", None])
def test_a_damaged_state_is_refused(tmp_path: Path, damage: bytes | None) -> None:
    run(tmp_path / "a.h5", frames=2)
    state = tmp_path / "a.h5.state"
    state.unlink() if damage is None else state.write_bytes(damage)
    with pytest.raises(OSError, match=r"missing or damaged .* so the run cannot be resumed"):
        run(tmp_path / "a.h5")


def test_imported_files_are_not_continued(tmp_path: Path) -> None:
    trajectory.create(tmp_path / "a.h5", molecule("ala2"), {"command": "import"})
    with pytest.raises(ValueError, match="was not made by `knotflow simulate`"):
        run(tmp_path / "a.h5")


def test_replicas_start_apart(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path / "a.h5", molecule("ala2"), SimulationPlan(**QUICK))  # type: ignore[arg-type]
    assert np.ptp(simulation.state.walkers.positions, axis=0).max() == 0
    simulation.run()
    positions = simulation.state.walkers.positions[:, 0]
    apart = np.linalg.norm(positions[:, None] - positions, axis=-1).mean(-1)
    assert apart[np.triu_indices(3, 1)].min() > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": 300, "method": "tempering"}, "multiple of 250 steps or shorter, got 300"),
        ({"replicas": 0}, "replicas"),
        ({"engine": "gromacs"}, "engine"),
    ],
)
def test_plans_that_make_no_sense(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulationPlan.parse(QUICK | options)
