r"""Langevin dynamics of many walkers, by OpenMM one after the other or by torch all at once.

All engines sample $e^{-U/kT}$ with the BAOAB splitting (Leimkuhler & Matthews 2013): half a kick, half a
drift, friction and noise, half a drift, half a kick. OpenMM's ``LangevinMiddleIntegrator`` is the same with
the two half kicks combined. Each walker has its own temperature, as parallel tempering needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from knotflow.energies.openmm_contexts import make_context
from knotflow.molecules.system import MolecularSystem
from knotflow.molecules.units import BOLTZMANN

Floats = NDArray[np.float64]
EngineName = Literal["openmm", "torch", "xtb", "ase", "module"]
"""For a force field ``openmm`` or ``torch``, for another energy its kind."""

STEP: Final = 0.001
"""Length of a step in ps."""

FRICTION: Final = 1.0
"""In 1/ps."""

STEPS_AT_ONCE: Final = 500
"""OpenMM steps between reports; the dynamics does not depend on them."""

LARGEST_ENERGY: Final = 1e4
"""In kJ/mol per atom, some twenty times a chemical bond: above it, a molecule has flown apart."""


@dataclass(frozen=True)
class Snapshot:
    """State of all walkers, in nm, ps, amu and kJ/mol."""

    positions: Floats
    """Shape (walkers, atoms, 3), centred."""
    velocities: Floats
    energies: Floats
    """Potential energies, shape (walkers,)."""
    forces: Floats
    temperatures: Floats
    """Kinetic temperatures in K, shape (walkers,), from velocities in the middle of a step: those at its end
    are too small by the square of the step."""


class Engine(ABC):
    """Moves walkers; all its randomness comes from the last `seed`."""

    def __init__(self, system: MolecularSystem) -> None:
        self.masses: Floats = system.masses
        self.report: Callable[[int], None] = lambda steps: None
        """Called during `advance` with the steps since the last call, summed over walkers."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Restart the random numbers; a seed is positive and below 2³¹."""

    @abstractmethod
    def advance(self, positions: Floats, velocities: Floats, temperatures: Floats, steps: int) -> Snapshot:
        """Move each walker at its own temperature (K, shape (walkers,)).

        Raises:
            FloatingPointError: if a walker flies apart.
        """

    def check(self, energies: Floats) -> None:
        """Raise a FloatingPointError if an energy is far too large or NaN."""
        if not (np.abs(energies) < LARGEST_ENERGY * len(self.masses)).all():
            raise FloatingPointError(f"an energy of {np.abs(energies).max():.2g} kJ/mol")

    def thermal_velocities(self, temperatures: Floats, random: np.random.Generator) -> Floats:
        """Draw velocities in nm/ps for walkers at temperatures in K, shape (walkers, atoms, 3)."""
        spread = np.sqrt(BOLTZMANN * temperatures[:, None] / self.masses)
        return spread[..., None] * random.standard_normal((*spread.shape, 3))

    def centred(self, positions: Floats) -> Floats:
        """Positions relative to the centre of mass, whose motion would cost digits."""
        weights = self.masses / self.masses.sum()
        centre: Floats = np.einsum("a,waf->wf", weights, positions)
        return positions - centre[:, None]

    def kinetic_temperature(self, velocities: Floats) -> Floats:
        """Kinetic temperature in K, shape (walkers,)."""
        twice: Floats = np.einsum("a,waf->w", self.masses, velocities**2)
        temperature: Floats = twice / (velocities[0].size * BOLTZMANN)
        return temperature


class OpenMMEngine(Engine):
    """Walkers one after the other in one OpenMM context.

    Args:
        system: The molecule.
        platform: Name of the OpenMM platform.
    """

    def __init__(self, system: MolecularSystem, platform: str) -> None:
        super().__init__(system)
        import openmm

        self._integrator = openmm.LangevinMiddleIntegrator(system.temperature, FRICTION, STEP)
        self._context = make_context(system.xml, platform, self._integrator)

    def seed(self, seed: int) -> None:
        self._integrator.setRandomNumberSeed(seed)
        self._context.reinitialize()

    def advance(self, positions: Floats, velocities: Floats, temperatures: Floats, steps: int) -> Snapshot:
        states = [
            self._run(*walker, steps) for walker in zip(positions, velocities, temperatures, strict=True)
        ]
        x, v, u, f = (np.array(part) for part in zip(*states, strict=True))
        self.check(u)
        return Snapshot(self.centred(x), v, u, f, self.kinetic_temperature(v))

    def _run(
        self, x: Floats, v: Floats, temperature: float, steps: int
    ) -> tuple[Floats, Floats, float, Floats]:
        import openmm

        self._context.setPositions(x)
        self._context.setVelocities(v)
        self._integrator.setTemperature(temperature)
        try:
            for done in range(0, steps, STEPS_AT_ONCE):
                now = min(STEPS_AT_ONCE, steps - done)
                self._integrator.step(now)
                self.report(now)
        except openmm.OpenMMException as error:
            raise FloatingPointError(str(error)) from None
        state = self._context.getState(positions=True, velocities=True, energy=True, forces=True)
        return (
            state.getPositions(asNumpy=True)._value,
            state.getVelocities(asNumpy=True)._value,
            state.getPotentialEnergy()._value,
            state.getForces(asNumpy=True)._value,
        )


def make_engine(name: EngineName, system: MolecularSystem, place: str) -> Engine:
    """An engine by name; ``place`` is an OpenMM platform or a torch device."""
    if name == "openmm":
        return OpenMMEngine(system, place)
    # Imported here, so that OpenMM workers start without torch.
    from knotflow.simulation.energy_engine import EnergyEngine
    from knotflow.simulation.torch_engine import TorchEngine

    return TorchEngine(system, place) if name == "torch" else EnergyEngine(system, place)


def engine_of(system: MolecularSystem, wanted: EngineName | None = None) -> EngineName:
    """The engine that is wanted, or else the usual one for the energy of a molecule.

    Raises:
        ValueError: if it cannot compute that energy.
    """
    possible: tuple[EngineName, ...] = ("openmm", "torch")
    if system.energy is not None:
        possible = (system.energy["kind"],)
    if wanted is None or wanted in possible:
        return wanted or possible[0]
    energy = "a force field" if system.energy is None else possible[0]
    raise ValueError(
        f"the engine {wanted} cannot compute the energy of {system.name}, which is {energy}; leave the "
        "engine out (no --engine), and the right one is chosen."
    )
