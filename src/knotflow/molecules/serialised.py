"""OpenMM Systems that users saved themselves (system.xml)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from knotflow.extras import optional

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
    with optional("molecules"):
        import openmm
    try:
        system = openmm.XmlSerializer.deserialize(path.read_text())
    except (openmm.OpenMMException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a serialised OpenMM System: {error}.") from None
    if not isinstance(system, openmm.System):
        raise ValueError(f"{path} is a serialised {type(system).__name__}; expected an OpenMM System.")
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
