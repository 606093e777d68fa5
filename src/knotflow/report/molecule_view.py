"""Structures for the three-dimensional view on a page: a few kB of data for its script."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.geometry.superpose import superposed

PICOMETRES: Final = 1000.0
"""In a nm: positions are rounded to whole picometres."""
FARTHEST: Final = 32_767
"""The largest 16-bit number, in pm."""
NARROW: Final = "<i2"
"""Two bytes, little-endian as on all machines that run browsers."""


@dataclass(frozen=True, eq=False)
class MoleculeView:
    """Superposed structures of one molecule."""

    name: str
    elements: Sequence[str]
    bonds: Sequence[tuple[int, int]]
    positions: NDArray[np.float64]
    """In nm, shape ``(frames, atoms, 3)``."""
    labels: Sequence[str]
    """One line for each frame."""

    def __post_init__(self) -> None:
        shape = (len(self.labels), len(self.elements), 3)
        if self.positions.shape != shape or not len(self.labels) or not np.isfinite(self.positions).all():
            raise ValueError(
                f"a view needs finite positions of shape (frames, atoms, 3), here {shape} with a label for "
                f"each frame and at least one, got shape {self.positions.shape}."
            )

    @property
    def frames(self) -> int:
        """Number of structures."""
        return len(self.labels)

    @property
    def description(self) -> str:
        """Text for those who cannot see it."""
        return f"{self.name}, {len(self.elements)} atoms as balls and sticks; one of {self.frames} samples"

    def json(self) -> str:
        """Content of an HTML script element: it has no ``<`` that could end the element."""
        whole = np.rint(self.positions * PICOMETRES).clip(-FARTHEST, FARTHEST).astype(NARROW)
        content = {
            "elements": list(self.elements),
            "bonds": [list(bond) for bond in self.bonds],
            "frames": self.frames,
            "labels": list(self.labels),
            "positions": b64encode(whole.tobytes()).decode(),
        }
        return json.dumps(content, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")


def view_of(
    molecule: Mapping[str, Any], positions: NDArray[np.floating[Any]], labels: Sequence[str]
) -> MoleculeView:
    """Structures superposed on the minimised structure of the molecule, with its centre at the origin.

    Args:
        molecule: The result of `knotflow.molecules.MolecularSystem.plain`.
        positions: In nm, shape ``(frames, atoms, 3)``.
        labels: One line for each frame.
    """
    x = torch.from_numpy(np.asarray(positions, dtype=np.float64))
    reference = torch.tensor(molecule["positions"], dtype=torch.float64)
    reference = reference - reference.mean(0)
    moved = superposed(x, reference.expand_as(x)).numpy() if len(x) else x.numpy()
    return MoleculeView(
        str(molecule["name"]),
        elements_of(molecule),
        [(int(i), int(j)) for i, j in molecule["topology"]["bonds"]],
        moved,
        labels,
    )


def elements_of(molecule: Mapping[str, Any]) -> list[str]:
    """Element symbols of all atoms."""
    chains = molecule["topology"]["chains"]
    return [str(a["element"]) for chain in chains for residue in chain["residues"] for a in residue["atoms"]]
