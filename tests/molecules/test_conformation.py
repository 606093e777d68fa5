"""Torsions about bonds that turn, and puckers of rings, against MDTraj and ideal geometries."""

import math

import mdtraj
import numpy as np
import openmm
import pytest

from knotflow.molecules import MolecularSystem
from knotflow.molecules.conformation import ConformationAngle, conformation_angles, cremer_pople
from tests.molecules.molecules import frames, molecule


def ring(size: int, heights: np.ndarray, radius: float = 0.15) -> np.ndarray:
    """Atoms on a regular polygon, counter-clockwise from above, with heights above its plane."""
    turn = 2 * math.pi * np.arange(size) / size
    # Cremer and Pople's normal points up if atoms go clockwise.
    return np.column_stack((radius * np.cos(turn), -radius * np.sin(turn), heights))


CHAIR = 0.05 * (-1.0) ** np.arange(6)
BOAT = 0.05 * np.array([1, -0.5, -0.5, 1, -0.5, -0.5])
TWIST = 0.05 * np.array([0, 1, -1, 0, 1, -1])


def hydrocarbon(x: np.ndarray, bonds: list[tuple[int, int]], elements: str) -> MolecularSystem:
    """A molecule without a force field."""
    topology, system = mdtraj.Topology(), openmm.System()
    residue = topology.add_residue("MOL", topology.add_chain())
    for number, symbol in enumerate(elements):
        element = mdtraj.element.Element.getBySymbol(symbol)
        topology.add_atom(f"{symbol}{number}", element, residue)
        system.addParticle(element.mass)
    for i, j in bonds:
        topology.add_bond(topology.atom(i), topology.atom(j))
    return MolecularSystem("molecule", topology, openmm.XmlSerializer.serialize(system), x, 300.0, {})


@pytest.mark.parametrize(
    ("heights", "theta"), [(CHAIR, 0), (-CHAIR, 180), (BOAT, 90), (-BOAT, 90), (TWIST, 90)]
)
def test_chairs_are_at_the_poles_and_boats_on_the_equator(heights: np.ndarray, theta: float) -> None:
    found = ConformationAngle("ring", tuple(range(6)))(ring(6, heights)[None])
    assert np.degrees(found) == pytest.approx([theta], abs=1e-6)
    amplitude, phase, _ = cremer_pople(ring(6, heights)[None])
    assert amplitude[0] == pytest.approx(np.linalg.norm(heights))
    if heights is BOAT or heights is TWIST:  # B at multiples of 60 degrees, twists between them
        assert np.degrees(phase[0]) % 60 == pytest.approx(0 if heights is BOAT else 30, abs=1e-6)


@pytest.mark.parametrize("phase", [-144.0, 0.0, 18.0, 100.0])
def test_the_phase_of_five_atoms(phase: float) -> None:
    """Cremer and Pople's equation 8: heights are √(2/5) q cos(phase + 4πj/5)."""
    z = math.sqrt(2 / 5) * 0.04 * np.cos(math.radians(phase) + 4 * math.pi * np.arange(5) / 5)
    x = ring(5, z)[None]
    assert np.degrees(ConformationAngle("ring", tuple(range(5)))(x)) == pytest.approx([phase])
    assert cremer_pople(x)[0] == pytest.approx([0.04])
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    rotation *= np.sign(np.linalg.det(rotation))
    assert np.degrees(ConformationAngle("ring", tuple(range(5)))(x @ rotation + 3)) == pytest.approx([phase])


def test_torsions_are_those_of_mdtraj() -> None:
    system = molecule("ala2")
    x = frames(system, 20, 0.02).numpy()
    found = {angle.name: angle for angle in conformation_angles(system)}
    trajectory = mdtraj.Trajectory(x.astype(np.float32), system.topology)
    for name, compute in (("phi ALA2", mdtraj.compute_phi), ("psi ALA2", mdtraj.compute_psi)):
        atoms, values = compute(trajectory)
        assert found[name].atoms == tuple(atoms[0]) and found[name].kind == "torsion"
        assert np.allclose(found[name](x), values[:, 0], atol=1e-4)
    broken = x.copy()
    broken[3] = np.nan
    assert np.flatnonzero(np.isnan(found["phi ALA2"](broken))).tolist() == [3]


def test_bonds_that_turn() -> None:
    """No methyl groups, no bonds of small rings, no flat rings; side chains by their standard names."""
    names = [angle.name for angle in conformation_angles(molecule("FP"))]
    assert {"phi PHE2", "psi PHE2", "chi1 PHE2", "chi2 PHE2", "psi PRO3"} <= set(names)
    assert "phi PRO3" not in names and "chi1 PRO3" not in names
    assert [name for name in names if name.startswith("ring")] == ["ring PRO3:N-CA-CB-CG-CD"]
    serine = [angle.name for angle in conformation_angles(molecule("S"))]
    assert "SER2:CA-CB-OG-HG" in serine and not [name for name in serine if "HB" in name or "CH3-H" in name]


def test_rings_of_any_molecule() -> None:
    bonds = [(i, (i + 1) % 6) for i in range(6)]
    (found,) = conformation_angles(hydrocarbon(ring(6, CHAIR), bonds, "CCCCCC"))
    assert (found.name, found.kind, found.atoms) == ("ring C0-C1-C2-C3-C4-C5", "pucker", (0, 1, 2, 3, 4, 5))
    assert conformation_angles(hydrocarbon(ring(6, 0 * CHAIR), bonds, "CCCCCC")) == []  # flat
    # Bonds of a ring of eight turn.
    bonds = [(i, (i + 1) % 8) for i in range(8)]
    large = conformation_angles(hydrocarbon(ring(8, 0.05 * (-1.0) ** np.arange(8)), bonds, "C" * 8))
    assert len(large) == 8 and {angle.kind for angle in large} == {"torsion"}


def test_nothing_turns_about_a_straight_line() -> None:
    """2-butyne: C-C≡C-C has no torsion."""
    x = np.array([[0, 0, 0.0], [0.15, 0, 0], [0.27, 0, 0], [0.42, 0, 0]])
    assert conformation_angles(hydrocarbon(x, [(0, 1), (1, 2), (2, 3)], "CCCC")) == []


def test_an_angle_needs_different_atoms() -> None:
    for atoms in ((0, 1, 2), (0, 1, 2, 0), tuple(range(7))):
        with pytest.raises(ValueError, match="four different atoms"):
            ConformationAngle("wrong", atoms)
