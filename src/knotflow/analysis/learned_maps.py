"""The maps that a flow has learned: how a coupling transforms one coordinate, given the others."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Final

import torch

from knotflow.analysis.frame_table import spaced
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.atom_names import atom_names, coordinate_name
from knotflow.molecules.system import topology_from_plain
from knotflow.statistics.estimates import Floats

POINTS: Final = 25
"""Frames whose maps are shown, as in figure 2 of Hong & Chun (AAAI 2023)."""
GRID: Final = 401
"""Points at which a map is evaluated."""


@dataclass(frozen=True, eq=False)
class LearnedMap:
    """The map of one coordinate in one coupling, at several frames, in standard coordinates."""

    name: str
    """Name of the coordinate, such as ``torsion C1-C2-C3-C4``."""
    coupling: int
    """Number of the coupling, from 1."""
    x: Floats
    """Shape ``(points,)``."""
    y: Floats
    """Images, shape ``(frames, points)``; on a circle they may cross the seam, from the end to the start."""
    slopes: Floats
    """Shape ``(frames, points)``."""


@torch.no_grad()
def learned_maps(
    generator: BoltzmannGenerator, coordinates: Floats, points: int = POINTS
) -> list[LearnedMap]:
    """The map that depends most on the other coordinates, of a torsion, of an angle and of a bond.

    Args:
        generator: The generator.
        coordinates: Internal coordinates of frames, shape ``(n, d)``, inside its intervals.
        points: Number of evenly spaced frames to use.
    """
    flow, like_q = copy.deepcopy(generator.flow).double(), generator.coordinates
    q = torch.from_numpy(coordinates[spaced(len(coordinates), points)]).double()
    names = atom_names(topology_from_plain(generator.molecule["topology"]))
    kinds = {"torsion": like_q.torsions, "angle": like_q.angles, "bond": like_q.bonds}
    best: dict[str, tuple[float, LearnedMap]] = {}
    for number, (coupling, z, _) in enumerate(flow.layers(q), 1):
        for i, f, raw in zip(coupling.transformed, coupling.transforms, coupling.raw(z), strict=True):
            kind = next(kind for kind, part in kinds.items() if part.start <= i < part.stop)
            x = torch.linspace(f.domain.low, f.domain.high, GRID, dtype=torch.float64)
            y, ladj = f.forward(x.expand(len(q), -1), raw.unsqueeze(-2))
            # The spread of log-slopes ignores shifts of a circle, which do not change the density.
            spread = float(ladj.std(0, correction=0).mean())
            if kind not in best or spread > best[kind][0]:
                found = LearnedMap(
                    coordinate_name(like_q.atoms[i], names),
                    number,
                    x.numpy(),
                    y.numpy(),
                    ladj.exp().numpy(),
                )
                best[kind] = (spread, found)
    return [best[kind][1] for kind in kinds if kind in best]
