"""All engines sample what they should; blocks depend on nothing but what they are given."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.molecules.units import BOLTZMANN
from knotflow.simulation import engines
from knotflow.simulation.energy_engine import EnergyEngine
from knotflow.simulation.engines import Engine, OpenMMEngine
from knotflow.simulation.tasks import Outcome, Task, Walkers, run_task
from knotflow.simulation.torch_engine import TorchEngine
from tests.molecules.molecules import DIMER_CONSTANT, DIMER_LENGTH, molecule

ENGINES = ["openmm", "torch", "any energy"]


def make(engine: str, name: str) -> Engine:
    system = molecule(name)
    if engine == "any energy":
        # The spring once more as a module: the torch force field takes much longer for it.
        energy = {
            "kind": "module",
            "source": f"{__name__}:Spring",
            "energy_unit": "kJ/mol",
            "length_unit": "nm",
        }
        return EnergyEngine(replace(system, energy=energy) if name == "dimer" else system)
    return OpenMMEngine(system, "Reference") if engine == "openmm" else TorchEngine(system, compiled=False)


class Spring(torch.nn.Module):
    """The energy of the dimer."""

    def forward(self, positions: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        length = (positions[:, 0] - positions[:, 1]).norm(dim=-1)
        return 0.5 * DIMER_CONSTANT * (length - DIMER_LENGTH) ** 2


def task(name: str, groups: int, **options: object) -> Task:
    standard = {
        "walkers": Walkers.at(molecule(name).positions, groups, 1),
        "temperatures": (300.0,),
        "frames": 2,
        "interval": 20,
        "exchange": 20,
        "attempts": 0,
        "seed": 1,
        "thermalise": True,
    }
    return Task(**(standard | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("ladder", [(300.0,), (300.0, 400.0)])
@pytest.mark.parametrize("engine", ENGINES)
def test_spring_has_its_known_distribution(engine: str, ladder: tuple[float, ...]) -> None:
    r"""Bond lengths of the dimer have the density b² exp(-k (b - b0)² / 2kT); its motion has 300 K."""
    groups = 400
    grid = np.linspace(0.1, 0.2, 2001)
    walkers, random = Walkers.at(molecule("dimer").positions, groups, len(ladder)), np.random.default_rng(0)
    # From exact draws on, so that nothing has to be equilibrated: 2 ps let errors grow, if there are any.
    for rung in reversed(range(len(ladder))):
        spring = DIMER_CONSTANT / (BOLTZMANN * ladder[rung])
        density = grid**2 * np.exp(-spring * (grid - DIMER_LENGTH) ** 2 / 2)
        density /= density.sum()
        walkers.positions[:, rung, 1, 0] = random.choice(grid, groups, p=density)
    mean = (density * grid).sum()
    deviation = math.sqrt((density * (grid - mean) ** 2).sum())
    todo = task("dimer", groups, walkers=walkers, temperatures=ladder, frames=20, interval=100, exchange=100)
    done = run_task(make(engine, "dimer"), todo)
    positions = done.cold.positions.astype(np.float64)
    lengths = np.linalg.norm(positions[..., 0, :] - positions[..., 1, :], axis=-1)
    by_replica = lengths.mean(1)
    assert by_replica.mean() == pytest.approx(mean, abs=4 * by_replica.std() / math.sqrt(groups))
    spread = ((lengths - mean) ** 2).mean(1)
    assert spread.mean() == pytest.approx(deviation**2, abs=4 * spread.std() / math.sqrt(groups))
    motion = done.temperatures.mean(1)
    assert motion.mean() == pytest.approx(300.0, abs=4 * motion.std() / math.sqrt(groups))


@pytest.mark.parametrize("engine", ENGINES)
def test_energies_and_forces_belong_to_the_positions(engine: str) -> None:
    system = molecule("ala2")
    done = run_task(make(engine, "ala2"), task("ala2", 3))
    with OpenMMEnergy(system, workers=1) as energy:
        u, f = energy.energy_and_force(torch.tensor(done.cold.positions.astype(np.float64)))
    # Positions are kept in float32, where stiff bonds turn 1e-8 nm into 0.01 kJ/mol/nm.
    assert np.abs(done.cold.energies / system.kT - u.numpy()).max() < 1e-3
    assert np.abs(done.cold.forces / system.kT - f.numpy()).max() < 0.05
    assert np.abs(np.einsum("a,gfrax->gfrx", system.masses, done.cold.positions)).max() < 1e-3


def same(a: Outcome, b: Outcome) -> bool:
    return (
        np.array_equal(a.cold.positions, b.cold.positions)
        and np.array_equal(a.cold.energies, b.cold.energies)
        and np.array_equal(a.walkers.velocities, b.walkers.velocities)
        and np.array_equal(a.walkers.rungs, b.walkers.rungs)
    )


@pytest.mark.parametrize("ladder", [(300.0,), (300.0, 360.0, 430.0)])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_block_depends_only_on_its_task(engine: str, ladder: tuple[float, ...]) -> None:
    walkers = Walkers.at(molecule("ala2").positions, 2, len(ladder))
    todo = task("ala2", 2, walkers=walkers, temperatures=ladder, exchange=10)
    fresh, used = make(engine, "ala2"), make(engine, "ala2")
    run_task(used, task("ala2", 2, seed=99))
    first, second = run_task(fresh, todo), run_task(used, todo)
    assert same(first, second)
    assert not same(first, run_task(used, task("ala2", 2, walkers=walkers, temperatures=ladder, seed=2)))


@pytest.mark.parametrize("engine", ENGINES)
def test_reports_count_all_steps_and_change_nothing(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[Outcome, list[int]]:
        made, reported = make(engine, "ala2"), list[int]()
        made.report = reported.append
        return run_task(made, task("ala2", 2)), reported

    whole, once = run()
    monkeypatch.setattr(engines, "STEPS_AT_ONCE", 7)
    parts, often = run()
    assert sum(once) == sum(often) == 2 * 2 * 20 and len(often) >= 2 * 3
    np.testing.assert_array_equal(whole.walkers.positions, parts.walkers.positions)
    np.testing.assert_array_equal(whole.walkers.velocities, parts.walkers.velocities)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_walker_has_its_own_temperature(engine: str) -> None:
    ladder = (100.0, 300.0, 900.0)
    walkers = Walkers.at(molecule("dimer").positions, 60, 3)
    runner = make(engine, "dimer")
    runner.seed(5)
    shape = walkers.positions.reshape(-1, 2, 3)
    now = runner.advance(shape, np.zeros_like(shape), np.tile(ladder, 60), 3000)
    by_rung = now.temperatures.reshape(60, 3).mean(0)
    # Six degrees of freedom for each: relative error sqrt(2 / 360).
    np.testing.assert_allclose(by_rung, ladder, rtol=4 * math.sqrt(2 / 360))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_flies_apart_is_noticed(engine: str) -> None:
    wild = Walkers.at(molecule("ala2").positions, 1, 1)
    wild.positions[0, 0, 0] = wild.positions[0, 0, 21] + 1e-3
    with pytest.raises(FloatingPointError):
        run_task(make(engine, "ala2"), task("ala2", 1, walkers=wild, interval=200, exchange=200))
