"""CHARMM's structure and parameter files (psf; prm, rtf, str), read by OpenMM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from knotflow.molecules.force_field import Described, Solvent, free_system, read_by_openmm

PARAMETERS: Final = (".prm", ".par", ".rtf", ".top", ".str", ".inp")
"""Endings of parameter files that OpenMM reads."""


def read_charmm(psf: Path, parameters: Sequence[Path], solvent: Solvent) -> Described:
    """The molecule in a psf file, flexible, in vacuum or with OBC water.

    Raises:
        OSError: if a file is missing.
        ValueError: if a file cannot be read, or parameters are missing.
    """
    from openmm import app

    if not parameters:
        raise ValueError(f"{psf} has no parameters; add its parameter files: --force-field par_all36.prm ...")
    for path in parameters:
        if path.suffix.lower() not in PARAMETERS:
            raise ValueError(
                f"{path} is no parameter file of CHARMM; expected {', '.join(PARAMETERS)} beside {psf}."
            )
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}.")
    with read_by_openmm(psf, "a psf file of CHARMM"):
        file = app.CharmmPsfFile(str(psf))
    with read_by_openmm(psf, "parameters of a molecule"):
        found = app.CharmmParameterSet(*map(str, parameters))
        implicit = app.OBC2 if solvent == "obc" else None
        system = free_system(file.createSystem, found, implicitSolvent=implicit)
    return Described(file.topology, system)
