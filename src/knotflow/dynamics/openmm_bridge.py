"""A flow as an OpenMM force, for any ``Simulation`` with its integrators and reporters.

OpenMM calls back once a step with the positions of one molecule. That costs some tens of milliseconds a step,
so for many replicas `FlowEnergy` and the integrators of this package are faster. Use this force for what only
OpenMM has: its other forces, integrators, barostats, reporters and plugins.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from knotflow.dynamics.flow_energy import FlowEnergy
from knotflow.extras import optional
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.units import thermal_energy

if TYPE_CHECKING:
    import openmm


def openmm_force(
    model: BoltzmannGenerator, system: openmm.System | None = None, *, particles: Sequence[int] | None = None
) -> openmm.PythonForce:
    r"""The potential $U(x) = -kT \log p(x)$ of a flow, kJ/mol, as an OpenMM force.

    $kT$ belongs to the temperature the flow was trained at, so OpenMM's thermostat at this temperature
    samples $p$. OpenMM holds a copy of the model: later changes of ``model`` do not reach it. The copy
    computes in the dtype of the model; give ``model.double()`` where energy must be conserved to many digits.

    A System with this force can be serialised and copied like any other. Its XML then contains the model and,
    as with every ``PythonForce``, a pickle: read such files only from people you trust. A flow that was put
    together by hand cannot be serialised.

    A molecule that leaves the flow's support, or has no finite energy, ends the simulation with an
    ``OpenMMException`` that names the coordinate; the Context then still holds the last positions.

    Args:
        model: The generator.
        system: The System it is meant for, to be checked now rather than at the first step. The force is not
            added to it: do that with ``system.addForce``.
        particles: The particles of the molecule, in the order of its atoms; by default all of the System.

    Raises:
        ValueError: if the System has another number of atoms, a periodic box, constraints or atoms without
            mass, or if ``particles`` does not name one particle for each atom of the molecule.
        ModuleNotFoundError: without OpenMM 8.5 or newer.
    """
    if not isinstance(model, BoltzmannGenerator):
        raise ValueError(
            f"openmm_force takes a BoltzmannGenerator, got {type(model).__name__}; OpenMM has force fields "
            "of its own."
        )
    with optional("OpenMM forces"):
        import openmm
    if not hasattr(openmm, "PythonForce"):
        raise ModuleNotFoundError(
            f"flows in OpenMM need OpenMM 8.5 or newer, here is {openmm.__version__}; run: "
            "pip install 'openmm>=8.5'"
        )
    particles = None if particles is None else [int(particle) for particle in particles]
    _check_particles(model, particles)
    if system is not None:
        _check_system(model, system, particles)
    force = openmm.PythonForce(FlowPotential(model))
    force.setName("knotflow")
    if particles is not None:
        force.setParticles(particles)
    return force


class FlowPotential:
    """The function that OpenMM calls: a State in, energy (kJ/mol) and forces (kJ/mol/nm) out; can be pickled.

    Args:
        model: The generator; a copy is kept.
    """

    def __init__(self, model: BoltzmannGenerator) -> None:
        self.energy = FlowEnergy(copy.deepcopy(model).requires_grad_(False))
        self.kT = thermal_energy(model.temperature)

    def __call__(self, state: Any) -> tuple[float, Any]:
        positions = state.getPositions(asNumpy=True)._value
        if positions.shape != (self.energy.n_atoms, 3):
            raise ValueError(
                f"this flow is for a molecule of {self.energy.n_atoms} atoms, the System has "
                f"{len(positions)}; name its particles with openmm_force(model, particles=...)."
            )
        x = torch.tensor(positions, dtype=torch.float64)
        u, force = self.energy.energy_and_force(x)
        if not bool(u.isfinite() & force.isfinite().all()):
            why = self.energy.why_outside(x) or "its energy or force is not finite there."
            raise ValueError(f"the molecule has left the support of the flow: {why}")
        return self.kT * float(u), self.kT * force.numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        # As a model file, which later versions can read as well, unlike the attributes of this class.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            self.energy.model.save(path)
            return _read_potential, (path.read_bytes(),)


def _read_potential(data: bytes, *_: object) -> FlowPotential:
    """A potential from pickled data; a second argument, pickled by earlier versions, is ignored."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(data)
        return FlowPotential(BoltzmannGenerator.load(path))


def _check_particles(model: BoltzmannGenerator, particles: list[int] | None) -> None:
    if particles is not None and (len(particles) != model.n_atoms or len(set(particles)) != model.n_atoms):
        raise ValueError(
            f"particles must be the {model.n_atoms} different particles that are the atoms of the molecule, "
            f"in its order, got {len(particles)}, {len(set(particles))} of them different."
        )


def _check_system(model: BoltzmannGenerator, system: openmm.System, particles: list[int] | None) -> None:
    n = system.getNumParticles()
    if particles is None and n != model.n_atoms:
        raise ValueError(
            f"this flow is for a molecule of {model.n_atoms} atoms, the System has {n}; name its particles "
            "with particles=..."
        )
    chosen = set(range(n) if particles is None else particles)
    if not chosen <= set(range(n)):
        raise ValueError(f"particles must be numbers from 0 to {n - 1}, got {sorted(chosen)}.")
    if system.usesPeriodicBoundaryConditions():
        raise ValueError(
            "the System is periodic, but a flow is for one molecule in open space; create it with "
            "nonbondedMethod=NoCutoff."
        )
    pairs = [system.getConstraintParameters(number)[:2] for number in range(system.getNumConstraints())]
    constrained = sum(not chosen.isdisjoint(pair) for pair in pairs)
    if constrained:
        raise ValueError(
            f"{constrained} constraints hold atoms of the molecule, but a flow moves all of them; create the "
            "System with constraints=None."
        )
    if any(system.isVirtualSite(i) or system.getParticleMass(i)._value <= 0 for i in chosen):
        raise ValueError(
            "some atoms of the molecule have no mass or are virtual sites, so the flow's force would not "
            "move them; give all of them their mass."
        )
