"""Langevin dynamics in torch: all walkers at once."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from knotflow.compiled import Compiled
from knotflow.energies.force_terms import ForceTerms, read_terms
from knotflow.energies.torch_force_field import energy_and_force
from knotflow.molecules.system import MolecularSystem
from knotflow.molecules.units import BOLTZMANN
from knotflow.simulation.engines import FRICTION, STEP, Engine, Floats, Snapshot
from knotflow.simulation.splitting import baoab


class TorchEngine(Engine):
    """All walkers at once in float32, with one compiled graph per step.

    Args:
        system: The molecule; its temperature sets the internal unit of energy.
        device: Torch device.
        compiled: Whether to compile the graph.
    """

    def __init__(self, system: MolecularSystem, device: str = "cpu", *, compiled: bool = True) -> None:
        super().__init__(system)
        self._kT = system.kT
        self._like = torch.empty(0, device=device)
        self._terms = read_terms(system.openmm_system(), system.kT).to(self._like)
        self._inverse_mass = torch.as_tensor(1 / self.masses).to(self._like)[:, None]
        self._generator = torch.Generator(device)
        self._step = Compiled(self._baoab, task="the simulation", enabled=compiled)

    def seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    @torch.no_grad()
    def advance(self, positions: Floats, velocities: Floats, temperatures: Floats, steps: int) -> Snapshot:
        x, v = self._columns(positions), self._columns(velocities)
        spread = math.sqrt((1 - math.exp(-2 * FRICTION * STEP)) * BOLTZMANN)
        noise_scale = spread * (torch.as_tensor(temperatures).to(x) * self._inverse_mass).sqrt()
        noise = torch.empty_like(x)
        u, f = energy_and_force(self._terms, x)
        middle = v
        for _ in range(steps):
            noise.normal_(generator=self._generator)
            x, v, f, u, middle = self._step(self._terms, x, v, f, noise, noise_scale)
            self.report(x.shape[-1])
        energies = u.double().cpu().numpy() * self._kT
        self.check(energies)
        return Snapshot(
            self.centred(self._rows(x)),
            self._rows(v),
            energies,
            self._rows(f) * self._kT,
            self.kinetic_temperature(self._rows(middle)),
        )

    def _baoab(
        self, terms: ForceTerms, x: Tensor, v: Tensor, f: Tensor, noise: Tensor, noise_scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        def thermostat(v: Tensor) -> Tensor:
            return math.exp(-FRICTION * STEP) * v + noise_scale * noise

        kick = 0.5 * STEP * self._kT * self._inverse_mass
        return baoab(partial(energy_and_force, terms), x, v, f, thermostat, dt=STEP, kick=kick)

    def _columns(self, array: Floats) -> Tensor:
        """Shape (walkers, atoms, 3) to (3, atoms, walkers), the layout of the force field."""
        return torch.as_tensor(array).to(self._like).permute(2, 1, 0).contiguous()

    @staticmethod
    def _rows(columns: Tensor) -> Floats:
        return columns.permute(2, 1, 0).double().cpu().numpy()
