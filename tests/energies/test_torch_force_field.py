"""The force field in torch against OpenMM, autograd and itself compiled."""

import math

import numpy as np
import openmm
import pytest
import torch
from openmm import app
from torch import Tensor

from knotflow.energies.force_terms import read_terms
from knotflow.energies.torch_force_field import WORTH_COMPILING, TorchForceField
from knotflow.molecules.system import MolecularSystem
from tests.molecules.molecules import frames, molecule

# One with a ring, one with all of proline, glycine, charged side chains and an aromatic double ring.
NAMES = ["dimer", "ala2", "vacuum", "P", "GYDPETGTWG"]


def eager(name: str) -> TorchForceField:
    return TorchForceField(molecule(name), compiled=False)


def by_openmm(system: MolecularSystem, x: Tensor) -> tuple[Tensor, Tensor]:
    """One frame after the other, on OpenMM's double-precision platform."""
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system.openmm_system(), openmm.VerletIntegrator(0.001), platform)
    energies, forces = [], []
    for frame in x.numpy():
        context.setPositions(frame)
        state = context.getState(energy=True, forces=True)
        energies.append(state.getPotentialEnergy()._value)
        forces.append(state.getForces(asNumpy=True)._value)
    return torch.tensor(np.array(energies)) / system.kT, torch.tensor(np.array(forces)) / system.kT


@pytest.mark.parametrize("noise", [0.003, 0.02])
@pytest.mark.parametrize("name", NAMES)
def test_energies_and_forces_are_those_of_openmm(name: str, noise: float) -> None:
    system = molecule(name)
    x = frames(system, 20, noise)
    energy, force = by_openmm(system, x)
    u, f = eager(name).energy_and_force(x)
    # The promise is 1e-3 kT and 1e-2 kT/nm; rounding leaves far less, relative to the largest.
    assert (u - energy).abs().max() < 1e-9 * energy.abs().max().clamp_min(1)
    assert (f - force).abs().max() < 1e-9 * force.abs().max()


