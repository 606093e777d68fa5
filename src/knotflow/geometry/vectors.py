"""Products of many vectors at once, stored as three components.

A component has shape ``(atoms, frames)``. On a CPU this is two to three times as fast as vectors of shape
``(frames, atoms, 3)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

Vectors = Tensor | tuple[Tensor, Tensor, Tensor]
"""Components x, y and z: a tensor of shape ``(3, atoms, frames)``, or three of shape ``(atoms, frames)``."""


def dot(u: Vectors, v: Vectors) -> Tensor:
    """Inner products."""
    return torch.addcmul(torch.addcmul(u[0] * v[0], u[1], v[1]), u[2], v[2])


def norm(u: Vectors) -> Tensor:
    """Lengths."""
    return dot(u, u).sqrt()


def cross(u: Vectors, v: Vectors) -> tuple[Tensor, Tensor, Tensor]:
    """Vector products."""
    (ux, uy, uz), (vx, vy, vz) = u, v
    return _minor(uy, vz, uz, vy), _minor(uz, vx, ux, vz), _minor(ux, vy, uy, vx)


def _minor(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """The difference ab - cd."""
    return torch.addcmul(a * b, c, d, value=-1)
