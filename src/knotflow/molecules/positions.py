"""Positions from the coordinate files of MD programs; their atoms come from a file of parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.molecules import pdb_file
from knotflow.molecules.structure import PLACEHOLDER_CELL, Structure, check_finite, plain_suffix, vectors_nm
from knotflow.sentences import one_line

if TYPE_CHECKING:
    from openmm import app

AMBER: Final = (".inpcrd", ".rst7", ".rst", ".restrt", ".ncrst")
ENDINGS: Final = (*pdb_file.KINDS, *AMBER, ".gro", ".crd")
"""Endings of files with positions."""


def placed(topology: app.Topology, path: Path) -> Structure:
    """Atoms of a topology at the positions in a file, which must have them in the same order.

    Raises:
        OSError: if there is no such file.
        ValueError: if it cannot be read, has a periodic box, or other atoms.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    elements = [atom.element for atom in topology.atoms()]
    found: list[Any] = elements
    if plain_suffix(path) in pdb_file.KINDS:
        structure = pdb_file.read_pdb(path)
        positions, found = structure.positions, [atom.element for atom in structure.topology.atoms()]
    else:
        positions = _read(path)
    if len(positions) != len(elements):
        raise ValueError(
            f"{path} has {len(positions)} atoms, but the force field describes {len(elements)}; give files "
            "of the same molecule."
        )
    for i, (ours, theirs) in enumerate(zip(elements, found, strict=True)):
        if ours is not theirs and ours is not None:
            raise ValueError(
                f"atom {i} (from 0) is {theirs.symbol} in {path}, but {ours.symbol} in the force field; "
                "give files with the atoms in the same order."
            )
    structure = Structure(topology, positions)
    check_finite(path, structure)
    return structure


def _read(path: Path) -> NDArray[np.float64]:
    from openmm import app

    suffix, box = path.suffix.lower(), None
    try:
        if suffix == ".gro":
            gro = app.GromacsGroFile(str(path))
            positions, box = gro.positions, gro.getPeriodicBoxVectors()
        elif suffix == ".crd" and path.read_text(errors="replace").lstrip().startswith("*"):
            positions = app.CharmmCrdFile(str(path)).positions
        else:
            amber = app.AmberInpcrdFile(str(path))
            positions, box = amber.positions, amber.boxVectors
        found = vectors_nm(positions)
    except Exception as error:  # OpenMM's parsers raise many types
        raise ValueError(
            f"{path} cannot be read as coordinates ({type(error).__name__}: {one_line(error)}); expected a "
            "file of Amber (.inpcrd, .rst7), GROMACS (.gro), CHARMM (.crd), or a .pdb or .cif file."
        ) from None
    if box is not None and max(float(edge[i]._value) for i, edge in enumerate(box)) > PLACEHOLDER_CELL:
        raise ValueError(
            f"{path} has a periodic box (its last line), but only vacuum and implicit solvent are supported; "
            "if the simulation was not periodic, remove the box (in a .gro file: 0 0 0)."
        )
    return found