def test_atoms_inside_of_each_other_are_those_of_openmm() -> None:
    """Close pairs take other branches of the Born integrals."""
    system = molecule("ala2")
    x = frames(system, 40, 0.06, seed=1)
    energy, force = by_openmm(system, x)
    u, f = eager("ala2").energy_and_force(x)
    torch.testing.assert_close(u, energy, rtol=1e-8, atol=1e-6)
    torch.testing.assert_close(f, force, rtol=1e-7, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_force_is_the_gradient_of_the_energy(name: str) -> None:
    field = eager(name)
    x = frames(molecule(name), 3).requires_grad_()
    (gradient,) = torch.autograd.grad(field.energy(x).sum(), x)
    assert (gradient + field.force(x)).abs().max() < 1e-9 * gradient.abs().max()


def test_second_derivatives() -> None:
    field = eager("ala2")
    x = frames(molecule("ala2"), 1)[0]
    hessian = torch.func.hessian(field.energy)(x).reshape(66, 66)
    step, size = torch.zeros(66, dtype=x.dtype), 1e-6
    for i in (0, 13, 40, 65):
        step[i] = size
        ahead, behind = field.force(x + step.reshape(22, 3)), field.force(x - step.reshape(22, 3))
        step[i] = 0
        numerical = (behind - ahead).reshape(-1) / (2 * size)
        assert (hessian[i] - numerical).abs().max() < 1e-6 * hessian.abs().max()
    assert (hessian - hessian.T).abs().max() < 1e-9 * hessian.abs().max()


def test_any_leading_shape_and_vmap() -> None:
    field = eager("ala2")
    x = frames(molecule("ala2"), 6).reshape(2, 3, 22, 3)
    u, f = field.energy_and_force(x)
    assert u.shape == (2, 3) and f.shape == x.shape
    torch.testing.assert_close(u[1, 2], field.energy(x[1, 2]))
    torch.testing.assert_close(torch.vmap(field.energy)(x[0]), u[0])
    empty, no_force = field.energy_and_force(x[:, :0])
    assert empty.shape == (2, 0) and no_force.shape == (2, 0, 22, 3)


def test_chunks_do_not_matter() -> None:
    field = eager("ala2")
    x = frames(molecule("ala2"), 37)
    u, f = field.energy_and_force(x)
    field.chunk = 16
    again = field.energy_and_force(x)
    torch.testing.assert_close(again, (u, f), rtol=1e-12, atol=1e-10)


def test_float32_is_close_to_float64() -> None:
    field = eager("ala2")
    x = frames(molecule("ala2"), 50, 0.003)
    u, f = field.energy_and_force(x)
    u32, f32 = field.energy_and_force(x.float())
    assert u32.dtype == f32.dtype == torch.float32
    assert (u32 - u).abs().max() < 1e-3
    assert (f32 - f).abs().max() < 2e-5 * f.abs().max()


def test_atoms_at_one_place_have_a_large_energy_and_no_nan() -> None:
    x = frames(molecule("ala2"), 1).float()
    x[0, 21] = x[0, 0]  # not bonded, nor excluded
    u = eager("ala2").energy(x)
    assert u.item() > 1e6


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    system = molecule("ala2")
    x = frames(system, 300, 0.005)
    field = TorchForceField(system)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    field.energy_and_force(x.float())
    u, f = field.energy_and_force(x.float())
    torch.set_num_threads(threads)
    assert field.compiled
    expected_u, expected_f = eager("ala2").energy_and_force(x)
    assert (u - expected_u).abs().max() < 1e-3
    assert (f - expected_f).abs().max() < 2e-5 * expected_f.abs().max()


def test_it_is_compiled_only_for_many_evaluations() -> None:
    few, many = eager("ala2"), eager("ala2")
    few.expect(WORTH_COMPILING - 1)
    many.expect(WORTH_COMPILING)
    assert not few.compiled and many.compiled


def test_wrong_positions_are_refused() -> None:
    field = eager("ala2")
    with pytest.raises(ValueError, match=r"shape \(..., 22, 3\) in nm, got torch.float32 of shape \(5, 66\)"):
        field.energy(torch.zeros(5, 66))
    with pytest.raises(ValueError, match="floating-point"):
        field.force(torch.zeros(22, 3, dtype=torch.int64))


def small_system(*forces: openmm.Force, constraint: bool = False) -> openmm.System:
    system = openmm.System()
    for _ in range(2):
        system.addParticle(1.0)
    for force in forces:
        system.addForce(force)
    if constraint:
        system.addConstraint(0, 1, 0.1)
    return system


def with_cutoff() -> openmm.NonbondedForce:
    force = openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.CutoffNonPeriodic)
    return force


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (small_system(openmm.CustomBondForce("r")), "the system has a CustomBondForce, so use OpenMM"),
        (small_system(with_cutoff()), "has a cut-off or a periodic box"),
        (small_system(constraint=True), "has no constraints, the system has 1"),
        (small_system(openmm.NonbondedForce(), openmm.NonbondedForce()), "at most one NonbondedForce"),
    ],
)
def test_what_it_cannot_do_is_refused(system: openmm.System, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_terms(system, 1.0)


def test_torsions_of_the_same_atoms_are_one_series() -> None:
    force = openmm.PeriodicTorsionForce()
    force.addTorsion(0, 1, 2, 3, 2, 0.3, 1.5)
    force.addTorsion(0, 1, 2, 3, 3, math.pi, 0.5)
    force.addTorsion(0, 1, 2, 3, 1, 0.0, 0.0)
    system = openmm.System()
    for _ in range(4):
        system.addParticle(1.0)
    system.addForce(force)
    terms = read_terms(system, 1.0)
    assert terms.torsions.shape == (4, 1) and terms.cosines.shape == (4, 1, 1)
    phi = 0.7
    series = sum(
        a * math.cos(n * phi) + b * math.sin(n * phi)
        for n, (a, b) in enumerate(zip(terms.cosines[:, 0, 0], terms.sines[:, 0, 0], strict=True))
    )
    expected = 1.5 * (1 + math.cos(2 * phi - 0.3)) + 0.5 * (1 + math.cos(3 * phi - math.pi))
    assert series == pytest.approx(expected, abs=1e-12)


def test_other_solvents_are_refused_by_name() -> None:
    field = app.ForceField("amber14-all.xml", "implicit/obc2.xml")
    system = molecule("ala2")
    xml = field.createSystem(system.topology.to_openmm(), nonbondedMethod=app.NoCutoff)
    with pytest.raises(ValueError, match="CustomGBForce"):
        read_terms(xml, 1.0)
