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
"""In nm: structures that are no crystals carry a unit cell of 1 Å, because the format demands one."""

LONGEST_BOND = 0.3
"""In nm: no covalent bond is longer; those across a gap in a chain are."""


class Structure(NamedTuple):
    """Atoms with their bonds, and where they are."""

    topology: app.Topology
    positions: NDArray[np.float64]
    """In nm, shape ``(atoms, 3)``."""


def read_pdb(path: str | Path) -> Structure:
    """Read the first model of a PDB file.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is no PDB file, has a periodic box, or holds water, ions or positions that are no
            numbers.
    """
    with optional("molecules"):
        from openmm import app, unit
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no PDB file {path}.")
    try:
        pdb = app.PDBFile(str(path))
    except Exception as error:  # OpenMM's parser raises errors of many kinds
        raise ValueError(
            f"{path} cannot be read as a PDB file ({type(error).__name__}: {error}); expected ATOM records "
            "with names, residues and coordinates in their columns."
        ) from None
    structure = Structure(
        pdb.topology, np.array(pdb.positions.value_in_unit(unit.nanometer), dtype=np.float64)
    )
    _check_no_box(path, structure)
    _check_no_solvent(path, structure)
    if not np.isfinite(structure.positions).all():
        atom = list(structure.topology.atoms())[np.flatnonzero(~np.isfinite(structure.positions).all(1))[0]]
        raise ValueError(
            f"{path}: atom {atom.name} of {residue_label(atom.residue)} has a coordinate that is no finite "
            "number; repair the file."
        )
    return structure


def with_hydrogens(structure: Structure, pH: float = 7.0) -> Structure:
    """Add the hydrogens that are missing, protonated as is usual at this pH; atoms that are there stay."""
    from openmm import OpenMMException, Platform, app, unit

    modeller = app.Modeller(structure.topology, structure.positions * unit.nanometer)
    # OpenMM lets new hydrogens relax from places it draws from Python's own generator: make that repeatable.
    state = random.getstate()
    random.seed(0)
    try:
        modeller.addHydrogens(pH=pH, platform=Platform.getPlatformByName("Reference"))
    except (ValueError, OpenMMException) as error:
        raise ValueError(
            f"hydrogens cannot be added to this structure: {error}; add them yourself."
        ) from None
    finally:
        random.setstate(state)
    return Structure(modeller.topology, np.array(modeller.positions.value_in_unit(unit.nanometer)))


def check_one_molecule(structure: Structure) -> None:
    """Refuse several molecules, and a chain with a gap in it.

    Raises:
        ValueError: if the bonds do not connect all atoms, or one is far too long.
    """
    from knotflow.geometry.graph import bonds_between, neighbours  # it needs torch, workers do not

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
            "; keep one molecule in the file, or add CONECT records for bonds that are not standard."
        )


def residue_label(residue: app.topology.Residue) -> str:
    """How messages name a residue: name, number and, if it has a name, chain."""
    chain = f" of chain {residue.chain.id}" if residue.chain.id.strip() else ""
    return f"residue {residue.name} {residue.id}{residue.insertionCode.strip()}{chain}"


def _check_no_box(path: Path, structure: Structure) -> None:
    box = structure.topology.getPeriodicBoxVectors()
    if box is None:
        return
    if max(edge[i]._value for i, edge in enumerate(box)) > PLACEHOLDER_CELL:
        raise ValueError(
            f"{path} has a periodic box (its CRYST1 line), but only vacuum and implicit solvent are "
            "supported; remove that line, and water and ions if there are any."
        )
    structure.topology.setPeriodicBoxVectors(None)


def _check_no_solvent(path: Path, structure: Structure) -> None:
    residues = list(structure.topology.residues())
    # A residue of one atom beside others is an ion.
    solvent = [r for r in residues if r.name == "HOH" or (len(residues) > 1 and len(list(r.atoms())) == 1)]
    if solvent:
        raise ValueError(
            f"{path} holds {len(solvent)} water molecules or ions (first {residue_label(solvent[0])}), but "
            "only one molecule in vacuum or implicit solvent is supported; remove them."
        )
