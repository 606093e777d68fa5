"""Tempering runs keep the frames of all temperatures, in two files that belong together."""

from pathlib import Path

import numpy as np
import pytest
import torch

from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.molecules.system import MolecularSystem
from knotflow.molecules.units import BOLTZMANN
from knotflow.simulation import run as simulate
from knotflow.simulation.plan import SimulationPlan
from knotflow.simulation.run import Simulation
from knotflow.simulation.tasks import Task, Walkers, run_task
from knotflow.simulation.torch_engine import TorchEngine
from knotflow.storage import trajectory
from tests.molecules.molecules import DIMER_CONSTANT, DIMER_LENGTH, molecule

QUICK = {
    "method": "tempering", "replicas": 2, "frames": 7, "interval": 20, "equilibration": 50,
    "highest_temperature": 500.0, "rungs": 4,
}  # fmt: skip
COLUMNS = (*trajectory.COLUMNS, "temperature")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two frames, of which every third is kept at all temperatures."""
    monkeypatch.setattr(simulate, "SPREAD_STEPS", 100)
    monkeypatch.setattr(simulate, "TASK_STEPS", {"openmm": 160, "torch": 160})
    monkeypatch.setattr(simulate, "LADDER_STEPS", 60)


def run(path: Path, system: MolecularSystem | None = None, **options: object) -> Simulation:
    plan = SimulationPlan.parse(QUICK | options)
    simulation = Simulation(path, system or molecule("ala2"), plan, 1)
    simulation.run()
    return simulation


def assert_same(a: Path, b: Path) -> None:
    for name, ladder in (("", False), ("above", True)):
        left, right = (
            trajectory.read(trajectory.ladder_file(path) if ladder else path, ladder=ladder)
            for path in (a, b)
        )
        for column in COLUMNS if ladder else trajectory.COLUMNS:
            np.testing.assert_array_equal(getattr(left, column), getattr(right, column), f"{name} {column}")


def test_every_temperature_has_its_frames_and_openmm_finds_their_energies(tmp_path: Path) -> None:
    simulation = run(tmp_path / "a.h5")
    assert simulation._frames_per_block == 2 and simulation.ladder_every == 3
    assert simulation.ladder_path == tmp_path / "a.ladder.h5"
    below = trajectory.read(simulation.path)
    above = trajectory.read(simulation.ladder_path, ladder=True)
    assert len(below) == 2 * 7 and below.temperature is None and above.temperature is not None
    rows = zip(above.replica.tolist(), above.frame.tolist(), above.temperature.tolist(), strict=True)
    # Blocks of two frames, in which frames 2 and 5 are the last or first: replica after replica in each.
    assert list(rows) == [(r, f, t) for f in (2, 5) for r in (0, 1) for t in simulation.ladder[1:]]
    np.testing.assert_allclose(above.time, 0.02 * (above.frame + 1))
    for frames in (below, above):
        with OpenMMEnergy(simulation.system, workers=1) as energy:
            u, f = energy.energy_and_force(torch.tensor(frames.positions.astype(np.float64)))
        assert np.abs(frames.energies / simulation.system.kT - u.numpy()).max() < 1e-3
        assert np.abs(frames.forces / simulation.system.kT - f.numpy()).max() < 0.05
    # At the same moment, no two temperatures have the same walker.
    moment = np.concatenate([p.positions[(p.replica == 1) & (p.frame == 5)] for p in (below, above)])
    assert len(moment) == 4 and len(np.unique(moment[:, 0, 0])) == 4
    info = trajectory.open_info(simulation.ladder_path, ladder=True)
    assert info.provenance["plan"] == trajectory.open_info(simulation.path).provenance["plan"]
    assert simulation.bytes_of_frames[1] == 2 * 2 * 3 * (24 * 22 + 40)


def test_a_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    """Extended; and killed after frames were written, but before the state."""
    whole = run(tmp_path / "a.h5")
    run(tmp_path / "b.h5", frames=2)
    older = (tmp_path / "b.h5.state").read_bytes()
    run(tmp_path / "b.h5", frames=4)
    (tmp_path / "b.h5.state").write_bytes(older)
    continued = run(tmp_path / "b.h5")
    assert_same(tmp_path / "a.h5", tmp_path / "b.h5")
    np.testing.assert_array_equal(continued.state.tried, whole.state.tried)
    assert list(whole.state.tried) == [6, 8, 6]  # of two ladders: 7 attempts, and one while equilibrating
    assert (continued.state.accepted <= continued.state.tried).all()


def test_a_run_killed_at_its_very_beginning_gets_its_ladder_file(tmp_path: Path) -> None:
    run(tmp_path / "a.h5")
    begun = Simulation(tmp_path / "b.h5", molecule("ala2"), SimulationPlan.parse(QUICK), 1)
    trajectory.create(begun.path, begun.system, begun._provenance)
    begun.state.save(begun.state_path)
    run(tmp_path / "b.h5")
    assert_same(tmp_path / "a.h5", tmp_path / "b.h5")


def test_a_ladder_file_that_is_missing_or_of_another_run_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "a.h5", frames=4)
    run(tmp_path / "b.h5", frames=4, seed=1)
    hot = tmp_path / "a.ladder.h5"
    content = hot.read_bytes()
    hot.unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.ladder\.h5 with the frames above .* is missing; put it"):
        run(tmp_path / "a.h5")
    hot.write_bytes((tmp_path / "b.ladder.h5").read_bytes())
    with pytest.raises(ValueError, match=r"a\.ladder\.h5 does not belong to a\.h5; put the right one"):
        run(tmp_path / "a.h5")
    hot.write_bytes(content)
    assert run(tmp_path / "a.h5").finished
    (tmp_path / "c.ladder.h5").write_bytes(content)
    with pytest.raises(FileExistsError, match=r"c\.ladder\.h5 exists already"):
        run(tmp_path / "c.h5")
    assert not (tmp_path / "c.h5").exists()


def test_runs_of_earlier_versions_go_on_without_a_ladder_file(tmp_path: Path) -> None:
    run(tmp_path / "a.h5")
    old = Simulation(tmp_path / "b.h5", molecule("ala2"), SimulationPlan.parse(QUICK), 1)
    made = {key: value for key, value in old._provenance.items() if key != "ladder_every"}
    made["plan"] = {key: value for key, value in made["plan"].items() if value is not None}
    trajectory.create(old.path, old.system, made)
    old.state.save(old.state_path)
    assert run(tmp_path / "b.h5").ladder_every == 0
    assert not (tmp_path / "b.ladder.h5").exists()
    np.testing.assert_array_equal(
        trajectory.read(tmp_path / "a.h5").positions, trajectory.read(tmp_path / "b.h5").positions
    )


def test_mean_energies_are_those_of_their_temperatures() -> None:
    r"""The bond of the dimer has the density b² exp(-U/kT): its mean energy, about kT/2, by quadrature."""
    system, temperatures, groups = molecule("dimer"), (300.0, 500.0, 900.0), 400
    bond = np.linspace(0.1, 0.2, 2001)
    u = DIMER_CONSTANT / 2 * (bond - DIMER_LENGTH) ** 2
    weights = bond**2 * np.exp(-u / (BOLTZMANN * np.array(temperatures)[:, None]))
    weights /= weights.sum(1, keepdims=True)
    # From exact draws on, so that nothing has to be equilibrated: dynamics and exchanges must keep them.
    start, random = Walkers.at(system.positions, groups, 3), np.random.default_rng(0)
    for rung, weight in enumerate(weights):
        start.positions[:, rung, 1, 0] = random.choice(bond, groups, p=weight)
    task = Task(start, temperatures, 6, 100, 25, 0, 1, thermalise=True, hot=range(6))
    done = run_task(TorchEngine(system, compiled=False), task)
    assert done.hot is not None and done.exchanges.accepted.min() > 0
    energies = np.concatenate([done.cold.energies, done.hot.energies], 2).mean(1)
    error = 4 * energies.std(0) / np.sqrt(groups)
    assert (np.abs(energies.mean(0) - weights @ u) < error).all()
    assert (error < 0.2 * weights @ u).all() and (np.diff(energies.mean(0)) > 0).all()
