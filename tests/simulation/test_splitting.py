"""The steps that all dynamics shares."""

import math

import numpy as np
import openmm
import torch

from knotflow.energies import OpenMMEnergy
from knotflow.simulation.splitting import baoab
from tests.molecules.molecules import molecule


def test_baoab_without_noise_takes_the_steps_of_openmm() -> None:
    """OpenMM's middle scheme at 0 K puts the halves of a kick together: its velocities lag by one half."""
    system, dt, friction = molecule("ala2"), 1e-3, 20.0
    energy = OpenMMEnergy(system, workers=1)
    x = torch.tensor(system.positions)[None]
    v = 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    f = energy.force(x)
    kick = 0.5 * dt * system.kT / torch.tensor(system.masses)[:, None]
    oracle = openmm.LangevinMiddleIntegrator(0.0, friction, dt)
    context = openmm.Context(system.openmm_system(), oracle, openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(system.positions)
    context.setVelocities((v - kick * f)[0].numpy())
    oracle.step(20)
    expected = context.getState(positions=True).getPositions(asNumpy=True)._value
    for _ in range(20):
        x, v, f, _, middle = baoab(
            energy.energy_and_force, x, v, f, lambda v: math.exp(-friction * dt) * v, dt=dt, kick=kick
        )
    assert np.abs(x[0].numpy() - expected).max() < 1e-6
    torch.testing.assert_close(v, middle + kick * f)
