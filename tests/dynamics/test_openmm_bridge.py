"""Flows inside of OpenMM: the same numbers, units, restraints, copies, and clear ends."""

import copy
import io

import numpy as np
import openmm
import pytest
import torch
from openmm import app, unit

import knotflow as kf
from knotflow.dynamics import openmm_force
from knotflow.energies import TorchForceField
from knotflow.molecules.system import MolecularSystem
from tests.analysis.generators import chain
from tests.dynamics.wrong_flows import bent_chain_generator, boxed_chain_generator, exact_chain


def system_of(n: int = 4) -> openmm.System:
    system = openmm.System()
    for _ in range(n):
        system.addParticle(12.0)
    return system


def context_of(system: openmm.System, platform: str = "Reference") -> openmm.Context:
    integrator = openmm.VerletIntegrator(0.0005)
    return openmm.Context(system, integrator, openmm.Platform.getPlatformByName(platform))


def evaluate(context: openmm.Context, x: torch.Tensor) -> tuple[float, np.ndarray]:
    context.setPositions(x.numpy())
    state = context.getState(energy=True, forces=True)
    energy = state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)
    force = state.getForces(asNumpy=True).value_in_unit(unit.kilojoule_per_mole / unit.nanometer)
    return energy, np.asarray(force)


def test_energies_and_forces_are_those_of_the_model() -> None:
    model = bent_chain_generator()
    system = system_of()
    system.addForce(kf.openmm_force(model, system))
    context = context_of(system)
    kT = 0.00831446261815324 * 300  # kJ/mol
    for x in exact_chain(5):
        energy, force = evaluate(context, x)
        assert energy == pytest.approx(-kT * float(model.log_prob(x)), rel=1e-12)
        np.testing.assert_allclose(force, kT * model.force(x).numpy(), rtol=1e-10, atol=1e-8)


def test_float32_models_on_the_cpu_platform() -> None:
    model = bent_chain_generator().float()
    system = system_of()
    system.addForce(openmm_force(model))
    context = context_of(system, "CPU")
    for x in exact_chain(3):
        energy, force = evaluate(context, x)
        u = model.energy(x.float())
        assert energy == pytest.approx(chain().kT * float(u), rel=1e-6)
        np.testing.assert_allclose(force, chain().kT * model.force(x.float()).numpy(), rtol=1e-4, atol=1e-2)


def test_forces_are_derivatives_of_the_energy_in_openmm() -> None:
    system = system_of()
    system.addForce(openmm_force(bent_chain_generator()))
    context = context_of(system)
    x = exact_chain(1)[0]
    _, force = evaluate(context, x)
    step = 1e-5
    for atom, axis in [(0, 0), (1, 2), (3, 1)]:
        up, down = x.clone(), x.clone()
        up[atom, axis] += step
        down[atom, axis] -= step
        slope = (evaluate(context, up)[0] - evaluate(context, down)[0]) / (2 * step)
        assert -slope == pytest.approx(force[atom, axis], rel=1e-5, abs=1e-3)


def test_a_simulation_with_reporters_conserves_energy() -> None:
    molecule = MolecularSystem.parse(bent_chain_generator().molecule)
    system = system_of()
    system.addForce(openmm_force(bent_chain_generator(), system))
    simulation = app.Simulation(
        molecule.topology.to_openmm(), system, openmm.VerletIntegrator(0.0002),
        openmm.Platform.getPlatformByName("Reference"),
    )  # fmt: skip
    simulation.context.setPositions(molecule.positions)
    simulation.context.setVelocitiesToTemperature(300, 1)
    table = io.StringIO()
    simulation.reporters.append(app.StateDataReporter(table, 10, step=True, totalEnergy=True))
    simulation.step(100)
    rows = np.loadtxt(table.getvalue().splitlines(), delimiter=",", comments="#")
    assert rows[-1, 0] == 100 and len(rows) == 10
    # Verlet's energy swings by the square of the step and does not drift.
    assert np.ptp(rows[:, 1]) < 0.3


