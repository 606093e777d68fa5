"""Energies and forces by OpenMM against a context that is built from the force field by hand."""

import math
import os
import pickle
import signal
from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np
import openmm
import pytest
import torch
from torch import Tensor

from knotflow.energies import openmm_contexts as platforms
from knotflow.energies import openmm_energy
from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.energies.torch_force_field import TorchForceField
from knotflow.molecules.system import MolecularSystem, ala2

KT = 0.0083144626 * 300.0


@pytest.fixture(scope="module")
def system() -> MolecularSystem:
    return ala2()


@pytest.fixture(scope="module")
def energy(system: MolecularSystem) -> Iterator[OpenMMEnergy]:
    with pytest.MonkeyPatch.context() as patch:
        # The tests are strict, so this one must not be chosen by its speed.
        patch.setattr(openmm_energy, "fastest_platform", lambda *_: "Reference")
        energy = OpenMMEnergy(system, workers=2)
    with energy:
        yield energy


@pytest.fixture(scope="module")
def by_hand() -> Any:
    """A context on the Reference platform from force-field and structure files."""
    from openmm import app

    with resources.as_file(resources.files("knotflow.molecules") / "data" / "ala2.pdb") as path:
        pdb = app.PDBFile(str(path))
    field = app.ForceField("amber99sbildn.xml", "amber99_obc.xml")
    built = field.createSystem(pdb.topology, nonbondedMethod=app.NoCutoff, constraints=None)
    platform = openmm.Platform.getPlatformByName("Reference")
    return openmm.Context(built, openmm.VerletIntegrator(0.001), platform)


def frames(system: MolecularSystem, n: int, seed: int = 0, **like: Any) -> Tensor:
    noise = np.random.default_rng(seed).normal(0, 0.003, (n, system.n_atoms, 3))
    return torch.tensor(system.positions + noise, **{"dtype": torch.float64} | like)


def oracle(context: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Energies in kT and forces in kT/nm, frame by frame, with OpenMM's units."""
    from openmm import unit

    energies, forces = [], []
    for frame in x:
        context.setPositions([openmm.Vec3(*atom) for atom in frame.tolist()] * unit.nanometer)
        state = context.getState(getEnergy=True, getForces=True)
        energies.append(state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole) / KT)
        force = state.getForces().value_in_unit(unit.kilojoule_per_mole / unit.nanometer)
        forces.append([[component / KT for component in atom] for atom in force])
    return torch.tensor(energies, dtype=torch.float64), torch.tensor(forces, dtype=torch.float64)


@pytest.mark.parametrize("n", [7, 90])  # in this process, and in the workers
def test_energies_and_forces_are_those_of_the_force_field(
    system: MolecularSystem, energy: OpenMMEnergy, by_hand: Any, n: int
) -> None:
    x = frames(system, n)
    u, force = energy.energy_and_force(x)
    u_true, force_true = oracle(by_hand, x)
    torch.testing.assert_close(u, u_true, rtol=1e-7, atol=1e-6)
    torch.testing.assert_close(force, force_true, rtol=1e-7, atol=1e-4)
    assert torch.equal(energy.energy(x), u) and torch.equal(energy.force(x), force)
    assert energy.n_atoms == 22 and energy.temperature == 300.0
    assert n < 30 or len(energy._pool._staff) == 2


def test_temperature_only_scales(system: MolecularSystem) -> None:
    x = frames(system, 2)
    cold, warm = (OpenMMEnergy(ala2(temperature), workers=1) for temperature in (300.0, 600.0))
    for one, two in zip(cold.energy_and_force(x), warm.energy_and_force(x), strict=True):
        torch.testing.assert_close(one, 2 * two)


def test_gradient(system: MolecularSystem, energy: OpenMMEnergy) -> None:
    x = frames(system, 2).requires_grad_()
    assert torch.autograd.gradcheck(energy.energy, x, eps=1e-6, rtol=1e-5, atol=1e-3)
    (gradient,) = torch.autograd.grad(energy.energy(x).sum(), x)
    assert torch.equal(gradient, -energy.force(x))
    assert not energy.force(x).requires_grad
    (gradient,) = torch.autograd.grad(energy.energy(x).sum(), x, create_graph=True)
    for loss in (gradient.sum(), x.square().sum() + gradient.square().sum()):
        with pytest.raises(NotImplementedError, match="no second derivatives"):
            loss.backward()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (2, 3), (2, 0), (7, 1, 9)])
def test_any_leading_shape(system: MolecularSystem, energy: OpenMMEnergy, shape: tuple[int, ...]) -> None:
    flat = frames(system, math.prod(shape))
    x = flat.reshape(*shape, 22, 3).requires_grad_()
    u, force = energy.energy_and_force(x)
    assert u.shape == shape and force.shape == x.shape
    for i, frame in enumerate(flat):
        assert u.reshape(-1)[i] == energy.energy(frame)
    (gradient,) = torch.autograd.grad(energy.energy(x).sum(), x)
    assert gradient.shape == x.shape


def test_results_follow_the_dtype_and_strides_do_not_matter(
    system: MolecularSystem, energy: OpenMMEnergy
) -> None:
    x = frames(system, 40, dtype=torch.float32)
    u, force = energy.energy_and_force(x)
    assert u.dtype == force.dtype == torch.float32
    u_double, force_double = energy.energy_and_force(x.double())
    assert torch.equal(u, u_double.float()) and torch.equal(force, force_double.float())
    strided = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided.is_contiguous() and torch.equal(energy.energy(strided), u)


