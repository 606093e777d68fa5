"""Whether a force field treats the hydrogens of a group alike, so that their labels can be exchanged."""

from __future__ import annotations

import importlib.util
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.energies.openmm_contexts import frame_energies, make_context
from knotflow.geometry import HydrogenLabels
from knotflow.molecules.system import MolecularSystem

SHAKEN: Final = 0.005
"""In nm: how far atoms are moved, so that no symmetry of the structure hides a difference."""
SAME_ENERGY: Final = 1e-6
"""In kJ/mol."""
SAME_FORCE: Final = 1e-7
"""Relative to the largest force."""


def interchangeable(system: MolecularSystem, labels: HydrogenLabels) -> NDArray[np.bool_]:
    """Which groups of hydrogens the force field does not tell apart, shape ``(groups,)``.

    By OpenMM in double precision: after an exchange of labels a shaken structure has the same energy and the
    same forces, with their labels exchanged. All groups are exchanged at once and, only if that changes
    anything, one by one. Without OpenMM, or without a force field, hydrogens on one atom count as alike, as
    they do for every energy that knows atoms by their element.
    """
    n = len(labels.groups)
    if not n or system.energy is not None or not importlib.util.find_spec("openmm"):
        return np.ones(n, dtype=bool)
    noise = np.random.default_rng(0).normal(scale=SHAKEN, size=system.positions.shape)
    x, context = system.positions + noise, make_context(system.xml, "Reference")
    (energy,), (force,) = frame_energies(context, x[None])

    def same(exchanged: torch.Tensor) -> bool:
        order = labels.order(exchanged).numpy()
        (other,), (moved,) = frame_energies(context, x[order][None])
        close = np.abs(moved - force[order]).max() <= SAME_FORCE * np.abs(force).max()
        return bool(abs(other - energy) <= SAME_ENERGY and close)

    if same(torch.ones(n, dtype=torch.bool)):
        return np.ones(n, dtype=bool)
    return np.array([same(one) for one in torch.eye(n, dtype=torch.bool)])
