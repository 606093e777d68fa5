"""Whole simulations on energies other than force fields."""

from pathlib import Path

import numpy as np
import pytest
import torch

from knotflow.energies import force_field, read_energy, without_force_field
from knotflow.molecules.system import MolecularSystem, ala2
from knotflow.simulation.engines import engine_of
from knotflow.simulation.plan import SimulationPlan
from knotflow.simulation.run import Simulation
from knotflow.storage import trajectory
from tests.bare_molecules import bare

QUICK = {"frames": 4, "interval": 10, "equilibration": 20, "replicas": 3}


def water(energy: str, **more: int) -> MolecularSystem:
    return without_force_field("water", bare("H2O"), read_energy(energy, **more) or {})


@pytest.mark.parametrize("method", ["langevin", "tempering"])
@pytest.mark.parametrize("energy", ["xtb", "module:tests.energy_factories:springs"])
def test_frames_have_the_energy_they_should(tmp_path: Path, energy: str, method: str) -> None:
    system = water(energy)
    plan = SimulationPlan.parse({**QUICK, "engine": engine_of(system), "method": method, "rungs": 2})
    simulation = Simulation(tmp_path / "a.h5", system, plan, workers=2)
    assert simulation.seconds_per_step and simulation.seconds_per_step > 0
    simulation.run()
    assert simulation.finished and simulation.steps_done == simulation.steps
    found, info = trajectory.read(tmp_path / "a.h5"), trajectory.open_info(tmp_path / "a.h5")
    assert info.system.energy == system.energy and len(found) == 12
    with force_field(info.system, workers=1) as computed:
        u, force = computed.energy_and_force(torch.tensor(found.positions.astype(np.float64)))
    np.testing.assert_allclose(found.energies, u * system.kT, atol=1e-3)  # positions are rounded in files
    np.testing.assert_allclose(found.forces, force * system.kT, atol=1.0)


def test_a_run_continues_though_the_zero_was_found_anew(tmp_path: Path) -> None:
    system, plan = water("xtb"), SimulationPlan.parse({**QUICK, "engine": "xtb"})
    Simulation(tmp_path / "a.h5", system, plan, workers=1).run()
    energy = dict(system.energy or {}, zero_kj=system.zero_kj + 0.1)
    other = MolecularSystem.parse({**system.plain(), "energy": energy})
    longer = Simulation(tmp_path / "a.h5", other, plan.model_copy(update={"frames": 5}), workers=1)
    assert longer.state.frames == 4 and longer.system.zero_kj == system.zero_kj
    charged = MolecularSystem.parse({**system.plain(), "energy": {**energy, "charge": 2}})
    with pytest.raises(ValueError, match="force field"):
        Simulation(tmp_path / "a.h5", charged, plan)


def test_engines_are_chosen_by_the_energy() -> None:
    assert engine_of(ala2()) == "openmm" and engine_of(ala2(), "torch") == "torch"
    system = water("xtb")
    assert engine_of(system) == "xtb"
    assert SimulationPlan.of_times(0.008, system).engine == "xtb"
    for wanted, of, kind in (("openmm", system, "xtb"), ("torch", system, "xtb"), ("ase", ala2(), "a force")):
        with pytest.raises(ValueError, match=f"the engine {wanted} cannot compute .* which is {kind}"):
            engine_of(of, wanted)  # type: ignore[arg-type]


def test_a_calculator_that_fails_ends_the_run_with_its_words(tmp_path: Path) -> None:
    system = water("ase:tests.energy_factories:fragile")
    system.positions[0, 0] += 0.2  # where the calculator raises
    plan = SimulationPlan.parse({**QUICK, "engine": "ase"})
    with pytest.raises(ValueError, match="fragile failed on frame 1 of 1: ArithmeticError: no convergence"):
        Simulation(tmp_path / "a.h5", system, plan, workers=1).run()
