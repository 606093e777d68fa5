"""Maps from Cartesian positions to bonds, angles and torsions and back, with log-determinants."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knotflow.geometry.placement import Placement
from knotflow.geometry.vectors import cross, dot, norm
from knotflow.geometry.wilson import Steps, pulled_back
from knotflow.geometry.zmatrix import ZMatrix


class InternalCoordinates(nn.Module):
    r"""Bonds, angles and torsions of a molecule of $N$ atoms along a z-matrix.

    The vector $q$ of $3N - 6$ numbers holds $N - 1$ bonds (nm), $N - 2$ angles in $(0, \pi)$ and $N - 3$
    torsions in $[-\pi, \pi]$, in this order. In each part the frame comes first, then the rows in the order
    of the z-matrix. Torsions have the usual sign (IUPAC; 0 is cis).

    Translations and rotations are integrated out of the measure: with the position of the frame's first
    atom and the rotation of the frame as the other six coordinates,

    $$\mathrm dx = \mathrm d(\text{rigid}) \; \prod_{\text{bonds}} b^2 \prod_{\text{angles}} \sin\theta
      \;\mathrm dq, \qquad
      \log\Big|\frac{\partial x}{\partial q}\Big| = \sum 2 \log b + \sum \log \sin \theta .$$

    Both maps take any leading shape and keep the dtype of the input; ``.to`` moves the module to a device.
    Shapes are static and nothing is written in place, so ``torch.func`` and ``torch.compile`` work.

    Args:
        zmatrix: The z-matrix.
    """

    _atom: Tensor
    _bond: Tensor
    _angle: Tensor
    _torsion: Tensor

    def __init__(self, zmatrix: ZMatrix) -> None:
        super().__init__()
        self.zmatrix = zmatrix
        self.n_atoms = n = zmatrix.n_atoms
        self.n_coordinates = 3 * n - 6
        self.bonds = slice(0, n - 1)
        """The bonds in a vector of coordinates."""
        self.angles = slice(n - 1, 2 * n - 3)
        """The angles."""
        self.torsions = slice(2 * n - 3, 3 * n - 6)
        """The torsions."""
        a, b, c = zmatrix.frame
        rows: list[tuple[int, ...]] = [(b, a), (c, b, a), *zmatrix.rows]
        self.atoms = (*(r[:2] for r in rows), *(r[:3] for r in rows[1:]), *zmatrix.rows)
        """The two, three or four atoms that define each coordinate."""
        for column, name in enumerate(("_atom", "_bond", "_angle", "_torsion")):
            index = [row[column] for row in rows if len(row) > column]
            self.register_buffer(name, torch.tensor(index, dtype=torch.int64), persistent=False)
        self._placement = Placement(zmatrix)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each coordinate, such as ``torsion 4-6-8-14``."""
        kinds = {2: "bond", 3: "angle", 4: "torsion"}
        return tuple(f"{kinds[len(atoms)]} {'-'.join(map(str, atoms))}" for atoms in self.atoms)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Measure positions.

        Args:
            x: Positions of shape ``(..., N, 3)``, nm; three atoms that define an angle or torsion must not be
                collinear.

        Returns:
            Coordinates of shape ``(..., 3N - 6)`` and $\log|\partial q / \partial x|$ of shape ``(...)``.
        """
        self._check("positions", x, (self.n_atoms, 3))
        bond, axis, far = self._steps(x)
        # Arc tangents are accurate everywhere; an arc cosine would lose digits near 0 and π.
        bonds = norm(bond)
        angles = torch.atan2(norm(cross(bond[:, 1:], axis)), dot(bond[:, 1:], axis))
        bond, axis = bond[:, 2:], axis[:, 1:]
        plane = cross(axis, far)
        torsions = torch.atan2(-norm(axis) * dot(bond, plane), -dot(cross(bond, axis), plane))
        q = torch.cat((bonds, angles, torsions)).T.reshape(*x.shape[:-2], self.n_coordinates)
        return q, -_log_volume(bonds, angles).reshape(x.shape[:-2])

    def inverse(self, q: Tensor) -> tuple[Tensor, Tensor]:
        r"""Place the atoms in the standard pose.

        The first atom of the frame is at the origin, the second on the positive x axis, the third in the x-y
        plane with y > 0.

        Args:
            q: Coordinates of shape ``(..., 3N - 6)``: positive bonds, angles in $(0, \pi)$, any torsions.

        Returns:
            Positions of shape ``(..., N, 3)``, nm, and $\log|\partial x / \partial q|$ of shape ``(...)``.
        """
        bonds, angles, torsions = self._parts(q)
        x = self._placement(bonds, angles, torsions).permute(2, 1, 0)
        return x.reshape(*q.shape[:-1], self.n_atoms, 3), _log_volume(bonds, angles).reshape(q.shape[:-1])

    def paper_ladj(self, q: Tensor) -> Tensor:
        r"""The log-derivative that Hong & Chun (AAAI 2023) use for `inverse`, for comparison.

        It leaves out $d_{ab}^2 \, d_{bc} \sin(abc)$ of the frame a, b, c, as if the frame's rigid motions had
        no volume. Densities made with it are not densities of positions.
        """
        bonds, angles, _ = self._parts(q)
        frame = 2 * bonds[0].log() + bonds[1].log() + angles[0].sin().log()
        return (_log_volume(bonds, angles) - frame).reshape(q.shape[:-1])

    def internal_force(self, x: Tensor, force: Tensor) -> Tensor:
        r"""Force (..., 3N - 6) along coordinates, $(\partial x / \partial q)^\top f$, in kT/nm and kT/rad.

        The derivative keeps the pose of the frame: its first atom, the direction of its first bond and its
        plane. If $f = -\partial u / \partial x$ is the force of an energy that rigid motions do not change,
        and so has no net force or torque, the result is $-\partial u / \partial q$ in any pose.
        The score of the *density* of $q$ has a second term, the gradient of the log-derivative $L$ of
        `inverse`: $\partial \log p(q) / \partial q = -\partial u / \partial q + \partial L / \partial q$.

        Args:
            x: Positions of shape ``(..., N, 3)``.
            force: Cartesian force of the same shape.
        """
        self._check("forces", force, (self.n_atoms, 3), like=x)
        q, _ = self.forward(x)
        pull_back = torch.func.vjp(lambda q: self.inverse(q)[0], q)[1]
        internal: Tensor = pull_back(self._turned(x, force))[0]
        return internal

    def cartesian_force(self, x: Tensor, force: Tensor) -> Tensor:
        r"""Force (..., N, 3) on the atoms, $(\partial q / \partial x)^\top f_q$, in kT/nm.

        The result has no net force and no torque. The score of a *density* of $x$ has a second term, the
        gradient of the log-derivative $L$ of `forward`: $\partial \log p(x) / \partial x =
        (\partial q / \partial x)^\top \, \partial \log p(q) / \partial q + \partial L / \partial x$.

        Args:
            x: Positions of shape ``(..., N, 3)``.
            force: Force along the coordinates, shape ``(..., 3N - 6)``.
        """
        self._check("forces", force, (self.n_coordinates,), like=x)
        self._check("positions", x, (self.n_atoms, 3))
        pulled = pulled_back(self._steps(x), *self._parts(force))
        # Every vector starts at one atom and ends at another.
        ends = (self._atom, self._angle, self._torsion, self._bond, self._bond[1:], self._angle[1:])
        on_atoms = torch.cat((*pulled, *(-vectors for vectors in pulled)), 1)
        zero = on_atoms.new_zeros(3, self.n_atoms, on_atoms.shape[-1])
        return zero.index_add(1, torch.cat(ends), on_atoms).permute(2, 1, 0).reshape(x.shape)

    def _steps(self, x: Tensor) -> Steps:
        """Vectors between the atoms of every row, from positions (..., N, 3)."""
        flat = x.reshape(-1, self.n_atoms, 3).permute(2, 1, 0).contiguous()
        return Steps(
            flat.index_select(1, self._atom) - flat.index_select(1, self._bond),
            flat.index_select(1, self._angle) - flat.index_select(1, self._bond[1:]),
            flat.index_select(1, self._torsion) - flat.index_select(1, self._angle[1:]),
        )

    def _parts(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self._check("coordinates", q, (self.n_coordinates,))
        flat = q.reshape(-1, self.n_coordinates).T.contiguous()
        return flat[self.bonds], flat[self.angles], flat[self.torsions]

    def _turned(self, x: Tensor, vectors: Tensor) -> Tensor:
        """Vectors at the atoms of ``x``, rotated with the molecule into the standard pose."""
        a, b, c = (x[..., atom, :] for atom in self.zmatrix.frame)
        first = nn.functional.normalize(b - a, dim=-1)
        third = nn.functional.normalize(torch.linalg.cross(first, c - b), dim=-1)
        second = torch.linalg.cross(third, first)
        axes = (axis.unsqueeze(-2) for axis in (first, second, third))
        return torch.stack([(vectors * axis).sum(-1) for axis in axes], dim=-1)

    def _check(self, what: str, x: Tensor, shape: tuple[int, ...], like: Tensor | None = None) -> None:
        if not torch.is_floating_point(x):
            raise ValueError(f"{what} must be a floating-point tensor, got {x.dtype}; call .float().")
        if x.shape[-len(shape) :] != shape:
            raise ValueError(
                f"{what} must have shape (..., {', '.join(map(str, shape))}) for {self.n_atoms} atoms, got "
                f"{tuple(x.shape)}; check that they belong to the molecule of the z-matrix."
            )
        if like is not None and x.shape[: -len(shape)] != like.shape[:-2]:
            raise ValueError(
                f"{what} and positions must belong to the same frames, got shapes {tuple(x.shape)} and "
                f"{tuple(like.shape)}."
            )


def _log_volume(bonds: Tensor, angles: Tensor) -> Tensor:
    """Logarithm of the product of all b² and sin θ; atoms are the first axis."""
    return 2 * bonds.log().sum(0) + angles.sin().log().sum(0)
