"""Runs without a thermostat at the end: recorded, scored, interrupted and resumed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knotflow.dynamics import DynamicsConfig, FlowEnergy, Record, Status, drift, protocol, run
from knotflow.energies import OpenMMEnergy
from knotflow.files import read_json
from knotflow.statistics.estimates import student
from tests.analysis.generators import chain
from tests.dynamics.wrong_flows import boxed_chain_generator, exact_chain

CONFIG = DynamicsConfig(replicas=3, dt=5e-4, equilibration=0.02, production=0.03, every=5, seed=4)


def energy() -> OpenMMEnergy:
    return OpenMMEnergy(chain(), workers=1)


def same(a: Record, b: Record) -> bool:
    names = ("time", "potential", "kinetic", "positions", "status", "stopped")
    return all(np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in names)


def test_the_defaults_are_those_of_the_paper() -> None:
    config = DynamicsConfig()
    assert (config.replicas, config.dt, config.friction) == (10, 1e-4, 10.0)
    assert (config.equilibration_steps, config.steps) == (50_000, 100_000)
    with pytest.raises(ValueError, match="production must be a whole number of records"):
        DynamicsConfig.parse({"production": 0.0001})


def test_a_run_records_energies_and_geometry() -> None:
    seen = []
    found = run(energy(), chain(), exact_chain(5), CONFIG, progress=lambda *now: seen.append(now))
    assert [now[:3] for now in seen] == [("dynamics", 5 * i, 100) for i in range(21)]
    kelvin = 300 * float(found.temperature[-1].mean())
    assert seen[-1][3] == f"{kelvin:.0f} K, 3 of 3 whole"
    assert found.time == pytest.approx(np.linspace(0, 0.05, 21)) and found.production == 8
    assert found.positions.shape == (21, 3, 4, 3) and found.degrees_of_freedom == 9
    assert (found.status == Status.MOVING).all() and (found.stopped == -1).all()
    u = energy().energy_and_force(exact_chain(5))[0].numpy()
    assert np.abs(u[:, None] - found.potential[0]).min(0) == pytest.approx(0, abs=1e-4)
    # The thermostat changes the total energy, Newton does not.
    assert np.abs(np.diff(found.total[:9], axis=0)).max() > 0.1
    assert np.abs(found.total[8:] - found.total[8]).max() < 0.05
    score = drift(found)
    assert score.broken == 0 and np.abs(score.slope).max() < 0.1 and score.deviation.max() < 0.003
    assert found.temperature == pytest.approx(2 * found.kinetic / 9)
    assert same(found, run(energy(), chain(), exact_chain(5), CONFIG))


def interrupted(folder: Path, at: int, **options: Any) -> None:
    def interrupt(doing: str, done: float, total: float, note: str = "") -> None:
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(energy(), chain(), exact_chain(5), CONFIG, folder=folder, progress=interrupt, **options)


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_an_interrupted_run_resumes_with_the_same_bits(tmp_path: Path, monkeypatch, seconds: float) -> None:
    monkeypatch.setattr(protocol, "SAVE_EVERY", seconds)
    for moment in (20, 60, 100):
        interrupted(tmp_path, moment)
    resumed = run(energy(), chain(), exact_chain(5), CONFIG, folder=tmp_path)
    assert same(resumed, run(energy(), chain(), exact_chain(5), CONFIG))


def test_checkpoints_of_other_runs_are_refused(tmp_path: Path) -> None:
    interrupted(tmp_path, 60)
    other = CONFIG.model_copy(update={"seed": 5})
    with pytest.raises(ValueError, match=r"made with config\.seed 4, but you asked for config\.seed 5"):
        run(energy(), chain(), exact_chain(5), other, folder=tmp_path)
    with pytest.raises(ValueError, match="on another energy"):
        run(FlowEnergy(boxed_chain_generator(30.0)), chain(), exact_chain(5), CONFIG, folder=tmp_path)
    file = tmp_path / "checkpoint.npz"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"checkpoint\.npz is not a file of dynamics"):
        run(energy(), chain(), exact_chain(5), CONFIG, folder=tmp_path)


def test_a_run_in_a_folder(tmp_path: Path) -> None:
    about = {"model": "abc", "numbers": (1, 2)}
    interrupted(tmp_path, 60, about=about)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.npz"]
    with pytest.raises(ValueError, match=r"checkpoint\.npz holds dynamics made with model abc, but"):
        run(energy(), chain(), exact_chain(5), CONFIG, folder=tmp_path, about={**about, "model": "other"})
    seen: list[float] = []
    found = run(
        energy(), chain(), exact_chain(5), CONFIG, folder=tmp_path, about=about,
        progress=lambda doing, done, total, note: seen.append(done),
    )  # fmt: skip
    assert seen == list(range(60, 101, 5)) and same(found, run(energy(), chain(), exact_chain(5), CONFIG))
    assert {path.name for path in tmp_path.iterdir()} == {"record.npz", "drift.json"}
    assert (found.about["model"], found.about["numbers"], found.about["steps"]) == ("abc", [1, 2], 100)
    assert found.milliseconds_per_step == pytest.approx(10 * found.about["seconds"])

    kept = read_json(tmp_path / "drift.json")
    n, rows = found.degrees_of_freedom, slice(found.production, None)
    slopes = np.polyfit(found.time[rows], found.total[rows], 1)[0] / n
    assert kept["slope"] == pytest.approx(slopes.mean()) and kept["slopes"] == pytest.approx(slopes)
    assert kept["slope_error"] == pytest.approx(student(3) * slopes.std(ddof=1) / math.sqrt(3))
    kelvin = 300 * (2 * found.kinetic[rows] / n).mean(0)
    assert kept["temperature"] == pytest.approx(kelvin.mean()) and kept["broken"] == 0
    assert kept["about"] == found.about

    # Read, not done again; a missing score is made again; another run is refused.
    (tmp_path / "drift.json").unlink()
    other = FlowEnergy(boxed_chain_generator(30.0))
    again = run(other, chain(), exact_chain(5), CONFIG, folder=tmp_path, about=about)
    assert same(again, found) and read_json(tmp_path / "drift.json") == kept
    with pytest.raises(ValueError, match=r"record\.npz holds dynamics made with config\.seed"):
        seeded = CONFIG.model_copy(update={"seed": 5})
        run(energy(), chain(), exact_chain(5), seeded, folder=tmp_path, about=about)
    with pytest.raises(ValueError, match=r"record\.npz holds dynamics made with starting frames"):
        run(energy(), chain(), exact_chain(5, seed=1), CONFIG, folder=tmp_path, about=about)


def test_what_earlier_versions_noted_besides_makes_no_other_run(tmp_path: Path) -> None:
    about = {"energy": "flow", "model": "abc"}
    config = CONFIG.model_copy(update={"equilibration": 0.0})
    noted = {**about, "compiled": "layers"}
    found = run(energy(), chain(), exact_chain(5), config, folder=tmp_path, about=noted)
    assert same(run(energy(), chain(), exact_chain(5), config, folder=tmp_path, about=about), found)


def test_replicas_that_leave_are_distinguished_from_those_that_stay() -> None:
    """Within narrow boxes, without walls, every bond leaves sooner or later."""
    config = CONFIG.model_copy(update={"equilibration": 0.0, "production": 0.1})
    found = run(FlowEnergy(boxed_chain_generator(reach=4.0)), chain(), exact_chain(3), config)
    score = drift(found)
    assert (found.status == Status.OUTSIDE).all() and score.broken == 3
    assert score.reasons == ("outside of the support",) * 3
    # Steps are counted as long as something moves: time per step is that of work, not of waiting.
    assert found.about["steps"] == -(-int(found.stopped.max()) // config.every) * config.every < config.steps
    for replica, stopped in enumerate(found.stopped):
        rows = np.arange(len(found.time)) * config.every
        assert np.array_equal(np.isfinite(found.total[:, replica]), rows < stopped)
        assert np.array_equal(np.isfinite(found.positions[:, replica]).all((1, 2)), rows < stopped)


def test_frames_must_fit() -> None:
    with pytest.raises(ValueError, match="3 replicas need as many frames, got 2"):
        run(energy(), chain(), exact_chain(2), CONFIG)
    with pytest.raises(ValueError, match=r"shape \(n, 4, 3\)"):
        run(energy(), chain(), np.zeros((5, 3, 3)), CONFIG)
    with pytest.raises(ValueError, match="belong together"):
        run(energy(), chain().with_temperature(310.0), exact_chain(3), CONFIG)


def record(total: np.ndarray, status: list[int], production: int = 0) -> Record:
    time = np.linspace(0, 2, len(total))
    shape = total.shape
    return Record(
        time=time,
        potential=total - 1.0,
        kinetic=np.ones(shape),
        positions=np.zeros((*shape, 2, 3), dtype=np.float32),
        status=np.array(status),
        stopped=np.where(np.array(status) == 0, -1, 7),
        production=production,
        degrees_of_freedom=4,
        about={"molecule": "none"},
    )


def test_the_score_finds_slope_and_deviation() -> None:
    time = np.linspace(0, 2, 201)
    total = np.stack([5 + 0.2 * time, 1 + 0.1 * np.sin(40 * math.pi * time)], 1)
    score = drift(record(total, [0, 0]))
    assert score.slope[0] == pytest.approx(0.2 / 4)
    assert score.slope[1] == pytest.approx(np.polyfit(time, total[:, 1], 1)[0] / 4)
    assert score.deviation == pytest.approx(total.std(0, ddof=1) / 4)
    assert score.broken == 0 and score.reasons == (None, None)
    plain = score.plain()
    assert plain["slope"] == pytest.approx(score.slope.mean())
    assert plain["slope_error"] == pytest.approx(student(2) * abs(score.slope[0] - score.slope[1]) / 2)


def test_the_score_counts_what_is_broken() -> None:
    total = np.ones((20, 5))
    total[:8] = 50.0  # before production: of no account
    total[15, 1] = 3.2  # more than half the degrees of freedom away, and back
    total[15, 2] = 2.9
    total[12:, 3] = np.nan
    total[1:, 4] = np.nan
    score = drift(record(total, [0, 0, 0, Status.BROKEN, Status.NOT_FINITE], production=8))
    assert score.reasons == (None, "a drifted total energy", None, "a broken bond", "not a finite number")
    assert score.broken == 3 and score.slope[3] == pytest.approx(0) and math.isnan(score.slope[4])
    plain = score.plain()
    assert plain["broken"] == 3 and plain["slopes"][4] is None
    assert plain["reasons"] == {"a drifted total energy": 1, "a broken bond": 1, "not a finite number": 1}
    everything = drift(record(np.full((20, 2), np.nan), [1, 1]))
    assert everything.plain()["slope"] is None and everything.broken == 2


def test_records_are_read_as_written(tmp_path: Path) -> None:
    total = np.random.default_rng(0).random((20, 2))
    total[5:, 1] = np.nan
    written = record(total, [0, 2], production=3)
    written.save(tmp_path / "record.npz")
    found = Record.load(tmp_path / "record.npz")
    assert same(written, found) and found.about == {"molecule": "none"}
    assert (found.production, found.degrees_of_freedom) == (3, 4)
    with pytest.raises(OSError):
        Record.load(tmp_path / "missing.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="is not a file of dynamics"):
        Record.load(tmp_path / "other.npz")
