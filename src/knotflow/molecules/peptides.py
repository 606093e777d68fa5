"""Peptides built from their sequence and capped at both ends: ACE-...-NME."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from knotflow.extras import optional
from knotflow.molecules.force_field import DEFAULT_FORCE_FIELD, Solvent
from knotflow.molecules.structure import Structure, with_hydrogens
from knotflow.molecules.system import MolecularSystem, assemble

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
LONGEST = 100

# The caps are made from a glycine at either end: which of its heavy atoms stay, and their names in the cap.
ACETYL = {"CA": "CH3", "C": "C", "O": "O"}
METHYLAMIDE = {"N": "N", "CA": "C"}


def peptide(
    sequence: str,
    force_field: Sequence[str] = DEFAULT_FORCE_FIELD,
    solvent: Solvent = "obc",
    temperature: float = 300.0,
) -> MolecularSystem:
    """An extended chain of L-amino acids with acetyl and methylamide caps, protonated as at pH 7.

    Args:
        sequence: One letter per residue, without the caps; ``"A"`` is alanine dipeptide.
        force_field: OpenMM's XML files by name, or your own by path.
        solvent: ``"obc"`` adds the implicit water that goes with the force field; ``"vacuum"`` adds nothing.
        temperature: In K.

    Raises:
        ValueError: if the sequence is empty, too long, or has letters that stand for no amino acid.
    """
    letters = sequence.strip().upper()
    unknown = sorted(set(letters) - set(AMINO_ACIDS))
    if unknown:
        raise ValueError(
            f"a peptide is a sequence of the letters {AMINO_ACIDS}, got {sequence!r} with "
            f"{', '.join(map(repr, unknown))}; leave the caps out, they are added."
        )
    if not 1 <= len(letters) <= LONGEST:
        raise ValueError(f"a peptide must have 1 to {LONGEST} residues, got {len(letters)}.")
    structure = with_hydrogens(_heavy_atoms(letters))
    return assemble(
        letters, structure, force_field, solvent, temperature, source=f"peptide ACE-{letters}-NME", pH=7.0
    )


def _heavy_atoms(sequence: str) -> Structure:
    """The capped, extended chain without hydrogens; the side chain of a residue comes before its C and O."""
    with optional("molecules"):
        import PeptideBuilder
        from openmm import app
    residues = list(PeptideBuilder.make_extended_structure(f"G{sequence}G").get_residues())
    first, *middle, last = ({atom.get_name(): atom.coord for atom in residue} for residue in residues)
    topology = app.Topology()
    chain = topology.addChain("A")
    positions = []

    def add(residue_name: str, atoms: Iterable[tuple[str, np.ndarray]]) -> None:
        residue = topology.addResidue(residue_name, chain)
        for name, angstrom in atoms:
            element = app.Element.getBySymbol(name[0])  # C, N, O or S
            topology.addAtom(name, element, residue)
            positions.append(angstrom / 10)

    add("ACE", ((name, first[old]) for old, name in ACETYL.items()))
    for residue, atoms in zip(residues[1:-1], middle, strict=True):
        add(residue.get_resname(), sorted(atoms.items(), key=lambda atom: atom[0] in ("C", "O")))
    add("NME", ((name, last[old]) for old, name in METHYLAMIDE.items()))
    topology.createStandardBonds()
    return Structure(topology, np.array(positions, dtype=np.float64))
