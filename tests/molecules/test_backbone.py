"""Torsions phi and psi."""

import mdtraj
import numpy as np

from knotflow.molecules.backbone import backbone_torsions
from tests.molecules.molecules import molecule


def test_torsions_are_those_of_the_named_atoms() -> None:
    system = molecule("ala2")
    positions = np.asarray(system.positions[None], dtype=np.float32)
    torsions = backbone_torsions(system, positions)
    frame = mdtraj.Trajectory(positions, system.topology)
    expected = mdtraj.compute_dihedrals(frame, [[4, 6, 8, 14], [6, 8, 14, 16]])[0]
    assert list(torsions) == ["ALA2"] and torsions["ALA2"].shape == (1, 2)
    np.testing.assert_allclose(torsions["ALA2"][0], expected, atol=1e-6)
    peptide = molecule("GYDPETGTWG")
    assert len(backbone_torsions(peptide, peptide.positions[None].astype(np.float32))) == 10
    assert backbone_torsions(molecule("dimer"), np.zeros((1, 2, 3), dtype=np.float32)) == {}
