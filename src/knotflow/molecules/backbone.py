"""Torsions of peptide backbones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from knotflow.extras import optional
from knotflow.molecules.system import MolecularSystem


def backbone_torsions(
    system: MolecularSystem, positions: NDArray[np.float32]
) -> dict[str, NDArray[np.float64]]:
    """(phi, psi) in rad of all residues that have both, shape ``(frames, 2)``, in the order of the chain.

    Args:
        system: The molecule.
        positions: In nm, shape ``(frames, atoms, 3)``.
    """
    with optional("molecules"):
        import mdtraj
    frames = mdtraj.Trajectory(positions, system.topology)
    (phi_atoms, phi), (psi_atoms, psi) = mdtraj.compute_phi(frames), mdtraj.compute_psi(frames)
    # Matched by the atom CA: the third of phi, the second of psi.
    psi_of = dict(zip(psi_atoms[:, 1].tolist(), psi.T, strict=True))
    return {
        str(system.topology.atom(ca).residue): np.stack((column, psi_of[ca]), -1).astype(np.float64)
        for ca, column in zip(phi_atoms[:, 2].tolist(), phi.T, strict=True)
        if ca in psi_of
    }
