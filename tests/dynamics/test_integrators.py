"""Integrators conserve, reverse, sample and stop as they should."""

import math

import numpy as np
import openmm
import pytest
import scipy.linalg
import torch
from torch import Tensor

from knotflow.dynamics import Bonds, CoordinateEnergy, FlowEnergy, Langevin, Masses, Potential, Status, Verlet
from knotflow.energies import OpenMMEnergy, Rings, TorchForceField
from tests.analysis.generators import chain
from tests.dynamics.flows import Well, on_a_ring, rough_generator
from tests.dynamics.wrong_flows import boxed_chain_generator, exact_chain
from tests.molecules.molecules import DIMER_CONSTANT, DIMER_LENGTH, molecule


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def errors(
    potential: Potential, masses: Masses, x: Tensor, steps: list[float], time: float, seed: int = 0
) -> np.ndarray:
    """Root mean square of the change of the total energy for each length of a step, from the same start."""
    v = masses.thermal_velocities(len(x), generator=seeded(seed))
    found = []
    for dt in steps:
        integrator = Verlet(potential, masses, dt)
        state = integrator.start(x, v)
        first = state.energy + masses.kinetic_energy(state.velocities)
        squares = []
        for _ in range(round(time / dt)):
            state = integrator.step(state)
            squares.append((state.energy + masses.kinetic_energy(state.velocities) - first).square())
        assert bool(state.moving.all())
        found.append(float(torch.stack(squares).mean().sqrt()))
    return np.array(found)


def order(steps: list[float], errors: np.ndarray) -> float:
    return float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


def field(name: str, frames: int) -> TorchForceField:
    """A force field that runs eagerly, for this many frames at once."""
    made = TorchForceField(molecule(name), compiled=False)
    made.chunk = frames
    return made


def test_energy_is_conserved_to_second_order_on_rings() -> None:
    steps = [2e-3, 1e-3, 5e-4]
    found = errors(CoordinateEnergy(Rings()), Masses.unit(2), on_a_ring(32, seeded()), steps, 0.1)
    assert order(steps, found) == pytest.approx(2.0, abs=0.05)
    assert found[-1] < 1e-3


def test_energy_is_conserved_to_second_order_on_a_force_field() -> None:
    steps = [5e-4, 2.5e-4, 1.25e-4]
    x = torch.tensor(molecule("ala2").positions).repeat(4, 1, 1)
    found = errors(field("ala2", 4), Masses.of(molecule("ala2")), x, steps, 0.01)
    assert order(steps, found) == pytest.approx(2.0, abs=0.1)


def test_energy_is_conserved_to_second_order_on_b_splines_and_not_where_forces_jump() -> None:
    steps, x = [2e-3, 1e-3, 5e-4, 2.5e-4], exact_chain(32)
    smooth, jumping = (
        errors(FlowEnergy(rough_generator(family)), Masses.of(chain()), x, steps, 0.04)
        for family in ("bspline", "rq")
    )
    assert order(steps, smooth) == pytest.approx(2.0, abs=0.25)
    assert order(steps, jumping) < 1.6
    assert (jumping > 20 * smooth).all()


def test_verlet_is_reversible() -> None:
    masses = Masses.of(molecule("ala2"))
    x = torch.tensor(molecule("ala2").positions)[None]
    integrator = Verlet(field("ala2", 1), masses, 1e-3)
    there = integrator.run(integrator.start(x, masses.thermal_velocities(1, generator=seeded())), 50)
    back = integrator.run(integrator.start(there.positions, -there.velocities), 50)
    assert float((there.positions - x).abs().max()) > 0.005
    assert float((back.positions - x).abs().max()) < 1e-10
    assert there.step == 50 and there.time == pytest.approx(0.05)


