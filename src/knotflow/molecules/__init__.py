"""Molecules: their structure, force field and coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knotflow.lazy import lazy_names

if TYPE_CHECKING:
    from knotflow.molecules.files import from_files
    from knotflow.molecules.peptides import peptide
    from knotflow.molecules.system import MolecularSystem, ala2, from_pdb

__all__ = [
    "MolecularSystem",
    "ala2",
    "from_files",
    "from_pdb",
    "peptide",
]

__getattr__, __dir__ = lazy_names(__name__)
