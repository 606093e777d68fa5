"""Structures of one molecule: read from a PDB file, completed with hydrogens, checked."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knotflow.extras import optional

if TYPE_CHECKING:
    from openmm import app

PLACEHOLDER_CELL = 0.1001
"""In nm: files without a crystal still have a unit cell of 1 Å, because the format requires one."""

LONGEST_BOND = 0.3
"""In nm: no covalent bond is longer, but a bond across a gap in a chain is."""


class Structure(NamedTuple):
    """Atoms, bonds and positions."""

    topology: app.Topology
    positions: NDArray[np.float64]
    """In nm, shape ``(atoms, 3)``."""


def read_pdb(path: str | Path) -> Structure:
    """Read the first model of a PDB file.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is not a PDB file, has a periodic box, water, ions or positions that are not finite.
    """
    with optional("molecules"):
        from openmm import app, unit
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no PDB file {path}.")
    try:
        pdb = app.PDBFile(str(path))
    except Exception as error:  # OpenMM's parser raises many types
        raise ValueError(
            f"{path} cannot be read as a PDB file ({type(error).__name__}: {error}); expected ATOM records "
            "with names, residues and coordinates in their columns."
        ) from None
    positions = np.array(pdb.positions.value_in_unit(unit.nanometer), dtype=np.float64)
    box = pdb.topology.getPeriodicBoxVectors()
    if box is not None and max(edge[i]._value for i, edge in enumerate(box)) > PLACEHOLDER_CELL:
        raise ValueError(
            f"{path} has a periodic box (its CRYST1 line), but only vacuum and implicit solvent are "
            "supported; remove that line, and any water and ions."
        )
    pdb.topology.setPeriodicBoxVectors(None)
    residues = list(pdb.topology.residues())
    # A residue of one atom next to others is an ion.
    solvent = [r for r in residues if r.name == "HOH" or (len(residues) > 1 and len(list(r.atoms())) == 1)]
    if solvent:
        raise ValueError(
            f"{path} contains {len(solvent)} water molecules or ions (first {residue_label(solvent[0])}), "
            "but only one molecule in vacuum or implicit solvent is supported; remove them."
        )
    if not np.isfinite(positions).all():
        atom = list(pdb.topology.atoms())[np.isfinite(positions).all(1).argmin()]
        raise ValueError(
            f"{path}: atom {atom.name} of {residue_label(atom.residue)} has a coordinate that is not a "
            "finite number; repair the file."
        )
    return Structure(pdb.topology, positions)


def with_hydrogens(structure: Structure) -> Structure:
    """Add the missing hydrogens, with the usual protonation at pH 7; existing atoms stay."""
    from openmm import OpenMMException, Platform, app, unit

    modeller = app.Modeller(structure.topology, structure.positions * unit.nanometer)
    # OpenMM places new hydrogens with Python's global generator: seed it to make them repeatable.
    state = random.getstate()
    random.seed(0)
    try:
        modeller.addHydrogens(pH=7.0, platform=Platform.getPlatformByName("Reference"))
    except (ValueError, OpenMMException) as error:
        raise ValueError(
            f"hydrogens cannot be added to this structure: {error}; add them yourself."
        ) from None
    finally:
        random.setstate(state)
    return Structure(modeller.topology, np.array(modeller.positions.value_in_unit(unit.nanometer)))


def check_one_molecule(structure: Structure) -> None:
    """Refuse several molecules, and a chain with a gap.

    Raises:
        ValueError: if the bonds do not connect all atoms, or one is far too long.
    """
    from knotflow.geometry.graph import bonds_between, neighbours  # needs torch, which workers do not load

    pairs = [(a.index, b.index) for a, b in structure.topology.bonds()]
    bonds = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    atoms = list(structure.topology.atoms())
    lengths = np.linalg.norm(structure.positions[bonds[:, 0]] - structure.positions[bonds[:, 1]], axis=1)
    if (lengths > LONGEST_BOND).any():
        a, b = (atoms[i] for i in bonds[lengths.argmax()])
        raise ValueError(
            f"atoms {a.name} of {residue_label(a.residue)} and {b.name} of {residue_label(b.residue)} are "
            f"bonded but {lengths.max():.2f} nm apart; if residues are missing there, complete the chain."
        )
    reached = bonds_between(neighbours(len(atoms), pairs), 0) >= 0
    if not reached.all():
        other = atoms[reached.argmin()]
        raise ValueError(
            f"expected one molecule, but no bonds lead from its first atom to {residue_label(other.residue)}"
            "; keep one molecule in the file, or add CONECT records for non-standard bonds."
        )


def residue_label(residue: app.topology.Residue) -> str:
    """A residue in a message: name, number and, if it has a name, chain."""
    chain = f" of chain {residue.chain.id}" if residue.chain.id.strip() else ""
    return f"residue {residue.name} {residue.id}{residue.insertionCode.strip()}{chain}"
