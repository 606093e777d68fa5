r"""Derivatives of bonds, angles and torsions with respect to positions: Wilson's vectors.

With the bond vector $d = x_i - x_j$, the axis $a = x_k - x_j$ and $f = x_l - x_k$ of a row i, j, k, l, unit
vectors $\hat d$ and $\hat a$, $m = d \times a$ and $n = a \times f$,

$$\frac{\partial b}{\partial d} = \hat d, \qquad
  \frac{\partial \theta}{\partial d} = \frac{\cos\theta \, \hat d - \hat a}{|d| \sin\theta}, \quad
  \frac{\partial \theta}{\partial a} = \frac{\cos\theta \, \hat a - \hat d}{|a| \sin\theta},$$

$$\frac{\partial \varphi}{\partial d} = \frac{|a|}{|m|^2} m, \quad
  \frac{\partial \varphi}{\partial f} = \frac{|a|}{|n|^2} n, \quad
  \frac{\partial \varphi}{\partial a} = -\frac{d \cdot a}{|a|^2} \frac{\partial \varphi}{\partial d}
  - \frac{f \cdot a}{|a|^2} \frac{\partial \varphi}{\partial f}$$

(Wilson, Decius & Cross 1955, Molecular Vibrations, chapter 4; the last one because a rotation of all three
vectors changes no torsion). Vectors have shape (3, rows, frames), see `knotflow.geometry.vectors`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from knotflow.geometry.vectors import cross, dot, norm


class Steps(NamedTuple):
    """Vectors between the atoms of all rows of a z-matrix, shape (3, rows, frames)."""

    bond: Tensor
    """Bond vectors d of all rows except the frame's first atom, N - 1."""
    axis: Tensor
    """Axes a of the rows that have an angle, N - 2."""
    far: Tensor
    """Vectors f of the rows that have a torsion, N - 3."""


def pulled_back(steps: Steps, bonds: Tensor, angles: Tensor, torsions: Tensor) -> Steps:
    """Forces on the vectors from forces along bonds, angles and torsions, (N-1, frames) and so on."""
    bond, axis, far = steps
    length = norm(bond)
    on_bond = bonds / length * bond
    on_angle = _of_angles(bond[:, 1:], axis, length[1:], angles)
    on_torsion = _of_torsions(bond[:, 2:], axis[:, 1:], far, torsions)
    on_bond = on_bond + _behind(on_angle[0], 1) + _behind(on_torsion[0], 2)
    return Steps(on_bond, on_angle[1] + _behind(on_torsion[1], 1), on_torsion[2])


def _of_angles(bond: Tensor, axis: Tensor, length: Tensor, force: Tensor) -> tuple[Tensor, Tensor]:
    """Forces on the bond vector and the axis."""
    axis_length = norm(axis)
    product = length * axis_length
    sine, cosine = norm(cross(bond, axis)) / product, dot(bond, axis) / product
    bond, axis = bond / length, axis / axis_length
    force = force / sine
    return force / length * (cosine * bond - axis), force / axis_length * (cosine * axis - bond)


def _of_torsions(bond: Tensor, axis: Tensor, far: Tensor, force: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Forces on the bond vector, the axis and the far vector."""
    square = dot(axis, axis)
    first, last = torch.stack(cross(bond, axis)), torch.stack(cross(axis, far))
    force = force * square.sqrt()
    on_bond, on_far = force / dot(first, first) * first, force / dot(last, last) * last
    on_axis = -(dot(bond, axis) / square) * on_bond - (dot(far, axis) / square) * on_far
    return on_bond, on_axis, on_far


def _behind(vectors: Tensor, n: int) -> Tensor:
    """Vectors after n rows of zeros."""
    return torch.nn.functional.pad(vectors, (0, 0, n, 0))
