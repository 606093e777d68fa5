"""What there is to say about imported frames: atoms that were put in order, rounding, constrained bonds."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.energies.energy import MolecularEnergy
from knotflow.geometry.graph import neighbours
from knotflow.molecules.system import MolecularSystem
from knotflow.sentences import listed
from knotflow.storage.atom_order import Order
from knotflow.storage.other_programs import RawFrames
from knotflow.storage.stretching import Stretching

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
    """Looks at frames for what is unusual, makes constrained bonds flexible, and says so in one line each.

    Args:
        system: The molecule.
        energy: Its energy.
    """

    def __init__(self, system: MolecularSystem, energy: MolecularEnergy) -> None:
        self.system, self.energy = system, energy
        self.moved = 0
        """Atoms that were in another place in one of the files."""
        self.rounding: float | None = None
        """Mean change of the energy in kT by rounding positions; None if they are not rounded."""
        self.constrained: list[tuple[int, int]] = []
        """Bonds of constant length."""
        self.rigid_angles: list[tuple[int, int, int]] = []
        """Angles whose outer atoms stay at a constant distance."""
        self.redrawn = 0
        """Frames in which such bonds got new lengths."""
        self._rounded: list[Path] = []
        self._known: dict[Path, Stretching | None] = {}
        self._pairs = np.array(system.bonds, dtype=np.int64).reshape(-1, 2)

    def reordered(self, path: Path, order: Order) -> None:
        """Say that the atoms of a file were put into the order of the molecule."""
        moved = int((order.indices != np.arange(len(order.indices))).sum())
        self.moved = max(self.moved, moved)
        log.warning(
            f"The atoms of {path} are in another order than in {self.system.name}: {moved} of "
            f"{len(order.indices)} were moved, matched by {order.by}."
        )

    def look(self, path: Path, positions: NDArray[Any]) -> None:
        """Look at successive frames of a file, positions in nm of shape ``(n, atoms, 3)``."""
        if path not in self._rounded and _is_rounded(positions):
            self._rounded.append(path)
            if self.rounding is None:
                self.rounding = _change(positions[:SAMPLES], self.energy)
        if path not in self._known and len(positions) >= LEAST_FRAMES:
            bonds = [(int(a), int(b)) for a, b in self._pairs[self._constant(positions, self._pairs)]]
            self.constrained += [bond for bond in bonds if bond not in self.constrained]
            angles = np.array(_angles(self.system), dtype=np.int64).reshape(-1, 3)
            rigid = angles[self._constant(positions, angles[:, ::2])].tolist()
            self.rigid_angles += [angle for angle in map(tuple, rigid) if angle not in self.rigid_angles]
            found = Stretching(self.system, self.energy, bonds) if bonds else None
            self._known[path] = found if found is not None and len(found.indices) else None

    def flexible(self, path: Path, frames: RawFrames) -> RawFrames:
        """The frames as they are or, if bonds are constrained, with new lengths and without energies."""
        stretching = self._known.get(path)
        if stretching is None:
            return frames
        self.redrawn += len(frames)
        positions = stretching(frames.positions).astype(frames.positions.dtype)
        return replace(frames, positions=positions, energies=None, forces=None)

    def notes(self) -> dict[str, Any]:
        """What was done to the frames so far, for the file."""
        bonds = [[*bond] for bond in self.constrained]
        return ({"constrained_bonds": bonds} if bonds else {}) | (
            {"moved_atoms": n} if (n := self.moved) else {}
        )

    def conclude(self) -> None:
        """Say what was found, after the last frame."""
        if self._rounded:
            log.warning(
                f"Positions in {listed(self._rounded)} are rounded to {ROUNDED:g} nm, as in XTC and GRO "
                f"files, which changes energies by {self.rounding:.2g} kT on average; formats with all "
                "digits (DCD, TRR, HDF5) are better."
            )
        if self.constrained:
            log.warning(self._constraints())
        if self.rigid_angles:
            atoms = [[self.system.topology.atom(i) for i in angle] for angle in self.rigid_angles]
            names = listed(
                f"{'-'.join(atom.name for atom in angle)} of {angle[0].residue}" for angle in atoms
            )
            log.warning(
                f"{len(atoms)} angles are constant, as constraints on angles make them ({names}), and stay "
                "so: a model of these frames is too narrow there and its weights are wrong; simulate with "
                "constraints on bonds only (HBonds), or without."
            )

    def _constraints(self) -> str:
        atoms = [[self.system.topology.atom(i) for i in bond] for bond in self.constrained]
        names = listed(f"{a.name}-{b.name} of {a.residue}" for a, b in atoms)
        said = (
            f"{len(atoms)} of {len(self._pairs)} bonds have a constant length, as constraints make it "
            f"({names}), but are flexible here"
        )
        drawn = [found for found in self._known.values() if found is not None]
        if drawn:
            share = sum(found.accepted for found in drawn) / max(1, sum(found.proposed for found in drawn))
            said += (
                f": in {self.redrawn:,} frames their lengths were drawn anew from the equilibrium "
                f"distribution given all other coordinates ({share:.0%} of the trials accepted), with "
                "energies and forces of the flexible molecule; the other coordinates stay those of the "
                "constrained simulation"
            )
        rigid = len(atoms) - max((len(found.indices) for found in drawn), default=0)
        if rigid:
            said += (
                f"; {rigid} in rings stay constant, so a model of these frames is too narrow there and its "
                "weights are wrong: simulate without constraints on them"
            )
        return said + "."

    def _constant(self, positions: NDArray[Any], pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which pairs of atoms, shape ``(n, 2)``, stay at the same distance."""
        i, j = pairs.T
        x = positions.astype(np.float64)
        spread = np.linalg.norm(x[:, i] - x[:, j], axis=-1).std(0)
        constant: NDArray[np.bool_] = spread < STIFFEST * np.sqrt(self.system.temperature / 300)
        return constant


def _angles(system: MolecularSystem) -> list[tuple[int, int, int]]:
    """Triples of atoms, the middle one bonded to both others, which are not bonded."""
    near = neighbours(system.n_atoms, system.bonds)
    return [
        (i, centre, k)
        for centre, around in enumerate(near)
        for i, k in combinations(around, 2)
        if k not in near[i]
    ]


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
