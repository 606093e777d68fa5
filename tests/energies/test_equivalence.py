"""Exchanges of equivalent hydrogens against OpenMM: a symmetry of the force field, or not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import openmm
import pytest
import torch

from knotflow.energies.equivalence import interchangeable
from knotflow.molecules import MolecularSystem
from knotflow.molecules.coordinates import labels_of
from tests.molecules.molecules import frames, molecule

GROUPS = {
    "ala2": ["H1 H2 H3", "HB1 HB2 HB3", "H1 H2 H3"],
    "SK": ["H1 H2 H3", "HB2 HB3", "HB2 HB3", "HG2 HG3", "HD2 HD3", "HE2 HE3", "HZ1 HZ2 HZ3", "H1 H2 H3"],
    "P": ["H1 H2 H3", "HB2 HB3", "HG2 HG3", "HD2 HD3", "H1 H2 H3"],
}


def oracle(system: MolecularSystem, x: np.ndarray) -> tuple[float, np.ndarray]:
    """Energy in kJ/mol and forces in kJ/mol/nm of a structure, in double precision."""
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system.openmm_system(), openmm.VerletIntegrator(0.001), platform)
    context.setPositions(x)
    state = context.getState(energy=True, forces=True)
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


@pytest.mark.parametrize("name", GROUPS)
def test_energies_stay_and_forces_follow_their_labels(name: str) -> None:
    system = molecule(name)
    labels = labels_of(system)
    names = [" ".join(sorted(system.topology.atom(i).name for i in group)) for group in labels.groups]
    assert sorted(names) == sorted(GROUPS[name])
    x = frames(system, 1, noise=0.01)[0].numpy()
    energy, force = oracle(system, x)
    for one in torch.eye(len(names), dtype=torch.bool):
        order = labels.order(one).numpy()
        assert sorted(np.flatnonzero(order != np.arange(len(x)))) == sorted(labels.pairs[int(one.nonzero())])
        other, moved = oracle(system, x[order])
        assert other == pytest.approx(energy, abs=1e-6)
        np.testing.assert_allclose(moved, force[order], rtol=0, atol=1e-6 * np.abs(force).max())
    assert interchangeable(system, labels).all()


def charges(system: openmm.System) -> None:
    (force,) = (force for force in system.getForces() if isinstance(force, openmm.NonbondedForce))
    charge, *others = force.getParticleParameters(12)
    force.setParticleParameters(12, charge * 1.001, *others)


def bonds(system: openmm.System) -> None:
    (force,) = (force for force in system.getForces() if isinstance(force, openmm.HarmonicBondForce))
    for i in range(force.getNumBonds()):
        a, b, length, constant = force.getBondParameters(i)
        if 12 in (a, b):
            force.setBondParameters(i, a, b, length * 1.0001, constant)


def torsions(system: openmm.System) -> None:
    extra = openmm.PeriodicTorsionForce()
    extra.addTorsion(12, 10, 8, 6, 3, 0.0, 0.01)
    system.addForce(extra)


@pytest.mark.parametrize("change", [charges, bonds, torsions])
def test_hydrogens_that_differ_are_left_alone(change: Callable[[openmm.System], None]) -> None:
    """A tiny difference in one methyl group concerns that group only."""
    system = molecule("ala2")
    changed = system.openmm_system()
    change(changed)
    other = replace(system, xml=openmm.XmlSerializer.serialize(changed))
    assert interchangeable(other, labels_of(other)).tolist() == [True, False, True]


def test_nothing_to_exchange_and_no_openmm(monkeypatch: pytest.MonkeyPatch) -> None:
    dimer, system = molecule("dimer"), molecule("ala2")
    assert len(interchangeable(dimer, labels_of(dimer))) == 0
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert interchangeable(system, labels_of(system)).tolist() == [True, True, True]
