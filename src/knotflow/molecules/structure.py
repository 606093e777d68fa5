"""Structures of one molecule: completed with hydrogens, checked."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from openmm import app

PLACEHOLDER_CELL = 0.1001
"""In nm: files without a crystal still have a unit cell of 1 Å, because the format requires one."""

FARTHEST = 1e6
"""In nm: no atom is so far from the origin."""

LONGEST_BOND = 0.3
"""In nm: no covalent bond is longer, but a bond across a gap in a chain is."""


class Structure(NamedTuple):
    """Atoms, bonds and positions."""

    topology: app.Topology
    positions: NDArray[np.float64]
    """In nm, shape ``(atoms, 3)``."""


def plain_suffix(path: str | Path) -> str:
    """The ending of a file, in small letters and without ``.gz``."""
    path = Path(path)
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def plain_stem(path: str | Path) -> str:
    """The name of a file without its ending, nor that of a compressed file."""
    path = Path(path)
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).stem


def vectors_nm(positions: Any) -> NDArray[np.float64]:
    """OpenMM's list of vectors as an array in nm."""
    from openmm import unit

    return np.array(positions.value_in_unit(unit.nanometer), dtype=np.float64).reshape(-1, 3)


def check_finite(path: Path, structure: Structure) -> None:
    """Refuse atoms of no known element, and coordinates that are not finite."""
    for atom, position in zip(structure.topology.atoms(), structure.positions, strict=True):
        if atom.element is None:
            raise ValueError(
                f"{path}: atom {atom.name} of {residue_label(atom.residue)} has no known element; every "
                "particle must be an atom, so correct its element, or remove the virtual site."
            )
        if not (np.abs(position) < FARTHEST).all():
            raise ValueError(
                f"{path}: atom {atom.name} of {residue_label(atom.residue)} has a coordinate that is not a "
                "finite number, or is absurdly large; repair the file."
            )


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
