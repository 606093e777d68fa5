"""GROMACS's topologies (top), read by OpenMM."""

from __future__ import annotations

from pathlib import Path

from knotflow.molecules.force_field import Described, Solvent, free_system, read_by_openmm


def read_gromacs(path: Path, solvent: Solvent) -> Described:
    """The molecule in a GROMACS topology, flexible, in vacuum.

    Included files are searched beside it, and in the folder of an installed GROMACS (``GMXDATA``).

    Raises:
        OSError: if there is no such file.
        ValueError: if it is no such file, or implicit water is wanted, which the format no longer has.
    """
    from openmm import app

    if solvent != "vacuum":
        raise ValueError(
            f"{path} is a topology of GROMACS, which has no implicit water; choose --solvent vacuum, or "
            "bring a prmtop or system.xml with implicit water."
        )
    remedy = (
        "put all files that it includes beside it, set GMXDATA to the folder share/gromacs of your GROMACS, "
        "or join them to one with `gmx grompp -pp`"
    )
    with read_by_openmm(path, "a topology of GROMACS", remedy):
        file = app.GromacsTopFile(str(path))
        return Described(file.topology, free_system(file.createSystem))
