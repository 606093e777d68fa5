"""Small molecules without a force field, for tests of other energies."""

from __future__ import annotations

import numpy as np
from ase.build import molecule
from ase.neighborlist import natural_cutoffs, neighbor_list
from openmm import app

from knotflow.molecules.structure import Structure


def bare(name: str) -> Structure:
    """A molecule of ASE's collection by its name, such as ``"H2O"`` or ``"trans-butane"``, with its bonds."""
    atoms = molecule(name)
    topology = app.Topology()
    residue = topology.addResidue("MOL", topology.addChain("A"))
    members = [
        topology.addAtom(f"{symbol}{i}", app.Element.getBySymbol(symbol), residue)
        for i, symbol in enumerate(atoms.symbols)
    ]
    for i, j in zip(*neighbor_list("ij", atoms, natural_cutoffs(atoms, mult=1.2)), strict=True):
        if i < j:
            topology.addBond(members[i], members[j])
    return Structure(topology, np.array(atoms.positions) / 10)
