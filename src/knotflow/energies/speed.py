"""How fast an energy is on this machine."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.energies.energy import MolecularEnergy


def evaluations_per_second(
    energy: MolecularEnergy, positions: NDArray[np.float64], batch: int = 512
) -> float:
    """The speed of an energy, measured; slow ones are asked for a few energies only.

    Args:
        energy: The energy.
        positions: A structure in nm, shape ``(atoms, 3)``.
        batch: The number of structures that will be evaluated at once.
    """
    x, rate = torch.from_numpy(positions), 1.0
    for n in sorted({1, min(8, batch), batch}):
        if n / rate > 1.0:
            break
        began = time.perf_counter()
        energy.energy_and_force(x.expand(n, -1, -1))
        rate = n / max(time.perf_counter() - began, 1e-9)
    return rate