@pytest.mark.parametrize("potential", ["openmm", "torch"])
def test_verlet_takes_the_steps_of_openmm(potential: str) -> None:
    """OpenMM's leapfrog has velocities half a step earlier: positions are the same."""
    system, dt = molecule("ala2"), 1e-3
    energy = OpenMMEnergy(system, workers=1) if potential == "openmm" else field("ala2", 1)
    masses = Masses.of(system)
    integrator = Verlet(energy, masses, dt)
    start = integrator.start(
        torch.tensor(system.positions)[None], masses.thermal_velocities(1, generator=seeded())
    )
    earlier = start.velocities - 0.5 * dt * system.kT / masses.values * start.force
    oracle = openmm.VerletIntegrator(dt)
    context = openmm.Context(system.openmm_system(), oracle, openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(system.positions)
    context.setVelocities(earlier[0].numpy())
    oracle.step(20)
    expected = context.getState(positions=True).getPositions(asNumpy=True)._value
    # The fastest platform computes in float32.
    tolerance = 1e-8 if potential == "torch" else 1e-6
    assert np.abs(integrator.run(start, 20).positions[0].numpy() - expected).max() < tolerance


def test_langevin_in_a_well_has_the_variance_of_its_step() -> None:
    """Exact for positions, however long the step; for both the fixed point of the covariance of a step."""
    constant, mass, friction, dt, n = 2.0, 0.5, 1.5, 0.5, 40_000
    drift = np.array([[1, dt / 2], [0, 1]])
    kick = np.array([[1, 0], [-dt / 2 * constant / mass, 1]])
    decay = math.exp(-friction * dt)
    rub = np.diag([1, decay])
    noise = kick @ drift @ np.array([0, math.sqrt((1 - decay**2) / mass)])
    expected = scipy.linalg.solve_discrete_lyapunov(kick @ drift @ rub @ drift @ kick, np.outer(noise, noise))
    assert expected[0, 0] == pytest.approx(1 / constant) and expected[1, 1] < 0.9 / mass

    masses = Masses.unit(1, mass)
    integrator = Langevin(CoordinateEnergy(Well(constant)), masses, dt, friction, seed=3)
    x = torch.zeros(n, 1, dtype=torch.float64)
    state = integrator.run(integrator.start(x, x), 60)
    found = torch.cat((state.positions, state.velocities), 1).T.cov(correction=0).numpy()
    error = np.sqrt((expected**2 + np.outer(expected.diagonal(), expected.diagonal())) / n)
    assert (np.abs(found - expected) < 4 * error).all()


def test_langevin_of_a_molecule_has_its_distribution_and_its_temperature() -> None:
    """Bond lengths of the dimer have the density b² exp(-k (b - b0)² / 2kT); three modes carry no heat."""
    system, n = molecule("dimer"), 1000
    grid = np.linspace(0.1, 0.2, 2001)
    density = grid**2 * np.exp(-DIMER_CONSTANT * (grid - DIMER_LENGTH) ** 2 / (2 * system.kT))
    density /= density.sum()
    mean = (density * grid).sum()
    variance = (density * (grid - mean) ** 2).sum()
    x = torch.tensor(system.positions).repeat(n, 1, 1)
    x[:, 1, 0] = torch.tensor(np.random.default_rng(0).choice(grid, n, p=density))
    masses = Masses.of(system)
    integrator = Langevin(field("dimer", n), masses, 1e-3, 10.0, seed=1)
    state = integrator.start(x, masses.thermal_velocities(n, generator=seeded()))
    means, squares, temperatures = [], [], []
    for _ in range(20):
        state = integrator.run(state, 20)
        length = (state.positions[:, 0] - state.positions[:, 1]).norm(dim=-1).numpy()
        means.append(length)
        squares.append((length - mean) ** 2)
        temperatures.append(masses.kinetic_temperature(state.velocities).numpy())
    for found, expected in ((means, mean), (squares, variance), (temperatures, 300.0)):
        by_replica = np.mean(found, axis=0)
        error = by_replica.std() / math.sqrt(n)
        # A fifth of a percent is what velocities at the end of a step are too cold by.
        cold = 0.002 * 300 if found is temperatures else 0.0
        assert by_replica.mean() == pytest.approx(expected, abs=4 * error + cold)
    momentum = (masses.values * state.velocities).sum(1)
    assert float(momentum.abs().max()) < 1e-12


def test_centre_of_mass_stands_still() -> None:
    masses = Masses.of(chain())
    x = masses.at_rest(exact_chain(3))
    energy = OpenMMEnergy(chain(), workers=1)
    v = masses.thermal_velocities(3, generator=seeded())
    for integrator in (Verlet(energy, masses, 1e-3), Langevin(energy, masses, 1e-3, 10.0)):
        state = integrator.run(integrator.start(x, v), 50)
        assert float((masses.values * state.positions).sum(1).abs().max()) < 1e-5
        assert float((masses.values * state.velocities).sum(1).abs().max()) < 1e-3


@pytest.mark.parametrize("thermostat", [False, True])
def test_a_replica_that_leaves_the_support_stops_alone(thermostat: bool) -> None:
    masses, energy = Masses.of(chain()), FlowEnergy(boxed_chain_generator(reach=6.0))
    integrator = Langevin(energy, masses, 1e-3, 1.0) if thermostat else Verlet(energy, masses, 1e-3)
    x, v = exact_chain(4), 0.02 * masses.thermal_velocities(4, generator=seeded())
    calm = integrator.run(integrator.start(x, v), 30)
    assert bool(calm.moving.all())
    wild = v.clone()
    wild[1] *= 400
    before = integrator.start(x, wild)
    found = [before]
    for _ in range(30):
        found.append(integrator.step(found[-1]))
    last = found[-1]
    assert last.status.tolist() == [0, Status.OUTSIDE, 0, 0]
    at = int(last.stopped[1])
    assert 1 < at < 30 and last.stopped[[0, 2, 3]].tolist() == [-1, -1, -1]
    # It stays where it was before the step that failed, with all its numbers finite.
    assert torch.equal(last.positions[1], found[at - 1].positions[1])
    assert not torch.equal(found[at - 1].positions[1], found[at - 2].positions[1])
    for name in ("positions", "velocities", "force", "energy"):
        value = getattr(last, name)
        assert bool(value.isfinite().all())
        assert torch.equal(value[[0, 2, 3]], getattr(calm, name)[[0, 2, 3]])


class Exploding:
    """A well that gives no number to the right of a wall."""

    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert bool(x.isfinite().all())
        force = torch.where(x > 1, math.nan, -x)
        return 0.5 * x.square().sum(-1), force


def test_what_is_not_finite_stops() -> None:
    integrator = Verlet(Exploding(), Masses.unit(1), 0.1)
    x = torch.tensor([[0.0], [0.0], [2.0]], dtype=torch.float64)
    state = integrator.start(x, torch.tensor([[0.5], [3.0], [0.0]]))
    assert state.status.tolist() == [0, 0, Status.NOT_FINITE] and state.stopped.tolist() == [-1, -1, 0]
    state = integrator.run(state, 20)
    assert state.status.tolist() == [0, Status.NOT_FINITE, Status.NOT_FINITE]
    assert state.stopped.tolist() == [-1, 4, 0]
    assert float(state.positions[1]) < 1 and bool(state.force.isfinite().all())


def test_a_broken_bond_stops() -> None:
    masses = Masses.of(chain())
    energy = OpenMMEnergy(chain(), workers=1)
    x, v = exact_chain(2), torch.zeros(2, 4, 3)
    v[1, 0, 1], v[1, 1, 1] = 10.0, -10.0
    broken = Bonds.of(chain(), 1.5).broken
    integrator = Verlet(energy, masses, 1e-4, broken=broken)
    state = integrator.run(integrator.start(x, v), 200)
    assert state.status.tolist() == [0, Status.BROKEN] and not bool(broken(state.positions).any())
    assert Status.BROKEN.text == "a broken bond"


def test_nothing_is_computed_once_nothing_moves() -> None:
    integrator = Verlet(Exploding(), Masses.unit(1), 0.1)
    wall = torch.tensor([[2.0]], dtype=torch.float64)
    state = integrator.start(wall, 0 * wall)
    later = integrator.run(state, 1000)
    assert later.step == 1000 and later.time == pytest.approx(100) and torch.equal(later.positions, wall)


def test_random_numbers_follow_from_seed_and_step() -> None:
    masses, energy = Masses.unit(2), CoordinateEnergy(Well(1.0, 2))
    x = torch.zeros(3, 2, dtype=torch.float64)

    def after(seed: int, parts: list[int]) -> Tensor:
        state = Langevin(energy, masses, 0.1, 1.0, seed=seed).start(x, x)
        for part in parts:
            state = Langevin(energy, masses, 0.1, 1.0, seed=seed).run(state, part)
        return state.positions

    assert torch.equal(after(1, [20]), after(1, [7, 13]))
    assert not torch.equal(after(1, [20]), after(2, [20]))


@pytest.mark.slow
def test_compiled_steps_are_the_same() -> None:
    masses, energy = Masses.unit(2), CoordinateEnergy(Rings())
    x = on_a_ring(5, seeded())
    v = masses.thermal_velocities(5, generator=seeded())
    found = []
    for compiled in (False, True):
        integrator = Langevin(energy, masses, 1e-3, 1.0, compiled=compiled)
        found.append(integrator.run(integrator.start(x, v), 10))
        assert integrator._advance.compiled is compiled
    torch.testing.assert_close(found[0].positions, found[1].positions)
    torch.testing.assert_close(found[0].energy, found[1].energy)


def test_impossible_settings_are_refused() -> None:
    energy, masses = CoordinateEnergy(Well(1.0)), Masses.unit(1)
    with pytest.raises(ValueError, match="positive length"):
        Verlet(energy, masses, 0.0)
    with pytest.raises(ValueError, match="friction must be"):
        Langevin(energy, masses, 0.1, 0.0)
    with pytest.raises(ValueError, match=r"velocities must have shape \(replicas, 1\)"):
        Verlet(energy, masses, 0.1).start(torch.zeros(2, 1), torch.zeros(3, 1))
