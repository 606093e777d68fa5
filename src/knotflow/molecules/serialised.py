"""OpenMM Systems that users saved themselves (system.xml)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from knotflow.molecules.openmm_xml import deserialised
from knotflow.molecules.structure import Structure, residue_label
from knotflow.sentences import one_line

if TYPE_CHECKING:
    import openmm

NOT_PHYSICS: Final = ("CMMotionRemover", "AndersenThermostat")
"""Forces of a System that have no energy: they belong to a simulation, and are left out."""


def is_system(path: Path) -> bool:
    """Whether an XML file is a serialised System, not a force field."""
    if path.suffix.lower() != ".xml" or not path.is_file():
        return False
    with path.open(errors="replace") as file:
        return "<System" in file.read(2000)


def read_system(path: Path) -> openmm.System:
    """A System saved with ``XmlSerializer.serialize``.

    Raises:
        ValueError: if it cannot be read, has constraints or is periodic.
    """
    try:
        system = deserialised(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a serialised OpenMM System: {one_line(error)}.") from None
    if n := system.getNumConstraints():
        raise ValueError(
            f"the System in {path} has {n} constraints, which took the place of bond energies, but every "
            "coordinate must be free; make it again with createSystem(..., constraints=None, "
            "rigidWater=False) and save that. Frames of the constrained simulation can still be imported."
        )
    if system.usesPeriodicBoundaryConditions():
        raise ValueError(
            f"the System in {path} is periodic, but only vacuum and implicit solvent are supported; make it "
            "again with nonbondedMethod=NoCutoff, and save that."
        )
    for i in reversed(range(system.getNumForces())):
        if type(system.getForce(i)).__name__ in NOT_PHYSICS:
            system.removeForce(i)
    return system


def check_same_bonds(path: Path, system: openmm.System, structure: Structure) -> None:
    """Refuse a structure of other atoms, or with its atoms in another order.

    A System knows no elements, but where it has a harmonic bond for every bond of a molecule, all bonds of
    the structure must be among them.
    """
    pairs = {
        frozenset(force.getBondParameters(i)[:2])
        for force in system.getForces()
        if type(force).__name__ == "HarmonicBondForce"
        for i in range(force.getNumBonds())
    }
    bonds = list(structure.topology.bonds())
    wrong = [bond for bond in bonds if frozenset((bond[0].index, bond[1].index)) not in pairs]
    if wrong and len(pairs) >= len(bonds):
        a, b = wrong[0]
        raise ValueError(
            f"the System in {path} has no bond from {a.name} to {b.name} of {residue_label(a.residue)}; "
            "give the structure that it was made with, with the atoms in the same order."
        )
