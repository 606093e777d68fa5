"""Lengths that constraints took away come back from the right distribution."""

from itertools import pairwise

import mdtraj
import numpy as np
import openmm
from scipy.integrate import quad

from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.molecules.system import MolecularSystem
from knotflow.storage.stretching import Stretching
from tests.molecules.molecules import molecule

LENGTH, CONSTANT = 0.1, 40_000.0
"""In nm and kJ/mol/nm²: soft, so that the factor b² of the density shows."""


def triatomic() -> MolecularSystem:
    """Water with harmonic bonds and angle."""
    topology = mdtraj.Topology()
    residue = topology.add_residue("TRI", topology.add_chain())
    kinds = (("O", mdtraj.element.oxygen), ("H1", mdtraj.element.hydrogen), ("H2", mdtraj.element.hydrogen))
    atoms = [topology.add_atom(name, kind, residue) for name, kind in kinds]
    system, bonds, angles = openmm.System(), openmm.HarmonicBondForce(), openmm.HarmonicAngleForce()
    for _, kind in kinds:
        system.addParticle(kind.mass)
    for i in (1, 2):
        topology.add_bond(atoms[0], atoms[i])
        bonds.addBond(0, i, LENGTH, CONSTANT)
    angles.addAngle(1, 0, 2, 1.9, 300.0)
    system.addForce(bonds)
    system.addForce(angles)
    positions = np.array([[0, 0, 0], [LENGTH, 0, 0], [LENGTH * np.cos(1.9), LENGTH * np.sin(1.9), 0]])
    xml = openmm.XmlSerializer.serialize(system)
    return MolecularSystem("triatomic", topology, xml, positions, 300.0, {"source": "test"})


def test_lengths_have_their_boltzmann_distribution() -> None:
    r"""Means and variances are those of $b^2 e^{-k (b - b_0)^2 / 2kT}$, by numerical integration."""
    system, n = triatomic(), 20_000
    with OpenMMEnergy(system, workers=1) as energy:
        stretching = Stretching(system, energy, [(0, 1), (0, 2)])
        x = stretching(np.tile(system.positions, (n, 1, 1)))
    assert stretching.accepted > 0.8 * stretching.proposed

    def moment(k: int) -> float:
        def weight(b: float) -> float:
            return b ** (2 + k) * np.exp(-CONSTANT * (b - LENGTH) ** 2 / (2 * system.kT))

        return quad(weight, 0.04, 0.18, epsabs=0, epsrel=1e-10)[0]

    mean = moment(1) / moment(0)
    variance = moment(2) / moment(0) - mean**2
    assert mean - LENGTH > 0.1 * np.sqrt(variance), "the factor b² moves the mean"
    lengths = np.linalg.norm(x[:, 1:] - x[:, :1], axis=-1)
    np.testing.assert_allclose(lengths.mean(0), mean, atol=4 * np.sqrt(variance / n))
    np.testing.assert_allclose(lengths.var(0), variance, rtol=4 * np.sqrt(2 / n))
    a, b = x[:, 1] - x[:, 0], x[:, 2] - x[:, 0]
    angle = np.arccos((a * b).sum(-1) / lengths.prod(-1))
    np.testing.assert_allclose(angle, 1.9, atol=1e-9)


def test_rings_stay_as_they_are() -> None:
    """Only the hydrogens of a ring get new lengths."""
    system = molecule("P")
    with OpenMMEnergy(system, workers=1) as energy:
        stretching = Stretching(system, energy, system.bonds)
        x = stretching(np.tile(system.positions, (4, 1, 1)))
    i, j = np.array(system.bonds).T
    before, after = (np.linalg.norm(y[:, i] - y[:, j], axis=-1) for y in (system.positions[None], x))
    same = np.array(system.bonds)[(np.abs(after - before) < 1e-9).all(0)]
    found = {frozenset(str(system.topology.atom(int(atom))) for atom in bond) for bond in same}
    ring = [f"PRO2-{name}" for name in ("N", "CA", "CB", "CG", "CD", "N")]
    assert found == {frozenset(pair) for pair in pairwise(ring)}
    assert len(stretching.indices) == len(system.bonds) - 5


def test_without_bonds_to_draw_nothing_is_drawn() -> None:
    system = triatomic()
    with OpenMMEnergy(system, workers=1) as energy:
        assert len(Stretching(system, energy, []).indices) == 0
