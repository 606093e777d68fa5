"""Energies of frames by programs outside torch: what the functions that run in worker processes share.

A target of a `knotflow.workers.WorkerPool` returns a function of frames in nm, shape ``(n, atoms, 3)``. Its
energies are in kJ/mol and its forces in kJ/mol/nm.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.float64]


class Evaluated(NamedTuple):
    """Energies and forces of frames."""

    energies_kj: NDArray[np.float64]
    """Shape ``(n,)``, NaN for a frame without an energy."""
    forces_kj: Frames
    """Shape ``(n, atoms, 3)``."""
    failures: Sequence[tuple[int, str]] = ()
    """Frames on which the program failed, and what it said."""


class Atoms(NamedTuple):
    """What the workers need to know of a molecule."""

    numbers: list[int]
    """Atomic numbers."""
    positions: Frames
    """A reasonable structure, shape ``(atoms, 3)``."""
    settings: dict[str, Any]
    """The energy, see `knotflow.energies.settings`."""


def one_by_one(evaluate: Callable[[Frames], tuple[float, Frames]]) -> Callable[[Frames], Evaluated]:
    """A function of many frames from one of a single frame, which may raise or return NaN.

    A frame with a position that is not finite gets NaN, and is no failure of the program.
    """

    def work(frames: Frames) -> Evaluated:
        energies_kj = np.full(len(frames), np.nan)
        forces_kj = np.full(frames.shape, np.nan)
        failures = []
        for index in np.flatnonzero(np.isfinite(frames).all((1, 2))).tolist():
            try:
                energy, force = evaluate(frames[index])
            except Exception as error:  # of any type: the program is the user's
                failures.append((index, f"{type(error).__name__}: {' '.join(str(error).split())}"))
                continue
            if not (np.isfinite(energy) and np.isfinite(force).all()):
                failures.append((index, "its energy or a force is not a finite number"))
                continue
            energies_kj[index], forces_kj[index] = energy, force
        return Evaluated(energies_kj, forces_kj, failures)

    return work


def from_factory(name: str) -> Any:
    """What the function ``"package.module:factory"`` returns; modules in the current folder are found, too.

    Raises:
        ValueError: if there is no such function, or it fails.
    """
    module, _, function = name.partition(":")
    if not (module and function):
        raise ValueError(
            f'expected "package.module:factory", the name of a function without arguments, got {name!r}.'
        )
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module), function)()
    except Exception as error:  # of any type: the function is the user's
        raise ValueError(
            f"{name} cannot be used ({type(error).__name__}: {' '.join(str(error).split())}); expected a "
            "function without arguments in a module that Python finds."
        ) from None
