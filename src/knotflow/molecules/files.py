"""A molecule from what people have on disk: a structure and the files that describe its energy.

| structure | energy |
| --- | --- |
| ``.pdb``, ``.cif`` | OpenMM force fields (``.xml``), by name or path; the default is Amber ff99SB-ILDN |
| ``.sdf``, ``.mol2``, SMILES | an OpenMM force field of your own that describes the molecule |
| ``.pdb``, ``.cif``, ``.sdf``, ``.mol2`` | a serialised OpenMM System (``system.xml``) |
| ``.inpcrd``, ``.rst7`` | Amber: ``.prmtop``, ``.parm7`` |
| ``.gro`` | GROMACS: ``.top`` |
| ``.crd``, ``.pdb`` | CHARMM: ``.psf`` and its parameter files |
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from knotflow.extras import optional
from knotflow.molecules import chemical, pdb_file, positions, system
from knotflow.molecules.amber import read_amber
from knotflow.molecules.charmm import read_charmm
from knotflow.molecules.chemical import read_chemical
from knotflow.molecules.force_field import DEFAULT_FORCE_FIELD, SOLVENT_FORCES, Described, Solvent
from knotflow.molecules.gromacs import read_gromacs
from knotflow.molecules.serialised import check_same_bonds, is_system, read_system
from knotflow.molecules.structure import Structure, plain_stem, plain_suffix, with_hydrogens

PRMTOP: Final = (".prmtop", ".parm7")
PARAMETERS: Final = (*PRMTOP, ".top", ".psf")
"""Endings of files that describe the energy of one molecule, beside ``system.xml``."""

PARTNERS: Final = {
    ".gro": "topol.top",
    ".crd": "molecule.psf",
    **dict.fromkeys(positions.AMBER, "mol.prmtop"),
}
"""For a structure without bonds, an example of the file that goes with it."""


def from_files(
    molecule: str | Path,
    force_field: Sequence[str] = (),
    solvent: Solvent = "obc",
    temperature: float = 300.0,
    add_hydrogens: bool = False,
) -> system.MolecularSystem:
    """The molecule in a file of MD programs, with the energy that other files describe.

    Args:
        molecule: The structure; the table above lists the formats.
        force_field: The files that describe its energy; by default OpenMM's Amber ff99SB-ILDN.
        solvent: ``"obc"``: implicit water; ``"vacuum"``: none. A serialised System has its own.
        temperature: In K.
        add_hydrogens: Whether to add missing hydrogens, for OpenMM force fields only.

    Raises:
        OSError: if a file is missing.
        ValueError: if the files do not describe exactly one complete molecule in open space.
    """
    with optional("molecules"):
        import openmm  # noqa: F401
    files, suffix = [Path(file) for file in force_field], plain_suffix(molecule)
    if suffix in PARAMETERS:
        raise ValueError(
            f"{molecule} describes an energy, not positions; give it as --force-field, and the positions "
            "as --molecule (.inpcrd, .rst7, .gro, .crd, .pdb or .cif)."
        )
    parametrised = any(file.suffix.lower() in PARAMETERS or is_system(file) for file in files)
    if not parametrised and suffix in pdb_file.KINDS:
        chosen = list(force_field) or DEFAULT_FORCE_FIELD
        return system.from_pdb(molecule, chosen, solvent, temperature, add_hydrogens)
    if not parametrised:
        if suffix not in PARTNERS and not files:
            raise ValueError(_without_force_field(str(molecule)))
        structure, name = read_structure(molecule, add_hydrogens).structure, plain_name(molecule)
        return system.assemble(name, structure, list(force_field), solvent, temperature, source=name)
    if add_hydrogens:
        raise ValueError(
            f"{files[0]} says which atoms there are, so hydrogens cannot be added (--add-hydrogens); give a "
            "complete structure."
        )
    notes: dict[str, Any] = {"source": Path(molecule).name, "parameters": [file.name for file in files]}
    if is_system(files[0]):
        _only_one(files, "a serialised System")
        structure, described = read_structure(molecule).structure, read_system(files[0])
        check_same_bonds(files[0], described, structure)
        implicit = any(type(force).__name__ in SOLVENT_FORCES for force in described.getForces())
        notes["solvent"] = "as in the System" if implicit else "vacuum"
    else:
        topology, described = _read(files, solvent)
        structure, notes["solvent"] = positions.placed(topology, Path(molecule)), str(solvent)
    return system.described(plain_name(molecule), structure, described, temperature, **notes)


class Electrons(NamedTuple):
    """A structure, and its charge and multiplicity if the file gives them."""

    structure: Structure
    charge: int | None = None
    multiplicity: int | None = None


def read_structure(molecule: str | Path, add_hydrogens: bool = False) -> Electrons:
    """Atoms, bonds and positions from a ``.pdb``, ``.cif``, ``.sdf`` or ``.mol2`` file, or of a SMILES.

    Raises:
        OSError: if there is no such file.
        ValueError: if it cannot be read as one molecule, or has no bonds.
    """
    suffix = plain_suffix(molecule)
    if suffix in PARTNERS or suffix in PARAMETERS:
        raise ValueError(
            f"{molecule} has no elements and bonds; add the file that describes the energy, such as "
            f"--force-field {PARTNERS.get(suffix, molecule)}, or give a .pdb, .cif, .sdf or .mol2 file."
        )
    if suffix not in pdb_file.KINDS:
        return Electrons(*read_chemical(str(molecule), add_hydrogens))
    structure = pdb_file.read_pdb(molecule)
    return Electrons(with_hydrogens(structure) if add_hydrogens else structure)


def plain_name(molecule: str | Path) -> str:
    """The name of a file without its ending, or a SMILES as it is."""
    known = (*positions.ENDINGS, *chemical.ENDINGS)
    return plain_stem(molecule) if plain_suffix(molecule) in known else str(molecule)


def _without_force_field(molecule: str) -> str:
    if chemical.is_chemical(molecule):
        return (
            f"no force field is known for {molecule}; add --energy xtb, which needs none, or a --force-field "
            "of your own that describes it."
        )
    return (
        f"the molecule must be ala2, a file ({', '.join(positions.ENDINGS)}) or, with --energy xtb, an .sdf "
        f"or .mol2 file or a SMILES, got {molecule!r}; see also --peptide."
    )


def _read(files: list[Path], solvent: Solvent) -> Described:
    """Atoms and System in the files of an MD program."""
    structures = [file for file in files if file.suffix.lower() == ".psf"]
    if structures:
        return read_charmm(structures[0], [file for file in files if file != structures[0]], solvent)
    if files[0].suffix.lower() in PRMTOP or _is_prmtop(files[0]):
        _only_one(files, "a prmtop file")
        return read_amber(files[0], solvent)
    _only_one(files, "a topology of GROMACS")
    return read_gromacs(files[0], solvent)


def _is_prmtop(path: Path) -> bool:
    """Whether a file that ends in ``.top`` is one of Amber."""
    if not path.is_file():
        return False
    with path.open(errors="replace") as file:
        return file.readline().startswith("%VERSION")


def _only_one(files: list[Path], kind: str) -> None:
    if len(files) > 1:
        raise ValueError(
            f"{kind} describes the whole energy, so it must be the only --force-field, got "
            f"{', '.join(map(str, files))}."
        )