def test_a_restraint_adds_up() -> None:
    model, x = bent_chain_generator(), exact_chain(1)[0]
    system = system_of()
    system.addForce(openmm_force(model))
    restraint = openmm.CustomBondForce("0.5 * k * (r - r0)^2")
    restraint.addGlobalParameter("k", 1000.0)
    restraint.addGlobalParameter("r0", 0.2)
    restraint.addBond(0, 3)
    restraint.setForceGroup(1)
    system.addForce(restraint)
    context = context_of(system)
    both, _ = evaluate(context, x)
    distance = float((x[0] - x[3]).norm())
    assert both == pytest.approx(float(model.energy(x)) * chain().kT + 500 * (distance - 0.2) ** 2, rel=1e-10)
    alone = context.getState(energy=True, groups={0}).getPotentialEnergy()._value
    assert alone == pytest.approx(float(model.energy(x)) * chain().kT, rel=1e-12)


def test_only_some_particles_are_the_molecule() -> None:
    model, x = bent_chain_generator(), exact_chain(1)[0]
    system = system_of(6)
    system.addForce(openmm_force(model, system, particles=[5, 1, 2, 3]))
    everything = torch.zeros(6, 3, dtype=x.dtype)
    everything[[5, 1, 2, 3]] = x
    energy, force = evaluate(context_of(system), everything)
    assert energy == pytest.approx(chain().kT * float(model.energy(x)), rel=1e-12)
    assert (force[[0, 4]] == 0).all()
    np.testing.assert_allclose(
        force[[5, 1, 2, 3]], chain().kT * model.force(x).numpy(), rtol=1e-10, atol=1e-8
    )


def test_systems_are_written_read_and_copied_with_the_model() -> None:
    model, x = bent_chain_generator(), exact_chain(1)[0]
    system = system_of()
    system.addForce(openmm_force(model))
    expected, _ = evaluate(context_of(system), x)
    xml = openmm.XmlSerializer.serialize(system)
    for again in (openmm.XmlSerializer.deserialize(xml), copy.deepcopy(system)):
        assert evaluate(context_of(again), x)[0] == expected
        assert again.getForce(0).getName() == "knotflow"


def test_later_changes_of_the_model_do_not_reach_openmm() -> None:
    model, x = bent_chain_generator(), exact_chain(1)[0]
    system = system_of()
    system.addForce(openmm_force(model))
    context = context_of(system)
    before, _ = evaluate(context, x)
    model.float()
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert evaluate(context, x)[0] == before


def test_leaving_the_support_ends_a_simulation_and_says_why() -> None:
    model = boxed_chain_generator(reach=4.0)
    system = system_of()
    system.addForce(openmm_force(model))
    context = context_of(system)
    context.setPositions(chain().positions)
    velocities = np.zeros((4, 3))
    velocities[model.coordinates.zmatrix.frame[0]] = [0, 2.0, 2.0]  # nm/ps
    context.setVelocities(velocities)
    message = r"left the support of the flow: .*(nm|rad), but the flow"
    with pytest.raises(openmm.OpenMMException, match=message):
        context.getIntegrator().step(200)
    assert np.isfinite(context.getState(positions=True).getPositions(asNumpy=True)._value).all()


def test_unsuitable_systems_are_refused() -> None:
    model = bent_chain_generator()
    with pytest.raises(ValueError, match="4 atoms, the System has 5; name its particles with particles"):
        openmm_force(model, system_of(5))
    periodic = system_of()
    box = openmm.CustomExternalForce("periodicdistance(x, y, z, 0, 0, 0)^2")
    box.addParticle(0)
    periodic.addForce(box)
    with pytest.raises(ValueError, match="periodic"):
        openmm_force(model, periodic)
    held = system_of()
    held.addConstraint(0, 1, 0.15)
    with pytest.raises(ValueError, match="1 constraints"):
        openmm_force(model, held)
    frozen = system_of()
    frozen.setParticleMass(2, 0.0)
    with pytest.raises(ValueError, match="no mass"):
        openmm_force(model, frozen)
    with pytest.raises(ValueError, match="particles must be the 4 different"):
        openmm_force(model, particles=[0, 1, 2, 2])
    with pytest.raises(ValueError, match="numbers from 0 to 3"):
        openmm_force(model, system_of(), particles=[1, 2, 3, 4])
    with pytest.raises(ValueError, match="OpenMM has force fields of its own"):
        openmm_force(TorchForceField(chain(), compiled=False))


def test_a_wrong_number_of_atoms_is_noticed_at_the_first_evaluation() -> None:
    system = system_of(5)
    system.addForce(openmm_force(bent_chain_generator()))
    with pytest.raises(openmm.OpenMMException, match="molecule of 4 atoms, the System has 5"):
        evaluate(context_of(system), torch.zeros(5, 3))
