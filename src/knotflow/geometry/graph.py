"""The bonds of a molecule as a graph, and checks of positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Bonds = Iterable[tuple[int, int]]
"""Pairs of bonded atoms, numbered from 0; each bond once or more, in either direction."""


def neighbours(n_atoms: int, bonds: Bonds) -> list[list[int]]:
    """Bonded atoms of every atom, in ascending order.

    Raises:
        ValueError: if a bond names an atom that does not exist, or the same atom twice.
    """
    found: list[set[int]] = [set() for _ in range(n_atoms)]
    for i, j in bonds:
        if not (0 <= i < n_atoms and 0 <= j < n_atoms) or i == j:
            raise ValueError(
                f"a bond joins two different atoms of 0 to {n_atoms - 1}, got {i}-{j}; "
                "check that bonds and atoms belong to the same molecule."
            )
        found[i].add(j)
        found[j].add(i)
    return [sorted(atoms) for atoms in found]


def bonds_between(near: Sequence[Sequence[int]], start: int) -> NDArray[np.int64]:
    """Number of bonds on the shortest path from ``start`` to every atom, -1 if there is none."""
    steps = np.full(len(near), -1)
    steps[start] = 0
    queue = [start]
    for atom in queue:
        for other in near[atom]:
            if steps[other] < 0:
                steps[other] = steps[atom] + 1
                queue.append(other)
    return steps


def check_connected(near: Sequence[Sequence[int]]) -> None:
    """Raise ``ValueError`` unless bonds connect all atoms."""
    first_atoms: list[int] = []
    seen = np.zeros(len(near), dtype=bool)
    while not seen.all():
        first_atoms.append(int(np.argmin(seen)))
        seen |= bonds_between(near, first_atoms[-1]) >= 0
    if len(first_atoms) > 1:
        raise ValueError(
            f"the bonds must join all atoms into one molecule, got {len(first_atoms)} fragments, with atoms "
            f"{', '.join(map(str, first_atoms))}; add the missing bonds or treat the fragments one by one."
        )


def checked_positions(positions: ArrayLike | torch.Tensor, n_atoms: int) -> NDArray[np.float64]:
    """One or many structures as a float64 array of shape ``(frames, atoms, 3)``.

    Raises:
        ValueError: if the shape does not fit the number of atoms, or a number is not finite.
    """
    if isinstance(positions, torch.Tensor):
        positions = positions.detach().cpu().numpy()
    x = np.asarray(positions, dtype=np.float64)
    if x.ndim not in (2, 3) or x.shape[-2:] != (n_atoms, 3) or x.size == 0:
        raise ValueError(
            f"positions must have shape ({n_atoms}, 3) or (frames, {n_atoms}, 3), got {x.shape}; "
            "check that they belong to the same molecule as the bonds."
        )
    if not np.isfinite(x).all():
        raise ValueError("positions must be finite numbers, got nan or inf; drop the broken frames.")
    return x.reshape(-1, n_atoms, 3)


def sine(x: NDArray[np.float64], i: int, j: int, k: int) -> float:
    """Smallest sine of the angle i-j-k over frames ``x`` of shape ``(frames, atoms, 3)``.

    It is 0 if in any frame the atoms are collinear or two of them coincide.
    """
    u, v = x[:, i] - x[:, j], x[:, k] - x[:, j]
    area = np.linalg.norm(np.cross(u, v), axis=-1)
    lengths = np.linalg.norm(u, axis=-1) * np.linalg.norm(v, axis=-1)
    return float(np.divide(area, lengths, out=np.zeros_like(area), where=lengths > 0).min())
