"""Extended tight binding (xTB) by tblite: a quantum-chemical energy for which nothing has to be prepared.

GFN2-xTB: Bannwarth, Ehlert and Grimme, J. Chem. Theory Comput. 15 (2019) 1652.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from knotflow.energies.frames import Atoms, Evaluated, Frames, one_by_one
from knotflow.energies.settings import XTBSettings
from knotflow.extras import optional
from knotflow.molecules.units import BOHR, HARTREE


def unpaired_electrons(numbers: list[int], settings: XTBSettings) -> int:
    """The number of unpaired electrons, one less than the multiplicity.

    Raises:
        ValueError: if the multiplicity is missing or impossible.
    """
    electrons, multiplicity = sum(numbers) - settings.charge, settings.multiplicity
    if multiplicity is None and electrons % 2:
        raise ValueError(
            f"the molecule has {electrons} electrons at charge {settings.charge}, an odd number, so it is an "
            "open shell: give its multiplicity, 2 for one unpaired electron, or correct the charge."
        )
    unpaired = (multiplicity or 1) - 1
    if (electrons - unpaired) % 2 or unpaired > electrons:
        raise ValueError(
            f"{electrons} electrons, at charge {settings.charge}, cannot have the multiplicity "
            f"{multiplicity}; correct one of the two."
        )
    return unpaired


def frame_worker(atoms: Atoms) -> Callable[[Frames], Evaluated]:
    """Target of a `WorkerPool`: energies by xTB.

    Every frame is computed from scratch, so its energy does not depend on earlier ones.

    Raises:
        ValueError: if the method does not know an element, or the multiplicity is missing or impossible.
    """
    with optional("energies by xTB"):
        from tblite.interface import Calculator
    settings = XTBSettings.parse(atoms.settings)
    unpaired = unpaired_electrons(atoms.numbers, settings)
    numbers = np.array(atoms.numbers)
    try:
        calculator = Calculator(
            settings.method, numbers, atoms.positions / BOHR, float(settings.charge), unpaired
        )
    except RuntimeError as error:
        raise ValueError(f"{settings.method} cannot describe the molecule: {error}") from None
    calculator.set("verbosity", 0)

    def evaluate(frame: Frames) -> tuple[float, Frames]:
        calculator.update(frame / BOHR)
        result = calculator.singlepoint()
        return float(result.get("energy")) * HARTREE, result.get("gradient") * (-HARTREE / BOHR)

    return one_by_one(evaluate)
