"""Langevin dynamics on any energy of a molecule: all walkers at once, in double precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from knotflow.energies.choose import force_field
from knotflow.molecules.system import MolecularSystem
from knotflow.molecules.units import BOLTZMANN
from knotflow.simulation.engines import FRICTION, STEP, Engine, Floats, Snapshot
from knotflow.simulation.splitting import baoab


class EnergyEngine(Engine):
    """Walkers on the energy of the molecule, which this process computes by itself.

    Args:
        system: The molecule.
        device: Torch device, for energies in torch.
    """

    def __init__(self, system: MolecularSystem, device: str = "cpu") -> None:
        super().__init__(system)
        self._kT = system.kT
        self._energy = force_field(system, workers=1)
        self._like = torch.empty(0, dtype=torch.float64, device=device)
        self._inverse_mass = torch.as_tensor(1 / self.masses).to(self._like)[:, None]
        self._generator = torch.Generator(device)

    def seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    @torch.no_grad()
    def advance(self, positions: Floats, velocities: Floats, temperatures: Floats, steps: int) -> Snapshot:
        x, v = (torch.as_tensor(array).to(self._like) for array in (positions, velocities))
        spread = math.sqrt((1 - math.exp(-2 * FRICTION * STEP)) * BOLTZMANN)
        kelvin = torch.as_tensor(temperatures).to(x)[:, None, None]
        noise_scale = spread * (kelvin * self._inverse_mass).sqrt()
        kick = 0.5 * STEP * self._kT * self._inverse_mass

        def thermostat(v: Tensor) -> Tensor:
            noise = torch.empty_like(v).normal_(generator=self._generator)
            return math.exp(-FRICTION * STEP) * v + noise_scale * noise

        u, f = self._field(x)
        middle = v
        for _ in range(steps):
            x, v, f, u, middle = baoab(self._field, x, v, f, thermostat, dt=STEP, kick=kick)
            self.report(len(x))
        return Snapshot(
            self.centred(x.cpu().numpy()),
            v.cpu().numpy(),
            u.cpu().numpy() * self._kT,
            f.cpu().numpy() * self._kT,
            self.kinetic_temperature(middle.cpu().numpy()),
        )

    def _field(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, f = self._energy.energy_and_force(x)
        if not bool(u.isfinite().all()):
            raise FloatingPointError(self._energy.failure or "an energy is not a finite number")
        self.check(u.cpu().numpy() * self._kT)
        return u, f
