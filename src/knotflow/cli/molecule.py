"""The options of all commands that take a molecule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

if TYPE_CHECKING:
    from knotflow.molecules.system import MolecularSystem

PANEL: Final = "Molecule"

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


def chosen_molecule(ctx: typer.Context, molecule: str | None) -> MolecularSystem:
    """The molecule that the options of a command describe.

    Args:
        ctx: The command as it was called.
        molecule: The name, file or SMILES.
    """
    from knotflow.workflows.molecule import OPTIONS, load_molecule

    return load_molecule(molecule, **{name: ctx.params[name] for name in OPTIONS})
