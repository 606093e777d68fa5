"""The angles that tell conformations apart: torsions about bonds that turn, and puckers of rings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.extras import optional
from knotflow.geometry.graph import neighbours, sine
from knotflow.molecules.atom_names import atom_names, joined_names
from knotflow.molecules.system import MolecularSystem

Floats = NDArray[np.float64]

LARGEST_RING: Final = 6
"""Bonds of rings up to this size do not turn; those of larger ones do."""
FLAT: Final = 0.01
"""In nm: rings whose structure is puckered less are left out, such as aromatic ones."""
STRAIGHT: Final = 0.17
"""Sine of an angle within 10 degrees of 180, about which nothing turns."""
KINDS: Final = {4: "torsion", 5: "pucker", 6: "pucker"}
"""What the angle of so many atoms is called."""


@dataclass(frozen=True)
class ConformationAngle:
    r"""An angle of four atoms (a torsion), or of a ring of five or six (its pucker).

    The pucker of five atoms is the phase $\phi_2$ of Cremer & Pople (JACS 97, 1354, 1975), around the circle
    of envelopes and twists. That of six is their polar angle $\theta$ from 0 to π: chairs are at 0 and π,
    half-chairs near 0.3 π and 0.7 π, boats and twists at π/2.
    """

    name: str
    atoms: tuple[int, ...]
    """In the order of the bonds."""

    def __post_init__(self) -> None:
        if len(self.atoms) not in KINDS or len(set(self.atoms)) < len(self.atoms):
            raise ValueError(
                "a torsion has four different atoms and the pucker of a ring five or six, got "
                f"{len(set(self.atoms))}."
            )

    @property
    def kind(self) -> str:
        """``"torsion"`` or ``"pucker"``."""
        return KINDS[len(self.atoms)]

    def __call__(self, positions: NDArray[np.floating[Any]]) -> Floats:
        """The angle in rad, from -π to π, of frames of shape ``(n, atoms, 3)``; shape ``(n,)``."""
        x = np.asarray(positions, dtype=np.float64)[:, list(self.atoms)]
        with np.errstate(all="ignore"):  # samples may be broken
            if len(self.atoms) == 4:
                return _torsion(x)
            _, phase, theta = cremer_pople(x)
            return phase if len(self.atoms) == 5 else theta


def _torsion(x: Floats) -> Floats:
    """Torsions of four atoms, shape ``(n, 4, 3)``, with the sign of IUPAC."""
    a, b, c = x[:, 1] - x[:, 0], x[:, 2] - x[:, 1], x[:, 3] - x[:, 2]
    first, second = np.cross(a, b), np.cross(b, c)
    up = (a * second).sum(-1) * np.linalg.norm(b, axis=-1)
    found: Floats = np.arctan2(up, (first * second).sum(-1))
    return found


def cremer_pople(ring: Floats) -> tuple[Floats, Floats, Floats]:
    r"""Amplitude Q in the unit of the positions, phase $\phi_2$ and polar angle $\theta$ of rings, in rad.

    With the heights $z_j$ above the mean plane, $q_2 e^{i \phi_2} = \sqrt{2/N} \sum_j z_j e^{-4 \pi i j/N}$
    and, for six atoms, $q_3 = \sqrt{1/6} \sum_j (-1)^j z_j$ and $\theta = \arctan(q_2 / q_3)$. For five,
    $\theta = \pi/2$. Cremer & Pople, JACS 97, 1354 (1975), equations 12 to 14.

    Args:
        ring: Positions in the order of the bonds, shape ``(n, N, 3)``, N of 5 or 6.
    """
    size = ring.shape[1]
    x, turn = ring - ring.mean(1, keepdims=True), 2 * math.pi * np.arange(size) / size
    normal = np.cross(np.einsum("j,njk->nk", np.sin(turn), x), np.einsum("j,njk->nk", np.cos(turn), x))
    z = np.einsum("njk,nk->nj", x, normal / np.linalg.norm(normal, axis=-1, keepdims=True))
    q2 = math.sqrt(2 / size) * (z * np.exp(-2j * turn)).sum(1)
    q3 = (z * (-1.0) ** np.arange(size)).sum(1) / math.sqrt(size) if size == 6 else np.zeros(len(z))
    return np.hypot(np.abs(q2), q3), np.angle(q2), np.arctan2(np.abs(q2), q3)


def conformation_angles(system: MolecularSystem) -> list[ConformationAngle]:
    """The torsions about all bonds that may turn, then the puckers of all rings of five or six atoms.

    A bond may turn unless it is in a small ring, straight, or ends in a group of equal hydrogens (CH₃, NH₂).
    Of the torsions about a bond, the one of the main chain is taken: that of the standard names of peptides
    (phi, psi, omega, chi1 ...), else that of the atoms with most and heaviest neighbours.
    """
    names, near = atom_names(system.topology), neighbours(system.n_atoms, system.bonds)
    known, rings = _peptide_torsions(system), dict[tuple[int, int], tuple[int, ...]]()
    angles = []
    for i, j in system.bonds:
        if ring := _ring_of(near, i, j):
            rings[i, j] = ring
        elif torsion := known.get((i, j)) or _torsion_about(system, near, names, i, j):
            angles.append(torsion)
    puckers = {
        ring: ConformationAngle(f"ring {joined_names(ring, names)}", ring)
        for ring in rings.values()
        if len(ring) in KINDS and len(ring) > 4
    }
    x = system.positions[None]
    return angles + [p for p in puckers.values() if cremer_pople(x[:, list(p.atoms)])[0][0] > FLAT]


def _ring_of(near: Sequence[Sequence[int]], i: int, j: int) -> tuple[int, ...]:
    """The smallest ring of a bond, from its lowest atom to the lower neighbour of that; empty if large."""
    paths = [[i]]
    for path in paths:
        for atom in near[path[-1]]:
            if atom == j and len(path) > 1:
                ring = [*path, j]
                first = ring.index(min(ring))
                ring = ring[first:] + ring[:first]
                return tuple(ring if ring[1] < ring[-1] else [ring[0], *ring[:0:-1]])
            if atom not in path and atom != j and len(path) < LARGEST_RING - 1:
                paths.append([*path, atom])
    return ()


def _torsion_about(
    system: MolecularSystem, near: Sequence[Sequence[int]], names: Sequence[str], b: int, c: int
) -> ConformationAngle | None:
    """The torsion about a bond; None if it does not turn."""
    weights = [atom.element.mass for atom in system.topology.atoms]

    def rank(atom: int, centre: int) -> tuple[bool, float, list[float], int]:
        further = sorted((weights[k] for k in near[atom] if k != centre), reverse=True)
        return bool(further), weights[atom], further, -atom

    ends = []
    for centre, other in ((b, c), (c, b)):
        around = [atom for atom in near[centre] if atom != other]
        turning_hydrogens = len(around) > 1 and all(system.elements[k] == "H" for k in around)
        bent = [k for k in around if sine(system.positions[None], k, centre, other) > STRAIGHT]
        if turning_hydrogens or not bent:
            return None
        ends.append(max(bent, key=partial(rank, centre=centre)))
    atoms = (ends[0], b, c, ends[1])
    return ConformationAngle(joined_names(atoms, names), atoms)


def _peptide_torsions(system: MolecularSystem) -> dict[tuple[int, int], ConformationAngle]:
    """Torsions with standard names, by the bond they are about."""
    with optional("molecules"):
        import mdtraj
    frame = mdtraj.Trajectory(system.positions[None].astype(np.float32), system.topology)

    def found() -> Iterator[tuple[str, list[int]]]:
        for name in ("phi", "psi", "omega", "chi1", "chi2", "chi3", "chi4", "chi5"):
            for row in getattr(mdtraj, f"compute_{name}")(frame)[0].tolist():
                yield name, row

    topology = system.topology
    return {
        (min(row[1:3]), max(row[1:3])): ConformationAngle(
            f"{name} {topology.atom(row[1]).residue}", tuple(row)
        )
        for name, row in found()
    }
