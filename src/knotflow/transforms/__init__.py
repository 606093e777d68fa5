"""Increasing maps of one variable: no network, no molecule.

Each family maps ``(x, raw)`` to ``(y, log dy/dx)`` and back, see [`Transform`][knotflow.Transform].
"""

from knotflow.transforms.affine import Affine
from knotflow.transforms.base import Transform
from knotflow.transforms.bspline import BSpline
from knotflow.transforms.bump import Bump
from knotflow.transforms.chain import Chain
from knotflow.transforms.domains import Circle, Domain, Interval, Line
from knotflow.transforms.knots import Paper, Slopes
from knotflow.transforms.rational_quadratic import RationalQuadratic

__all__ = [
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
    "Slopes",
    "Transform",
]
