"""Lengths for bonds that a simulation constrained, drawn from their equilibrium distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from knotflow.energies.energy import MolecularEnergy
from knotflow.geometry.graph import bonds_between, neighbours
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.molecules.system import MolecularSystem

STEP: Final = 0.002
"""In nm: a bond is stretched and compressed by this much to find its force constant."""
WIDER: Final = 1.05
"""Proposals are wider than the harmonic distribution by this factor, so that they cover its tails."""
TOGETHER: Final = 12
"""Bonds that are drawn at once; of many, some would always be refused."""
SWEEPS: Final = 5


class Stretching:
    r"""Draws the lengths of some bonds anew, given all other internal coordinates of a frame.

    The equilibrium density of lengths $b$ given the other coordinates is $\propto e^{-u(b)} \prod b^2$. A
    Metropolis chain for each frame leaves it unchanged: proposals are normal around the length in the
    structure, with the variance $1 / u''$ of a harmonic bond, and are accepted with the probability
    $\min(1, w' / w)$, where $w$ is the ratio of density and proposal (Tierney 1994, independence chain). Each
    chain starts from a proposal.

    Args:
        system: The molecule.
        energy: Its energy.
        bonds: Pairs of atoms. Bonds in rings stay as they are: one of them cannot change alone.
    """

    def __init__(
        self, system: MolecularSystem, energy: MolecularEnergy, bonds: Sequence[tuple[int, int]]
    ) -> None:
        self.coordinates, self.energy = internal_coordinates(system), energy
        wanted = {frozenset(bond) for bond in bonds if not _in_ring(system, bond)}
        pairs = self.coordinates.atoms[self.coordinates.bonds]
        found = [i for i, pair in enumerate(pairs) if frozenset(pair) in wanted]
        self.indices = torch.tensor(found, dtype=torch.int64)
        """Coordinates that are drawn."""
        q, _ = self.coordinates.forward(torch.tensor(system.positions))
        step = torch.zeros(len(self.indices), len(q), dtype=q.dtype)
        step[torch.arange(len(self.indices)), self.indices] = STEP
        below, here, above = (self._energies(q + sign * step) for sign in (-1, 0, 1))
        curvature = ((below - 2 * here + above) / STEP**2).clamp(min=1.0)
        self.mean, self.spread = q[self.indices], WIDER / curvature.sqrt()
        self.accepted = self.proposed = 0
        self._random = torch.Generator().manual_seed(0)

    def __call__(self, positions: NDArray[Any]) -> NDArray[np.float64]:
        """The frames with new lengths, in nm, shape ``(n, atoms, 3)``, each in the standard pose."""
        q, _ = self.coordinates.forward(torch.from_numpy(positions.astype(np.float64)))
        q[:, self.indices] = self._proposals(len(q))
        weight = self._log_weights(q)
        for _ in range(SWEEPS):
            for block in torch.arange(len(self.indices)).split(TOGETHER):
                other = q.clone()
                other[:, self.indices[block]] = self._proposals(len(q))[:, block]
                changed = self._log_weights(other)
                dice = torch.rand(len(q), generator=self._random, dtype=q.dtype).log()
                better = dice < changed - weight
                q, weight = torch.where(better[:, None], other, q), torch.where(better, changed, weight)
                self.accepted += int(better.sum())
                self.proposed += len(q)
        return self.coordinates.inverse(q)[0].numpy()

    def _proposals(self, n: int) -> Tensor:
        noise = torch.randn(n, len(self.indices), generator=self._random, dtype=self.mean.dtype)
        return (self.mean + self.spread * noise).clamp(min=self.mean / 2)

    def _energies(self, q: Tensor) -> Tensor:
        return self.energy.energy(self.coordinates.inverse(q)[0])

    def _log_weights(self, q: Tensor) -> Tensor:
        """Logarithm of density over proposal, up to a constant."""
        lengths = q[:, self.indices]
        proposal = -((lengths - self.mean) ** 2 / (2 * self.spread**2)).sum(-1)
        return 2 * lengths.log().sum(-1) - self._energies(q) - proposal


def _in_ring(system: MolecularSystem, bond: tuple[int, int]) -> bool:
    others = [pair for pair in system.bonds if set(pair) != set(bond)]
    return bool(bonds_between(neighbours(system.n_atoms, others), bond[0])[bond[1]] >= 0)
