"""What there is to say about imported frames: atoms that were put in order, rounding, constrained bonds."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.energies.energy import MolecularEnergy
from knotflow.molecules.system import MolecularSystem
from knotflow.sentences import listed
from knotflow.storage.atom_order import Order

log = logging.getLogger("knotflow")

ROUNDED: Final = 1e-3
"""In nm: the precision of XTC and GRO files."""
WHOLE: Final = 0.02
"""How far a multiple of a whole number may be from it, after float32."""
LEAST_FRAMES: Final = 10
"""Fewer frames do not show whether a bond is constrained."""
STIFFEST: Final = 1e-3
"""In nm at 300 K: no bond varies less; a triple bond of carbon, the stiffest, has twice this. XTC's rounding
makes 0.0004 nm of a constrained one."""
SAMPLES: Final = 50
"""Number of frames that show what rounding does to energies."""


class Remarks:
    """Collects what is unusual about frames, and says it at the end, in one line each.

    Args:
        system: The molecule.
    """

    def __init__(self, system: MolecularSystem) -> None:
        self.system = system
        self.moved = 0
        """Atoms that were in another place in one of the files."""
        self.rounding: float | None = None
        """Mean change of the energy in kT by rounding positions; None if they are not rounded."""
        self._rounded: list[Path] = []
        self._frames = 0
        self._pairs = np.array(system.bonds, dtype=np.int64).reshape(-1, 2).T
        self._usual = self._lengths(system.positions)
        self._sums = np.zeros((2, len(self._usual)))

    def reordered(self, path: Path, order: Order) -> None:
        """Say that the atoms of a file were put into the order of the molecule."""
        moved = int((order.indices != np.arange(len(order.indices))).sum())
        self.moved = max(self.moved, moved)
        log.warning(
            f"The atoms of {path} are in another order than in {self.system.name}: {moved} of "
            f"{len(order.indices)} were moved, matched by {order.by}."
        )

    def __call__(self, path: Path, positions: NDArray[Any], energy: MolecularEnergy) -> None:
        """Look at more frames, positions in nm of shape ``(n, atoms, 3)``."""
        stretch = self._lengths(positions) - self._usual
        self._frames += len(positions)
        self._sums += np.stack([stretch, stretch**2]).sum(1)
        if path not in self._rounded and _is_rounded(positions):
            self._rounded.append(path)
            if self.rounding is None:
                self.rounding = _change(positions[:SAMPLES], energy)

    @property
    def constrained(self) -> list[tuple[int, int]]:
        """Bonds whose length does not vary."""
        if self._frames < LEAST_FRAMES:
            return []
        mean, square = self._sums / self._frames
        smallest = STIFFEST * np.sqrt(self.system.temperature / 300)
        constant = np.flatnonzero(square - mean**2 < smallest**2)
        return [(int(i), int(j)) for i, j in self._pairs.T[constant]]

    def conclude(self) -> None:
        """Say what was found, after the last frame."""
        if self._rounded:
            log.warning(
                f"Positions in {listed(self._rounded)} are rounded to {ROUNDED:g} nm, as in XTC and "
                f"GRO files, which changes energies by {self.rounding:.2g} kT on average; formats with all "
                "digits (DCD, TRR, HDF5) are better."
            )
        if bonds := self.constrained:
            atoms = [[self.system.topology.atom(i) for i in bond] for bond in bonds]
            names = listed(f"{a.name}-{b.name} of {a.residue}" for a, b in atoms)
            log.warning(
                f"{len(bonds)} of {len(self._usual)} bonds have a constant length in all frames, as constraints "
                f"make it ({names}). Here they are flexible: energies and forces are those of the flexible "
                "molecule, but the spread of these bonds is missing from the frames. A model of them alone is "
                "too narrow there; refine it with the energy (knotflow train --refine), or simulate without "
                "constraints."
            )

    def _lengths(self, positions: NDArray[Any]) -> NDArray[np.float64]:
        i, j = self._pairs
        between = positions[..., i, :].astype(np.float64) - positions[..., j, :]
        return np.asarray(np.linalg.norm(between, axis=-1))


def _is_rounded(positions: NDArray[Any]) -> bool:
    steps = positions / ROUNDED
    return bool(np.abs(steps - np.round(steps)).max(initial=0) < WHOLE)


def _change(positions: NDArray[Any], energy: MolecularEnergy) -> float:
    """Mean change of the energy in kT if positions move as by rounding."""
    x = torch.from_numpy(positions.astype(np.float64))
    shift = torch.from_numpy(np.random.default_rng(0).uniform(-ROUNDED / 2, ROUNDED / 2, x.shape))
    # Forward and back, so that the slope, which is zero on average, cancels.
    moved = (energy.energy(x + shift) + energy.energy(x - shift)) / 2
    return float((moved - energy.energy(x)).mean())