@pytest.mark.parametrize("n", [3, 60])
def test_frames_that_are_no_positions_leave_the_others_alone(
    system: MolecularSystem, energy: OpenMMEnergy, n: int
) -> None:
    x = frames(system, n)
    expected = energy.energy(x)
    bad = x.clone()
    bad[0, 3, 1], bad[2, 5, 0] = math.nan, math.inf
    u, force = energy.energy_and_force(bad)
    assert u[[0, 2]].isnan().all() and force[[0, 2]].isnan().all()
    good = ~u.isnan()
    assert good.sum() == n - 2 and torch.equal(u[good], expected[good])
    assert force[good].isfinite().all()
    # A loss without the bad frames has a gradient.
    bad.requires_grad_()
    u = energy.energy(bad)
    (gradient,) = torch.autograd.grad(torch.where(good, u, 0.0).sum(), bad)
    assert torch.equal(gradient[good], -force[good]) and (gradient[~good] == 0).all()


@pytest.mark.parametrize("name", ["Reference", "CPU"])
def test_bad_frames_on_every_platform(system: MolecularSystem, name: str) -> None:
    context = platforms.make_context(system.xml, name)
    x = frames(system, 4).numpy()
    expected, _ = platforms.frame_energies(context, x)
    x[1] = math.nan
    x[2] = 0.0  # all atoms at one point: whatever it is, the next frame must not suffer
    energies_kj, forces_kj = platforms.frame_energies(context, x)
    assert np.isnan(energies_kj[1]) and np.isnan(forces_kj[1]).all()
    assert not np.isfinite(energies_kj[2])
    np.testing.assert_allclose(energies_kj[[0, 3]], expected[[0, 3]], rtol=1e-12)
    assert np.isfinite(forces_kj[[0, 3]]).all()


def test_a_killed_worker_does_not_matter(system: MolecularSystem, energy: OpenMMEnergy) -> None:
    x = frames(system, 400)
    expected = energy.energy(x)
    os.kill(energy._pool._staff[0]._process.pid, signal.SIGKILL)
    assert torch.equal(energy.energy(x), expected)


def test_the_fastest_platform_that_works(system: MolecularSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    assert platforms.fastest_platform(system.xml, system.positions) in ("Reference", "CPU", "CUDA", "OpenCL")
    made = []

    def refuse_reference(xml: str, name: str) -> Any:
        made.append(name)
        if name == "Reference":
            raise openmm.OpenMMException("no such device")
        return context(xml, name)

    context = platforms.make_context
    monkeypatch.setattr(platforms, "make_context", refuse_reference)
    assert platforms.fastest_platform(system.xml, system.positions) != "Reference"
    assert made[0] == "Reference" and "CPU" in made
    with pytest.raises(ValueError, match="finite energy"):
        platforms.fastest_platform(system.xml, np.zeros((22, 3)))


def test_contexts_use_one_thread_and_the_given_integrator(system: MolecularSystem) -> None:
    integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.002)
    context = platforms.make_context(system.xml, "CPU", integrator)
    platform = context.getPlatform()
    assert platform.getPropertyValue(context, "Threads") == "1"
    assert platform.getPropertyValue(context, "DeterministicForces") == "true"
    context.setPositions(system.positions)
    integrator.step(3)
    assert context.getStepCount() == 3


def test_workers_and_closing(system: MolecularSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    assert OpenMMEnergy(system).workers == len(os.sched_getaffinity(0))
    with OpenMMEnergy(system, workers=2) as small:
        small.energy(frames(system, 30))
        assert not small._pool._staff  # not worth their start
    with OpenMMEnergy(system, workers=1) as alone:
        assert alone.energy(frames(system, 100)).shape == (100,)
        assert not alone._pool._staff  # all in this process
    alone.close()
    assert alone.energy(frames(system, 40)).isfinite().all()
    monkeypatch.setattr(platforms, "GPU_PLATFORMS", (alone.platform,))
    assert OpenMMEnergy(system).workers == 1


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(22), r"shape \(..., 22, 3\) in nm, got torch.float32 of shape \(22,\)"),
        (torch.zeros(4, 21, 3), r"\(4, 21, 3\)"),
        (torch.zeros(22, 3, dtype=torch.int64), "floating-point tensor"),
    ],
)
def test_mistakes_are_explained(energy: OpenMMEnergy, x: Tensor, message: str) -> None:
    for function in (energy.energy, energy.force, energy.energy_and_force):
        with pytest.raises(ValueError, match=message):
            function(x)


def test_number_of_workers_is_checked(system: MolecularSystem) -> None:
    with pytest.raises(ValueError, match="workers must be a whole number of at least 1, got 0"):
        OpenMMEnergy(system, workers=0)


@pytest.mark.parametrize(("cpu", "chosen"), [(2.0, "Reference"), (0.6, "Reference"), (0.4, "CPU")])
def test_another_platform_must_be_clearly_faster(
    system: MolecularSystem, monkeypatch: pytest.MonkeyPatch, cpu: float, chosen: str
) -> None:
    seconds = {"Reference": 1.0, "CPU": cpu}
    monkeypatch.setattr(platforms, "make_context", lambda xml, name: name)
    monkeypatch.setattr(platforms, "_seconds_per_evaluation", lambda name, _: seconds.get(name, math.inf))
    assert platforms.fastest_platform(system.xml, system.positions) == chosen


def test_an_energy_is_made_again_in_another_process(energy: OpenMMEnergy, system: MolecularSystem) -> None:
    """By the same recipe, on the same platform."""
    x = torch.tensor(system.positions)[None] + 0.001 * torch.randn(3, system.n_atoms, 3, dtype=torch.float64)
    torch_energy = TorchForceField(system, compiled=False)
    for original in (energy, torch_energy):
        again = pickle.loads(pickle.dumps(original))
        for found, expected in zip(again.energy_and_force(x), original.energy_and_force(x), strict=True):
            assert torch.equal(found, expected)
