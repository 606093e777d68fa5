"""Increasing maps of one variable, without networks or molecules.

Each family maps ``(x, raw)`` to ``(y, log dy/dx)`` and back, see [`Transform`][knotflow.Transform].
"""

from typing import TYPE_CHECKING

from knotflow.lazy import lazy_names
from knotflow.transforms.families import FAMILIES

if TYPE_CHECKING:
    from knotflow.transforms.affine import Affine
    from knotflow.transforms.base import SlopeTransform, Transform
    from knotflow.transforms.bspline import BSpline
    from knotflow.transforms.bump import Bump
    from knotflow.transforms.chain import Chain
    from knotflow.transforms.domains import Circle, Domain, Interval, Line
    from knotflow.transforms.knots import Paper, Slopes
    from knotflow.transforms.rational_quadratic import RationalQuadratic

__all__ = [
    "FAMILIES",
    "Affine",
    "BSpline",
    "Bump",
    "Chain",
    "Circle",
    "Domain",
    "Interval",
    "Line",
    "Paper",
    "RationalQuadratic",
    "SlopeTransform",
    "Slopes",
    "Transform",
]

__getattr__, __dir__ = lazy_names(
    __name__, more={f.title: f"knotflow.transforms.{f.module}" for f in FAMILIES.values()}
)
