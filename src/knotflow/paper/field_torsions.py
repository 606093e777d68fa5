"""Torsions in the benchmark beside the field: effective sample sizes inside states, and coarse histograms.

A bad state hides in an effective sample size of the whole. And the noise of histograms with fine bins, from
as many frames as a simulation has, hides how good a good model is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from knotflow.analysis import measures
from knotflow.analysis.frame_table import FrameTable
from knotflow.analysis.measures import effective_in, log_weights
from knotflow.statistics.estimates import Floats, blocks
from knotflow.statistics.weights import clipped
from knotflow.storage.observables import Observables
from knotflow.storage.split import Bools

STATES: Final[dict[str, Callable[[Floats, Floats], Bools]]] = {
    "beta": lambda phi, psi: (phi <= 0) & ((psi > 1.0) | (psi < -2.0)),
    "alpha": lambda phi, psi: (phi <= 0) & (psi <= 1.0) & (psi >= -2.0),
    "phi > 0": lambda phi, psi: phi > 0,
}
"""States of a residue, by its torsions in rad."""


BINS: Final = 16
"""Bins along each torsion: 22.5 degrees."""


def torsional(drawn: FrameTable, data: Observables, seed: int) -> dict[str, dict[str, Any]]:
    """For each residue with phi and psi: its ``states``, and its ``histograms`` in `BINS` × `BINS` bins.

    Args:
        drawn: Samples of a model.
        data: All frames of the simulation, those it was trained on included.
        seed: Seed of error bars.
    """
    cut, block = clipped(log_weights(drawn)), blocks(data.replica)
    histograms = {}
    for residue, truth in data.torsions.items():
        angles = drawn.torsions[residue]
        rows = np.isfinite(angles).all(1)
        if rows.any():
            found = measures.histograms(angles[rows], truth, cut[rows], block, seed, BINS)
            histograms[residue] = {key: measure.plain() for key, measure in found.items()}
    states = {residue: states_of(drawn, residue, seed) for residue in drawn.torsions}
    return {"states": states, "histograms": histograms}


def states_of(drawn: FrameTable, residue: str, seed: int) -> dict[str, dict[str, Any]]:
    """For each state of a residue: its samples, and their effective sample size, raw and clipped.

    Weights are clipped before they are divided into states, as everywhere else.
    """
    phi, psi = drawn.torsions[residue].T
    raw = log_weights(drawn)
    cut, found = clipped(raw), {}
    for state, inside in STATES.items():
        rows = np.flatnonzero(inside(phi, psi))
        shares = {"ess": effective_in(raw[rows], seed), "ess_clipped": effective_in(cut[rows], seed)}
        found[state] = {
            "samples": len(rows),
            **{key: {"value": share.value, "error": share.error} for key, share in shares.items()},
        }
    return found
