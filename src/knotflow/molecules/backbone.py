"""Torsions of the backbone of peptides."""

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
    # By the atom CA, which both have as one of their inner two.
    psi_of = {int(atoms[1]): column for atoms, column in zip(psi_atoms, psi.T, strict=True)}
    return {
        str(system.topology.atom(atoms[2]).residue): np.stack((column, psi_of[atoms[2]]), -1).astype(
            np.float64
        )
        for atoms, column in zip(phi_atoms.tolist(), phi.T, strict=True)
        if atoms[2] in psi_of
    }
