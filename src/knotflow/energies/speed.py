"""How fast an energy is on this machine."""

from __future__ import annotations

import time
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.energies.energy import MolecularEnergy

LONG: Final = 0.25
"""Seconds; a batch that takes longer is the last one."""


def evaluations_per_second(
    energy: MolecularEnergy, positions: NDArray[np.float64], batch: int = 512
) -> float:
    """The speed of an energy, measured in growing batches; slow ones are asked for a few energies only.

    Args:
        energy: The energy.
        positions: A structure in nm, shape ``(atoms, 3)``.
        batch: The number of structures that will be evaluated at once.
    """
    x, rate = torch.from_numpy(positions), 1.0
    energy.energy_and_force(x[None])  # the first call may compile
    for n in sorted({1, min(8, batch), min(64, batch), batch}):
        began = time.perf_counter()
        energy.energy_and_force(x.expand(n, -1, -1))
        took = max(time.perf_counter() - began, 1e-9)
        rate = n / took
        if took > LONG:
            break
    return rate
