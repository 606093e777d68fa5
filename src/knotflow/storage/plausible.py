"""Numbers that no molecule has: frames with them are refused, or set aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.molecules.structure import FARTHEST

LARGEST: Final = {"positions": FARTHEST, "forces": 1e8, "energies": 1e8}
"""In nm, kJ/mol/nm, and kJ/mol for each atom. A bond has such a force if it is longer by 400 nm; no atom has
such an energy, the deepest shells of its electrons included."""
NOT_SO: Final = "not finite or absurdly large"


def plausible(
    positions: NDArray[Any], forces: NDArray[Any] | None = None, energies: NDArray[Any] | None = None
) -> NDArray[np.bool_]:
    """Whether all numbers of a frame are finite and not absurd, shape ``(n,)``.

    Args:
        positions: In nm, shape ``(n, atoms, 3)``.
        forces: In kJ/mol/nm, same shape.
        energies: In kJ/mol, shape ``(n,)``.
    """
    fine = _plausible("positions", positions, 1)
    for name, values in (("forces", forces), ("energies", energies)):
        if values is not None:
            fine = fine & _plausible(name, values, positions.shape[1])
    return fine


def check_plausible(
    path: Path, rows: NDArray[np.int64], n_atoms: int, **columns: NDArray[Any] | None
) -> None:
    """Refuse frames of a file with numbers that are not plausible; for the columns see `plausible`.

    Raises:
        ValueError: names the first such frame.
    """
    for name, values in columns.items():
        fine = np.ones(0, dtype=bool) if values is None else _plausible(name, values, n_atoms)
        if not fine.all():
            raise ValueError(
                f"{path}: frame {rows[fine.argmin()]} has {name} that are {NOT_SO}; leave out such frames."
            )


def _plausible(name: str, values: NDArray[Any], n_atoms: int) -> NDArray[np.bool_]:
    most = LARGEST[name] * (n_atoms if name == "energies" else 1)
    found: NDArray[np.bool_] = (np.abs(values) <= most).all(tuple(range(1, values.ndim)))  # NaN is not
    return found
