"""Effective sample sizes inside the torsional states of each residue: one bad state hides in the whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from knotflow.analysis.frame_table import FrameTable
from knotflow.analysis.measures import log_weights
from knotflow.statistics.estimates import Estimate, Floats, Rows, bootstrap
from knotflow.statistics.weights import clipped, effective_share
from knotflow.storage.split import Bools

STATES: Final[dict[str, Callable[[Floats, Floats], Bools]]] = {
    "beta": lambda phi, psi: (phi <= 0) & ((psi > 1.0) | (psi < -2.0)),
    "alpha": lambda phi, psi: (phi <= 0) & (psi <= 1.0) & (psi >= -2.0),
    "phi > 0": lambda phi, psi: phi > 0,
}
"""States of a residue, by its torsions in rad."""


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


def effective_in(log_w: Floats, seed: int) -> Estimate:
    """Effective sample size of a state as a share of its samples; NaN if it has none."""
    if len(log_w) == 0:
        return Estimate(math.nan)

    def share(rows: Rows) -> float:
        return effective_share(log_w[rows])

    return Estimate(effective_share(log_w), float(bootstrap(share, np.arange(len(log_w)), seed=seed)))
