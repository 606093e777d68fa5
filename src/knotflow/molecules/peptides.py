"""Peptides from their sequence, capped at both ends: ACE-...-NME."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from knotflow.extras import optional
from knotflow.molecules.force_field import DEFAULT_FORCE_FIELD, Solvent
from knotflow.molecules.structure import Structure, with_hydrogens
from knotflow.molecules.system import MolecularSystem, assemble

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
LONGEST = 100

# A glycine has all heavy atoms of either cap: which of them these are, and what the cap calls them.
ACETYL = {"CA": "CH3", "C": "C", "O": "O"}
METHYLAMIDE = {"N": "N", "CA": "C"}


def peptide(
    sequence: str,
    force_field: Sequence[str] = DEFAULT_FORCE_FIELD,
    solvent: Solvent = "obc",
    temperature: float = 300.0,
) -> MolecularSystem:
    """An extended chain of L-amino acids with an acetyl and a methylamide cap, protonated as at pH 7.

    Args:
        sequence: One letter for each residue, without the caps; ``"A"`` is alanine dipeptide.
        force_field: XML files of OpenMM by name or your own by path.
        solvent: ``"obc"`` adds the implicit water that fits the force field; ``"vacuum"`` adds nothing.
        temperature: In K.

    Raises:
        ValueError: if the sequence is empty, too long, or has letters that stand for no amino acid.
    """
    sequence = _checked(sequence)
    structure = with_hydrogens(heavy_atoms(sequence))
    return assemble(
        sequence, structure, force_field, solvent, temperature, source=f"peptide ACE-{sequence}-NME", pH=7.0
    )


def heavy_atoms(sequence: str) -> Structure:
    """The capped, extended chain without hydrogens; in a residue the side chain comes before C and O."""
    with optional("molecules"):
        import PeptideBuilder
        from openmm import app
    chain = PeptideBuilder.make_extended_structure(f"G{sequence}G")
    first, *middle, last = ({a.get_name(): a.coord for a in residue} for residue in chain.get_residues())
    names = [residue.get_resname() for residue in chain.get_residues()][1:-1]
    topology = app.Topology()
    openmm_chain = topology.addChain("A")
    positions = []

    def add(residue_name: str, atoms: Iterable[tuple[str, np.ndarray]]) -> None:
        residue = topology.addResidue(residue_name, openmm_chain)
        for name, angstrom in atoms:
            topology.addAtom(
                name, app.Element.getBySymbol(name[0]), residue
            )  # C, N, O and S: one letter is enough
            positions.append(angstrom / 10)

    add("ACE", ((name, first[old]) for old, name in ACETYL.items()))
    for name, atoms in zip(names, middle, strict=True):
        add(name, sorted(atoms.items(), key=lambda atom: atom[0] in ("C", "O")))
    add("NME", ((name, last[old]) for old, name in METHYLAMIDE.items()))
    topology.createStandardBonds()
    return Structure(topology, np.array(positions, dtype=np.float64))


def _checked(sequence: str) -> str:
    letters = sequence.strip().upper()
    unknown = sorted(set(letters) - set(AMINO_ACIDS))
    if unknown:
        raise ValueError(
            f"a peptide is a sequence of the letters {AMINO_ACIDS}, got {sequence!r} with "
            f"{', '.join(map(repr, unknown))}; leave the caps out, they are added."
        )
    if not 1 <= len(letters) <= LONGEST:
        raise ValueError(f"a peptide must have 1 to {LONGEST} residues, got {len(letters)}.")
    return letters
