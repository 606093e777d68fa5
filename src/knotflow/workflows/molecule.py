"""Which molecule is meant, and with which energy: as on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from knotflow.energies.assembly import without_force_field
from knotflow.energies.settings import read_energy
from knotflow.molecules import MolecularSystem, ala2, peptides
from knotflow.molecules.files import from_files, plain_name, read_structure
from knotflow.molecules.force_field import DEFAULT_FORCE_FIELD, Solvent
from knotflow.molecules.structure import Structure


def load_molecule(
    molecule: str | Path | None = None,
    *,
    peptide: str | None = None,
    force_field: str | Sequence[str] | None = None,
    solvent: Solvent = "obc",
    temperature: float = 300.0,
    add_hydrogens: bool = False,
    energy: str = "force-field",
    charge: int | None = None,
    multiplicity: int | None = None,
) -> MolecularSystem:
    """A molecule with its energy, by the options of the command line; alanine dipeptide if none is named.

    Args:
        molecule: ``"ala2"``, a file (`knotflow.molecules.files`) or, with an energy that needs no force
            field, a SMILES.
        peptide: Instead: a sequence in one-letter code.
        force_field: The file or files that describe the energy; by default OpenMM's Amber ff99SB-ILDN.
        solvent: ``"obc"``: implicit water; ``"vacuum"``: none. Other energies than force fields have none.
        temperature: In K.
        add_hydrogens: Whether to add hydrogens that a file lacks.
        energy: ``"force-field"``, ``"xtb"``, ``"ase:..."`` or ``"module:..."``, see
            `knotflow.energies.read_energy`.
        charge: Of the molecule, for ``xtb`` and ``ase``; by default that of the formula.
        multiplicity: Unpaired electrons plus one, likewise.

    Raises:
        ValueError: if the options contradict each other, or the molecule cannot be made.
        OSError: if there is no such file.
    """
    files = [force_field] if isinstance(force_field, str) else list(force_field or ())
    if molecule is not None and peptide is not None:
        raise ValueError("--molecule and --peptide both name a molecule; give only one of them.")
    is_file = molecule is not None and str(molecule) != "ala2"
    if add_hydrogens and not is_file:
        raise ValueError("--add-hydrogens is for files; other molecules are complete, so leave it out.")
    other = read_energy(energy, charge, multiplicity)
    if other is not None and files:
        raise ValueError(f"--force-field and --energy {energy} are two energies; give only one of them.")
    if other is not None:
        if molecule is not None and is_file:
            given = charge is not None, multiplicity is not None
            return _file_with_energy(other, molecule, temperature, add_hydrogens, given)
        return _peptide_with_energy(other, peptide, temperature)
    if peptide is not None:
        return peptides.peptide(peptide, files or DEFAULT_FORCE_FIELD, solvent, temperature)
    if molecule is not None and is_file:
        return from_files(molecule, files, solvent, temperature, add_hydrogens)
    if files:
        raise ValueError(
            "ala2 has a force field of its own; use --peptide A, the same molecule, for another."
        )
    return ala2(temperature, solvent=solvent == "obc")


OPTIONS: Final = frozenset(list(inspect.signature(load_molecule).parameters)[1:])
"""What can be said of a molecule beside its name or file."""


def chosen(molecule: MolecularSystem | str | Path | None, options: Mapping[str, Any]) -> MolecularSystem:
    """A molecule as it is, or the one that its name and some of `OPTIONS` describe."""
    if not isinstance(molecule, MolecularSystem):
        return load_molecule(molecule, **options)
    if options:
        raise ValueError(
            f"{molecule.name} is a molecule with an energy already, so leave out {', '.join(options)}; "
            "knotflow.load_molecule makes it with other options."
        )
    return molecule


def _file_with_energy(
    energy: dict[str, Any],
    file: str | Path,
    temperature: float,
    add_hydrogens: bool,
    given: tuple[bool, bool],
) -> MolecularSystem:
    """The molecule in a file, or of a SMILES, with another energy than a force field.

    Its charge and multiplicity are those of the file unless they are ``given``; with another charge, the
    multiplicity of the file means nothing.
    """
    structure, charge, multiplicity = read_structure(file, add_hydrogens)
    charge_given, multiplicity_given = given
    if charge is not None and "charge" in energy and not charge_given:
        energy |= {"charge": charge} | ({} if multiplicity_given else {"multiplicity": multiplicity})
    return without_force_field(plain_name(file), structure, energy, temperature, source=Path(file).name)


def _peptide_with_energy(energy: dict[str, Any], peptide: str | None, temperature: float) -> MolecularSystem:
    """A peptide, by default alanine dipeptide, likewise; it starts from its structure in vacuum."""
    made = ala2(solvent=False) if peptide is None else peptides.peptide(peptide, solvent="vacuum")
    structure = Structure(made.topology.to_openmm(), made.positions)
    return without_force_field(made.name, structure, energy, temperature, source=made.origin["source"])
