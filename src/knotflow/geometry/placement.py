"""Placement of atoms from bonds, angles and torsions, many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from knotflow.geometry.vectors import cross, norm
from knotflow.geometry.zmatrix import Row, ZMatrix

Step = tuple[int, int]
"""An atom and ±1: the vector from its bond reference to it, or back."""


class Placement(nn.Module):
    r"""Places the atoms of a z-matrix, one level of `ZMatrix.levels` after the other.

    A row i, j, k, l has the bond vector $d_i = x_i - x_j$. With $u$ and $n$ the unit vectors along
    $x_k - x_j$ and along $u \times (x_l - x_k)$,

    $$d_i = b \, (\cos\theta \; u + \sin\theta \cos\varphi \; n \times u - \sin\theta \sin\varphi \; n) .$$

    Only bond vectors pass from level to level, and reference vectors are sums of them along the tree of
    bonds, so that no digits are lost far from the origin. Positions are summed up at the end. They are in the
    standard pose of `InternalCoordinates.inverse`.
    """

    _placing: Tensor
    _jumps: Tensor
    _order: Tensor

    def __init__(self, zmatrix: ZMatrix) -> None:
        super().__init__()
        a, b, c = zmatrix.frame
        levels = zmatrix.levels()
        placing = [number for level in levels for number in level]
        slots = {atom: slot for slot, atom in enumerate((a, b, c, *(zmatrix.rows[i][0] for i in placing)))}
        parents = {b: a, c: b} | {atom: bond for atom, bond, _, _ in zmatrix.rows}
        self._sizes = [len(level) for level in levels]
        self._references = nn.ModuleList(
            _References([zmatrix.rows[number] for number in level], parents, slots) for level in levels
        )
        self.register_buffer("_placing", torch.tensor(placing, dtype=torch.int64), persistent=False)
        jumps = _jumps([slots[parents.get(atom, a)] for atom in slots])
        self.register_buffer("_jumps", torch.tensor(jumps), persistent=False)
        order = [slots[atom] for atom in range(zmatrix.n_atoms)]
        self.register_buffer("_order", torch.tensor(order), persistent=False)

    def forward(self, bonds: Tensor, angles: Tensor, torsions: Tensor) -> Tensor:
        """Positions (3, N, frames) from bonds (N-1, frames), angles (N-2, frames), torsions (N-3, frames)."""
        local = _local(bonds[2:], angles[1:], torsions).index_select(1, self._placing)
        vectors = _frame(bonds[:2], angles[0])
        for references, part in zip(self._references, local.split(self._sizes, dim=1), strict=True):
            axis, far = references(vectors)
            vectors = torch.cat((vectors, _placed(part, axis, far)), dim=1)
        for jump in self._jumps:
            vectors = vectors + vectors.index_select(1, jump)
        return vectors.index_select(1, self._order)


class _References(nn.Module):
    """For the rows of one level, the axis x_k - x_j and x_l - x_k (up to multiples of the axis)."""

    index: Tensor
    sign: Tensor

    def __init__(self, rows: Sequence[Row], parents: Mapping[int, int], slots: Mapping[int, int]) -> None:
        super().__init__()
        axes = [_path(j, k, parents) for _, j, k, _ in rows]
        # Only the plane j, k, l matters, so take the shorter path to l: for siblings it starts at j.
        far = [min(_path(k, l, parents), _path(j, l, parents), key=len) for _, j, k, l in rows]
        length = max(map(len, axes + far))
        nothing = [(next(iter(slots)), 1)]  # the first atom of the frame has a zero vector
        paths = [path + nothing * (length - len(path)) for path in axes + far]
        index = torch.tensor([[slots[atom] for atom, _ in path] for path in paths])
        # Small integers adopt the dtype of the other factor, and .to(dtype) does not change them.
        sign = torch.tensor([[sign for _, sign in path] for path in paths], dtype=torch.int8)
        self.register_buffer("index", index.T.contiguous(), persistent=False)
        self.register_buffer("sign", sign.T.unsqueeze(-1).contiguous(), persistent=False)

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        steps = zip(self.index, self.sign, strict=True)
        first, *others = [vectors.index_select(1, index) * sign for index, sign in steps]
        axis, far = sum(others, start=first).chunk(2, dim=1)
        return axis, far


def _path(start: int, end: int, parents: Mapping[int, int]) -> list[Step]:
    """Bond vectors whose sum leads from one atom to another."""
    down, up = _ancestry(end, parents), _ancestry(start, parents)
    while down and up and down[-1] == up[-1]:
        down.pop()
        up.pop()
    return [(atom, -1) for atom in up] + [(atom, 1) for atom in reversed(down)]


def _ancestry(atom: int, parents: Mapping[int, int]) -> list[int]:
    """The atom, its bond reference, the bond reference of that atom, and so on to the frame."""
    line = []
    while atom in parents:
        line.append(atom)
        atom = parents[atom]
    return line


def _jumps(parents: list[int]) -> list[list[int]]:
    """Slots to add, round by round, to turn vectors from parents into positions.

    After r rounds each slot holds the sum over its nearest 2^r ancestors (itself included), so the number of
    rounds is logarithmic in the depth of the tree. The first slot is its own parent and holds zero.
    """
    rounds = []
    while any(parents):
        rounds.append(parents)
        parents = [parents[parent] for parent in parents]
    return rounds


def _local(bonds: Tensor, angles: Tensor, torsions: Tensor) -> Tensor:
    """Components of the bond vectors along u, n × u and n."""
    across = bonds * angles.sin()
    return torch.stack((bonds * angles.cos(), across * torsions.cos(), -across * torsions.sin()))


def _placed(local: Tensor, axis: Tensor, far: Tensor) -> Tensor:
    """Bond vectors with given components in the frames of their references."""
    normal = cross(axis, far)
    aside = cross(normal, axis)
    axis_length, normal_length = norm(axis), norm(normal)
    first = local[0] / axis_length
    second = local[1] / (axis_length * normal_length)
    third = local[2] / normal_length
    return torch.stack(
        [first * u + second * v + third * n for u, v, n in zip(axis, aside, normal, strict=True)]
    )


def _frame(bonds: Tensor, angle: Tensor) -> Tensor:
    """Bond vectors of the frame in the standard pose; that of its first atom is zero."""
    zero = torch.zeros_like(angle)
    x = torch.stack((zero, bonds[0], -bonds[1] * angle.cos()))
    y = torch.stack((zero, zero, bonds[1] * angle.sin()))
    return torch.stack((x, y, torch.zeros_like(x)))
