"""Z-matrices, and maps between Cartesian and internal coordinates, in pure torch."""

from knotflow.geometry.along_bonds import zmatrix_along_bonds
from knotflow.geometry.audit import Audit, audit
from knotflow.geometry.chirality import Chirality, chiral_centres
from knotflow.geometry.internal import InternalCoordinates
from knotflow.geometry.labels import HydrogenLabels
from knotflow.geometry.zmatrix import ZMatrix, paper_zmatrix

__all__ = [
    "Audit",
    "Chirality",
    "HydrogenLabels",
    "InternalCoordinates",
    "ZMatrix",
    "audit",
    "chiral_centres",
    "paper_zmatrix",
    "zmatrix_along_bonds",
]
