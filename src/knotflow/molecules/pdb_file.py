"""Structures from PDB and mmCIF files: what is read, and what is left out and named."""

from __future__ import annotations

import gzip
import io
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.extras import optional
from knotflow.molecules.structure import (
    PLACEHOLDER_CELL,
    Structure,
    check_finite,
    plain_suffix,
    residue_label,
    vectors_nm,
)
from knotflow.sentences import listed, one_line

if TYPE_CHECKING:
    from openmm import app

log = logging.getLogger("knotflow")

KINDS: Final = {".pdb": "PDB", ".ent": "PDB", ".cif": "mmCIF", ".mmcif": "mmCIF"}
"""Endings of files, which may be compressed (``.gz``), and their formats."""

LONGEST: Final = 2**28
"""Characters in a file, unpacked; a compressed file of some kilobytes could fill the memory."""

L_CENTRES: Final = {"CA": ("N", "C", "CB"), "ILE CB": ("CA", "CG1", "CG2"), "THR CB": ("CA", "OG1", "CG2")}
"""Stereocentres of the natural amino acids, and three neighbours, seen clockwise from the hydrogen."""


def read_pdb(path: str | Path) -> Structure:
    """Read the first model of a PDB or mmCIF file, compressed or not.

    Further models, alternate locations of atoms, and residues of the other hand than in natural proteins are
    named in a warning.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is no such file, has a periodic box, water, ions, atoms of no known element, or
            positions that are not finite.
    """
    with optional("molecules"):
        from openmm import app
    path = Path(path)
    kind = KINDS.get(plain_suffix(path), "PDB")
    if not path.is_file():
        raise FileNotFoundError(f"there is no {kind} file {path}.")
    try:
        with gzip.open(path, "rt") if path.suffix.lower() == ".gz" else path.open() as file:
            text = file.read(LONGEST + 1)
        if len(text) > LONGEST:
            raise ValueError(f"it has more than {LONGEST:,} characters")
        lines = io.StringIO(text).readlines()
        if kind == "PDB":
            _check_bonds(lines)
        found = app.PDBFile(iter(lines)) if kind == "PDB" else app.PDBxFile(iter(lines))
    except Exception as error:  # OpenMM's parsers raise many types
        expected = "ATOM records with names, residues and coordinates in their columns"
        raise ValueError(
            f"{path} cannot be read as {'a PDB' if kind == 'PDB' else 'an mmCIF'} file "
            f"({type(error).__name__}: {one_line(error)}); expected "
            f"{expected if kind == 'PDB' else 'a table atom_site with names, residues and coordinates'}."
        ) from None
    topology, positions = found.topology, vectors_nm(found.positions)
    box = topology.getPeriodicBoxVectors()
    if box is not None and max(edge[i]._value for i, edge in enumerate(box)) > PLACEHOLDER_CELL:
        raise ValueError(
            f"{path} has a periodic box (its {'CRYST1 line' if kind == 'PDB' else 'cell'}), but only vacuum "
            "and implicit solvent are supported; remove that line, and any water and ions."
        )
    topology.setPeriodicBoxVectors(None)
    residues = list(topology.residues())
    # A residue of one atom next to others is an ion.
    solvent = [r for r in residues if r.name == "HOH" or (len(residues) > 1 and len(list(r.atoms())) == 1)]
    if solvent:
        raise ValueError(
            f"{path} contains {len(solvent)} water molecules or ions (first {residue_label(solvent[0])}), "
            "but only one molecule in vacuum or implicit solvent is supported; remove them."
        )
    structure = Structure(topology, positions)
    check_finite(path, structure)
    _name_what_is_left_out(path, found.getNumFrames(), _alternates(lines, kind))
    _name_other_hands(path, structure)
    return structure


def _check_bonds(lines: Sequence[str]) -> None:
    """Refuse a file that was cut off in the middle of its bonds: the rest may be another molecule."""
    ends = [i for i, line in enumerate(lines) if line[:6].strip() in ("END", "MASTER")]
    bonds = [i for i, line in enumerate(lines) if line.startswith("CONECT")]
    if bonds and (not ends or ends[-1] < bonds[-1]):
        raise ValueError(
            "it ends in the middle of its bonds, with a CONECT record and no END; if nothing is missing, add "
            "a line END"
        )


def _alternates(lines: Sequence[str], kind: str) -> int:
    """Number of atoms in the first model that are at several places."""
    places: Counter[tuple[str, ...]] = Counter()
    for atom, place in _pdb_places(lines) if kind == "PDB" else _cif_places(lines):
        places[atom] += place.strip() not in ("", ".", "?")
    return sum(count > 1 for count in places.values())


def _pdb_places(lines: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Atoms of the first model, and the letter of their place."""
    for line in takewhile(lambda line: not line.startswith("ENDMDL"), lines):
        if line.startswith(("ATOM  ", "HETATM")):
            yield (line[12:16], line[17:27]), line[16:17]


def _cif_places(lines: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    from openmm.app.internal.pdbx.reader.PdbxReader import PdbxReader

    blocks: list[Any] = []
    PdbxReader(iter(lines)).read(blocks)
    table = blocks[0].getObj("atom_site")
    rows, names = table.getRowList(), ("pdbx_PDB_model_num", "label_asym_id", "label_seq_id", "label_atom_id")
    columns = [column for name in names if (column := table.getAttributeIndex(name)) >= 0]
    place = table.getAttributeIndex("label_alt_id")
    for row in rows if place >= 0 else ():
        if row[columns[0]] == rows[0][columns[0]]:
            yield tuple(row[column] for column in columns), row[place]


def _name_what_is_left_out(path: Path, models: int, alternates: int) -> None:
    if models > 1:
        log.warning(f"{path} has {models} models; the first is used, the others are left out.")
    if alternates:
        log.warning(
            f"{path} has {alternates} atoms with alternate locations; the first of each is used, the others "
            "are left out."
        )


def _name_other_hands(path: Path, structure: Structure) -> None:
    found = list(_other_hands(structure.topology, structure.positions))
    if found:
        log.warning(
            f"{path} has stereocentres of the other hand than in natural proteins, which stay as they are: "
            f"{listed(found)}."
        )


def _other_hands(topology: app.Topology, positions: NDArray[np.float64]) -> Iterator[str]:
    """D-residues, and side chains of the other hand: "D-ALA 2", "CB of ILE 3"."""
    for residue in topology.residues():
        atoms = {atom.name: positions[atom.index] for atom in residue.atoms()}
        for centre, corners in L_CENTRES.items():
            only, _, name = centre.rpartition(" ")
            if (only and only != residue.name) or not {name, *corners} <= atoms.keys():
                continue
            a, b, c = (atoms[corner] - atoms[name] for corner in corners)
            if np.dot(np.cross(a, b), c) < 0:
                label = f"{residue.name} {residue.id}"
                yield f"D-{label}" if name == "CA" else f"{name} of {label}"
