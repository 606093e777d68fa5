"""Plans: how many replicas and frames a time makes."""

import numpy as np
import pytest

from knotflow.simulation.plan import SimulationPlan, groups_per_task, usual_replicas
from knotflow.simulation.run import Simulation
from tests.molecules.molecules import molecule


@pytest.mark.parametrize(
    ("engine", "ns", "rungs", "n_atoms", "expected"),
    [
        ("openmm", 8.0, 1, 22, 8),
        ("openmm", 500.0, 8, 22, 8),
        ("torch", 8.0, 1, 22, 512),
        ("torch", 8.0, 8, 22, 16),  # half a nanosecond each
        ("torch", 0.1, 8, 22, 8),
        ("torch", 500.0, 8, 22, 64),  # four tasks of 128 walkers
        ("torch", 40.0, 11, 42, 16),  # 176 walkers, not 5,632
        ("torch", 40.0, 13, 62, 16),
    ],
)
def test_usual_replicas(engine: str, ns: float, rungs: int, n_atoms: int, expected: int) -> None:
    assert usual_replicas(engine, ns, rungs, n_atoms) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("n_atoms", [22, 32, 42, 62, 150])
@pytest.mark.parametrize("rungs", [2, 5, 8, 11, 13, 20])
def test_tasks_are_equal_and_nearly_full(n_atoms: int, rungs: int) -> None:
    for ns in (1.0, 5.0, 8.0, 40.0, 1000.0):
        replicas = usual_replicas("torch", ns, rungs, n_atoms)
        size = groups_per_task("torch", replicas, rungs, n_atoms)
        assert replicas % size == 0 and replicas >= 8
    walkers = size * rungs
    assert walkers <= max(rungs, 3 * 64_000 // n_atoms**2 // 2, 24)
    assert walkers / (16 * np.ceil(walkers / 16)) >= 0.62


def test_time_is_that_of_the_target_temperature() -> None:
    plan = SimulationPlan.of_times(
        8.0, molecule("ala2"), every=0.5, engine="torch", method="tempering", equilibration=10.0
    )
    assert (plan.replicas, plan.frames, plan.interval) == (16, 1000, 500)
    simulation = Simulation("none.h5", molecule("ala2"), plan)
    assert simulation.walkers == 16 * len(simulation.ladder) == 128
    assert simulation.steps == 128 * (20_000 + 10_000 + 500_000) and simulation.steps_done == 0
    assert simulation.ladder_every == 1
    often = Simulation("none.h5", molecule("ala2"), plan.model_copy(update={"interval": 50}))
    assert often.ladder_every == 2  # ten per ps at most


def test_a_longer_time_keeps_the_replicas_of_the_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from knotflow.simulation import run as simulate

    monkeypatch.setattr(simulate, "SPREAD_STEPS", 10)
    short = {"every": 0.01, "equilibration": 0.01, "workers": 1}
    Simulation.planned(tmp_path / "a.h5", molecule("ala2"), 2e-5, replicas=2, **short).run()
    longer = Simulation.planned(tmp_path / "a.h5", molecule("ala2"), 4e-5, **short)
    assert (longer.plan.replicas, longer.plan.frames, longer.state.frames) == (2, 2, 1)
    with pytest.raises(ValueError, match="made with replicas 2, but you asked for replicas 4"):
        Simulation.planned(tmp_path / "a.h5", molecule("ala2"), 4e-5, replicas=4, **short)


def test_rungs_can_be_given() -> None:
    plan = SimulationPlan(method="tempering", rungs=5)
    ladder = plan.ladder(molecule("ala2"))
    assert len(ladder) == 5 and (ladder[0], ladder[-1]) == (300.0, 1000.0)
    with pytest.raises(ValueError, match="rungs"):
        SimulationPlan.parse({"rungs": 1})
