"""``knotflow simulate`` as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import mdtraj
import pytest
from openmm import app, unit

from knotflow.molecules.system import ala2
from knotflow.simulation.run import Simulation
from knotflow.statistics.estimates import Estimate
from knotflow.storage import trajectory
from tests.bare_molecules import bare
from tests.cli.test_commands import run

QUICK = ["--replicas", "2", "--ns", "0.004", "--equilibration", "0.2"]


def test_frames_of_ala2(tmp_path: Path) -> None:
    done = run(tmp_path, "simulate", "--out", "new/a.h5", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "mean energy, kT" in done.stdout and "fraction with phi > 0, ALA2" in done.stdout
    assert "spreading: " in done.stderr and "sampling: done in " in done.stderr
    frames = trajectory.read(tmp_path / "new/a.h5")
    assert len(frames) == 4 and frames.positions.shape == (4, 22, 3)
    loaded = mdtraj.load(str(tmp_path / "new/a.h5"))
    assert loaded.n_frames == 4 and loaded.topology.n_bonds == 21
    again = run(tmp_path, "simulate", "--config", "new/a.h5.toml", "--json")
    assert again.returncode == 0 and "is complete already" in again.stderr
    found = json.loads(again.stdout)
    assert (found["file"], found["frames"], found["replicas"]) == ("new/a.h5", 4, 2)
    kT = trajectory.open_info(tmp_path / "new/a.h5").system.kT
    assert found["energy"]["value"] == pytest.approx(frames.energies.mean() / kT, rel=1e-6)
    assert str(Estimate.read(found["energy"])) in done.stdout and found["exchange_rates"] == []
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.h5", "a.h5.state", "a.h5.toml"]


TEMPERING = ["--method", "tempering", "--rungs", "2", "--highest", "330", "--equilibration", "0.1"]


def begun(path: Path, *, earlier: bool = False) -> None:
    """A tempering run that has its spread and equilibration behind it; ``earlier``: of an earlier version."""
    settings = {"method": "tempering", "rungs": 2, "highest_temperature": 330.0, "equilibration": 0.1}
    run = Simulation.planned(path, ala2(), 0.004, replicas=2, **settings)
    made = {key: value for key, value in run._provenance.items() if not earlier or key != "ladder_every"}
    trajectory.create(path, run.system, made)
    run.state.block = 2
    run.state.save(run.state_path)


def test_tempering_says_its_cost_and_keeps_all_temperatures(tmp_path: Path) -> None:
    begun(tmp_path / "a.h5")
    done = run(tmp_path, "simulate", "--out", "a.h5", *TEMPERING, "--ns", "0.016", "--json")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "2 ladders, engine openmm, 16 frames in all temperatures of a ladder: 300, 330 K" in said
    assert "4 walkers, 0.0 ns of all of them together, roughly " in said
    assert "in a.ladder.h5 (frames at 330 to 330 K every 1 ps)" in said
    assert "exchanges " in said and " round trip" in said and " left, " in said
    found = json.loads(done.stdout)
    assert found["ladder_file"] == "a.ladder.h5" and found["ladder"] == [300.0, 330.0]
    assert len(found["exchange_rates"]) == 1 and found["exchange_rates"][0] > 0
    frames = trajectory.read(tmp_path / "a.ladder.h5", ladder=True)
    assert len(frames) == found["frames"] == 16 and set(frames.temperature.tolist()) == {330.0}


def test_tempering_of_an_earlier_version_goes_on_as_it_was(tmp_path: Path) -> None:
    begun(tmp_path / "a.h5", earlier=True)
    done = run(tmp_path, "simulate", "--out", "a.h5", *TEMPERING, "--ns", "0.004")
    assert done.returncode == 0, done.stderr
    assert "earlier version, so only frames at 300 K are kept" in " ".join(done.stderr.split())
    assert not (tmp_path / "a.ladder.h5").exists() and len(trajectory.read(tmp_path / "a.h5")) == 4


@pytest.mark.slow
def test_torch_engine_with_tempering(tmp_path: Path) -> None:
    arguments = ["--engine", "torch", "--method", "tempering", "--replicas", "4", "--ns", "0.008"]
    done = run(tmp_path, "simulate", "--out", "a.h5", *arguments, "--equilibration", "1", "--highest", "400")
    assert done.returncode == 0, done.stderr
    assert "accepted exchanges" in done.stdout and "round trips" in done.stdout
    assert "torch.compile failed" not in done.stderr
    assert len(trajectory.read(tmp_path / "a.h5")) == 8
    assert len(trajectory.read(tmp_path / "a.ladder.h5", ladder=True)) == 8 * 2


def test_ctrl_c_keeps_what_was_written(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "knotflow"), "simulate", "--out", "a.h5"]
    options = ["--replicas", "1", "--ns", "10", "--equilibration", "0.1", "--workers", "1"]
    process = subprocess.Popen(
        [*command, *options], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    state = tmp_path / "a.h5.state"
    rows = 0
    while not rows and time.monotonic() < deadline:
        time.sleep(0.2)
        rows = trajectory.open_info(tmp_path / "a.h5").n_frames if state.exists() else 0
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert rows > 0
    assert process.returncode == 130, errors
    assert "run the same command again to continue" in " ".join(errors.split()) and not out
    assert "Traceback" not in errors and (tmp_path / "a.h5.toml").exists()
    assert trajectory.open_info(tmp_path / "a.h5").n_frames >= rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ns", "0.001"], "at least one frame of 1 ps, 0.008 ns in all, got 0.001"),
        (["--ns", "nan"], "at least one frame"),
        (["--every", "0.0015"], "every must be a positive multiple of the step, 1 fs"),
        (["--equilibration", "-1"], "equilibration must be a positive multiple of the step"),
        (["--out", "a.dcd"], "--out must be a file ending in .h5, got 'a.dcd'"),
        (["--molecule", "none.pdb"], "none.pdb"),
        (["--peptide", "AXA"], "X"),
        (["--temperature", "-3"], "temperature must be a positive number of K"),
        (["--method", "tempering", "--highest", "200"], "must be above the lowest, 300 K, got 200 K"),
        (["--method", "tempering", "--every", "0.3"], "multiple of 250 steps or shorter, got 300"),
        (["--peptide", "A", "--force-field", "amber14-all.xml", "--engine", "torch"], "CustomGBForce"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(tmp_path, "simulate", *arguments)
    assert done.returncode == 2, done.stdout
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_water_by_xtb(tmp_path: Path) -> None:
    structure = bare("H2O")
    with (tmp_path / "w.pdb").open("w") as file:
        app.PDBFile.writeFile(structure.topology, structure.positions * unit.nanometer, file)
    # Not HOH, which files of other molecules contain as a solvent.
    (tmp_path / "w.pdb").write_text((tmp_path / "w.pdb").read_text().replace("HOH", "MOL"))
    xtb = ["simulate", "--molecule", "w.pdb", "--energy", "xtb", "--out", "w.h5"]
    quick = ["--replicas", "2", "--ns", "0.0001", "--every", "0.01", "--equilibration", "0.01"]
    done = run(tmp_path, *xtb, *quick, "--json")
    assert done.returncode == 0, done.stderr
    assert "2 replicas, engine xtb, 10 frames in all" in done.stderr
    assert 0 < json.loads(done.stdout)["energy"]["value"] < 30
    again = run(tmp_path, "simulate", "--config", "w.h5.toml")
    assert again.returncode == 0 and "is complete already" in again.stderr
    refused = run(tmp_path, *xtb, "--engine", "openmm")
    assert refused.returncode == 2
    assert "the engine openmm cannot compute the energy of w" in " ".join(refused.stderr.split())


def test_truncated_file_is_said_and_kept(tmp_path: Path) -> None:
    assert run(tmp_path, "simulate", "--out", "a.h5", *QUICK).returncode == 0
    whole = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole[: len(whole) // 2])
    done = run(tmp_path, "simulate", "--out", "a.h5", *QUICK)
    assert done.returncode == 2 and "cut off or damaged" in done.stderr
    assert (tmp_path / "a.h5").stat().st_size == len(whole) // 2


def test_another_seed_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path, "simulate", "--out", "a.h5", *QUICK).returncode == 0
    done = run(tmp_path, "simulate", "--out", "a.h5", *QUICK, "--seed", "5")
    assert done.returncode == 2 and "made with seed 0, but you asked for" in " ".join(done.stderr.split())
