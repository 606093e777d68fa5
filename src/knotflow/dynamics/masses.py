"""Masses at a temperature: velocities, kinetic energy and degrees of freedom."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from knotflow.molecules.system import MolecularSystem
from knotflow.molecules.units import thermal_energy


@dataclass(frozen=True, eq=False)
class Masses:
    r"""Masses at a temperature: velocities, kinetic energies in kT, degrees of freedom.

    Units are nm, ps and amu, so $m v^2$ is in kJ/mol, and ``kT`` in kJ/mol turns reduced forces (kT/nm) into
    accelerations $\frac{kT}{m} f$ in nm/ps². With unit masses and ``kT`` = 1 units are reduced.

    If no outside force acts (``free``), the centre of mass stands still and there are three degrees of
    freedom less. Velocities are then drawn from the Maxwell-Boltzmann distribution *given* a total momentum
    of zero: draw all of them and subtract the velocity of the centre of mass, which is a projection,
    orthogonal in $\sum m v^2$. Rotations stay: they carry $kT/2$ like other motions.

    Args:
        values: masses in amu, broadcast against one point: (atoms, 1), or (d,).
        shape: shape of one point: (atoms, 3), or (d,).
        temperature: in K; 1 in reduced units.
        kT: in kJ/mol; 1 in reduced units.
        free: whether the centre of mass stands still; axis -2 is the atoms.
    """

    values: Tensor
    shape: tuple[int, ...]
    temperature: float
    kT: float  # noqa: N815
    free: bool

    @classmethod
    def molecule(cls, masses: ArrayLike, temperature: float) -> Self:
        """Atoms with masses (atoms,) in amu, at a temperature in K, without outside forces."""
        column = torch.as_tensor(np.asarray(masses, dtype=np.float64))
        if column.ndim != 1 or len(column) < 2 or not bool((column > 0).all()):
            raise ValueError(f"masses must be positive, one for each of at least two atoms, got {masses!r}.")
        return cls(column[:, None], (len(column), 3), temperature, thermal_energy(temperature), True)

    @classmethod
    def of(cls, system: MolecularSystem) -> Self:
        """The atoms of a molecule at its temperature."""
        return cls.molecule(system.masses, system.temperature)

    @classmethod
    def unit(cls, dim: int, mass: float = 1.0) -> Self:
        """A particle with ``dim`` coordinates and ``kT`` = 1: for densities of coordinates."""
        return cls(torch.full((dim,), mass, dtype=torch.float64), (dim,), 1.0, 1.0, False)

    @property
    def degrees_of_freedom(self) -> int:
        """Number of degrees of freedom; each has $kT/2$ on average."""
        return math.prod(self.shape) - (3 if self.free else 0)

    def kinetic_energy(self, v: Tensor) -> Tensor:
        r"""$\frac{1}{2kT} \sum m v^2$ in kT: velocities (replicas, ...) to (replicas,)."""
        return 0.5 / self.kT * (self.values.to(v) * v.square()).flatten(1).sum(1)

    def kinetic_temperature(self, v: Tensor) -> Tensor:
        """Temperature in K of velocities (replicas, ...), shape (replicas,)."""
        return 2 * self.temperature / self.degrees_of_freedom * self.kinetic_energy(v)

    def thermal_velocities(
        self, replicas: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """Maxwell-Boltzmann velocities (replicas, ...) in nm/ps."""
        device = None if generator is None else generator.device
        noise = torch.randn(replicas, *self.shape, generator=generator, dtype=dtype, device=device)
        return self.at_rest((self.kT / self.values.to(noise)).sqrt() * noise)

    def at_rest(self, v: Tensor) -> Tensor:
        """Velocities minus that of the centre of mass, if that stands still."""
        if not self.free:
            return v
        weights = (self.values / self.values.sum()).to(v)
        return v - (weights * v).sum(-2, keepdim=True)
