"""The options of all commands that take a molecule, and the molecule that they describe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from knotflow.molecules.system import MolecularSystem

PANEL = "Molecule"


MoleculeOption = Annotated[
    str | None,
    typer.Option(
        "--molecule",
        rich_help_panel=PANEL,
        help="ala2 (alanine dipeptide, the default); a structure: .pdb or .cif, or .inpcrd, .rst7, .gro or "
        ".crd with its --force-field; or .sdf, .mol2 or a SMILES with --energy xtb.",
    ),
]
PeptideOption = Annotated[
    str | None,
    typer.Option(
        "--peptide",
        rich_help_panel=PANEL,
        help="A peptide in one-letter code, such as GYDPETGTWG; caps (ACE, NME) are added.",
    ),
]
ForceFieldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--force-field",
        rich_help_panel=PANEL,
        help="Files that describe the energy: OpenMM's XML files or your own, by default amber99sbildn.xml; "
        "a system.xml saved by OpenMM; Amber's .prmtop; GROMACS's .top; CHARMM's .psf, .prm, .rtf. Repeat "
        "for several.",
    ),
]
SolventOption = Annotated[
    Literal["obc", "vacuum"],
    typer.Option(
        "--solvent",
        rich_help_panel=PANEL,
        help="obc: implicit water that fits the force field; vacuum: no solvent. Other energies have none.",
    ),
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", rich_help_panel=PANEL, help="Temperature in kelvin.")
]
AddHydrogensOption = Annotated[
    bool,
    typer.Option(
        "--add-hydrogens",
        rich_help_panel=PANEL,
        help="Add hydrogens missing in the file; in a .pdb as at pH 7.",
    ),
]
EnergyOption = Annotated[
    str,
    typer.Option(
        "--energy",
        rich_help_panel=PANEL,
        help="force-field; xtb (GFN2-xTB); ase:package.module:factory, a function that returns a calculator "
        "of ASE; module:FILE or module:package.module:factory, a torch module, with its units if they are "
        "not eV and angstrom: module:FILE,hartree,angstrom.",
    ),
]
ChargeOption = Annotated[
    int | None,
    typer.Option("--charge", rich_help_panel=PANEL, help="Charge of the molecule, for xtb and ase."),
]
MultiplicityOption = Annotated[
    int | None,
    typer.Option(
        "--multiplicity",
        rich_help_panel=PANEL,
        min=1,
        help="Unpaired electrons plus one, for xtb and ase; an open shell needs it.",
    ),
]


def load_molecule(
    molecule: str | None = None,
    peptide: str | None = None,
    force_field: list[str] | None = None,
    solvent: Literal["obc", "vacuum"] = "obc",
    temperature: float = 300.0,
    add_hydrogens: bool = False,
    energy: str = "force-field",
    charge: int | None = None,
    multiplicity: int | None = None,
) -> MolecularSystem:
    """The system that the options ask for; alanine dipeptide if they name none.

    Raises:
        ValueError: if the options contradict each other, or the molecule cannot be made.
        OSError: if there is no such file.
    """
    from knotflow.energies.settings import read_energy
    from knotflow.molecules import peptides, system
    from knotflow.molecules.files import from_files
    from knotflow.molecules.force_field import DEFAULT_FORCE_FIELD

    if molecule is not None and peptide is not None:
        raise ValueError("--molecule and --peptide both name a molecule; give only one of them.")
    is_file = molecule is not None and molecule != "ala2"
    if add_hydrogens and not is_file:
        raise ValueError("--add-hydrogens is for files; other molecules are complete, so leave it out.")
    other = read_energy(energy, charge, multiplicity)
    if other is not None and force_field:
        raise ValueError(f"--force-field and --energy {energy} are two energies; give only one of them.")
    if other is not None:
        if molecule is not None and is_file:
            given = charge is not None, multiplicity is not None
            return _file_with_energy(other, molecule, temperature, add_hydrogens, given)
        return _peptide_with_energy(other, peptide, temperature)
    if peptide is not None:
        return peptides.peptide(peptide, force_field or DEFAULT_FORCE_FIELD, solvent, temperature)
    if molecule is not None and is_file:
        return from_files(molecule, force_field or (), solvent, temperature, add_hydrogens)
    if force_field:
        raise ValueError(
            "ala2 has a force field of its own; use --peptide A, the same molecule, for another."
        )
    return system.ala2(temperature, solvent=solvent == "obc")


def _file_with_energy(
    energy: dict[str, Any], file: str, temperature: float, add_hydrogens: bool, given: tuple[bool, bool]
) -> MolecularSystem:
    """The molecule in a file, or of a SMILES, with another energy than a force field.

    Its charge and multiplicity are those of the file unless they are ``given``; with another charge, the
    multiplicity of the file means nothing.
    """
    from knotflow.energies.assembly import without_force_field
    from knotflow.molecules.files import plain_name, read_structure

    structure, charge, multiplicity = read_structure(file, add_hydrogens)
    charge_given, multiplicity_given = given
    if charge is not None and "charge" in energy and not charge_given:
        energy |= {"charge": charge} | ({} if multiplicity_given else {"multiplicity": multiplicity})
    return without_force_field(plain_name(file), structure, energy, temperature, source=Path(file).name)


def _peptide_with_energy(energy: dict[str, Any], peptide: str | None, temperature: float) -> MolecularSystem:
    """A peptide, by default alanine dipeptide, likewise; it starts from its structure in vacuum."""
    from knotflow.energies.assembly import without_force_field
    from knotflow.molecules import peptides, system
    from knotflow.molecules.structure import Structure

    made = system.ala2(solvent=False) if peptide is None else peptides.peptide(peptide, solvent="vacuum")
    structure = Structure(made.topology.to_openmm(), made.positions)
    return without_force_field(made.name, structure, energy, temperature, source=made.origin["source"])
