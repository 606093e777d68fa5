"""Amber's parameter files (prmtop, parm7), read by OpenMM."""

from __future__ import annotations

from pathlib import Path

from knotflow.molecules.force_field import Described, Solvent, free_system, read_by_openmm


def read_amber(path: Path, solvent: Solvent) -> Described:
    """The molecule in a prmtop file, flexible, in vacuum or with OBC water.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is no such file, or has a periodic box.
    """
    from openmm import app

    with read_by_openmm(path, "an Amber prmtop file"):
        file = app.AmberPrmtopFile(str(path))
    if file.topology.getPeriodicBoxVectors() is not None:
        raise ValueError(
            f"{path} has a periodic box, but only vacuum and implicit solvent are supported; make a prmtop "
            "file of the molecule alone, without box, water and ions (in cpptraj: strip, parmbox nobox)."
        )
    implicit = app.OBC2 if solvent == "obc" else None
    with read_by_openmm(path, "parameters of a molecule"):
        return Described(file.topology, free_system(file.createSystem, implicitSolvent=implicit))
