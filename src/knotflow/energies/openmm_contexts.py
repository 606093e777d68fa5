"""OpenMM contexts: the fastest platform for a molecule, and the energies of frames on it.

Energies are in kJ/mol and forces in kJ/mol/nm, OpenMM's own units.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.energies.frames import Frames
from knotflow.extras import optional
from knotflow.molecules.openmm_xml import deserialised
from knotflow.workers import usable_cores

if TYPE_CHECKING:
    import openmm


PROPERTIES: Final = {"Threads": "1", "DeterministicForces": "true", "Precision": "mixed"}
"""Set on platforms that support them. One thread each: parallel work is done by processes."""

GPU_PLATFORMS: Final = ("CUDA", "OpenCL", "HIP")

TRIALS: Final = 30
CLEARLY: Final = 2.0
"""Another platform is preferred to ``"Reference"`` if it is at least this many times as fast."""
TRIAL_SECONDS: Final = 0.1
"""A platform is timed with `TRIALS` evaluations, or fewer (at least three) if they take longer than this."""


def make_context(xml: str, platform: str, integrator: openmm.Integrator | None = None) -> openmm.Context:
    """A context for a serialised OpenMM System on a platform, with one thread and reproducible forces.

    Args:
        xml: The serialised System.
        platform: Its name, such as ``"Reference"`` (double precision) or ``"CPU"`` (mostly single).
        integrator: Needed for simulations only, not for energies.
    """
    with optional("molecules"):
        import openmm
    chosen = openmm.Platform.getPlatformByName(platform)
    known = set(chosen.getPropertyNames())
    properties = {name: value for name, value in PROPERTIES.items() if name in known}
    system = deserialised(xml)
    return openmm.Context(system, integrator or openmm.VerletIntegrator(0.001), chosen, properties)


def works(platform: str, xml: str) -> bool:
    """Whether this machine has a platform that supports the forces of a serialised OpenMM System."""
    with optional("molecules"):
        import openmm
    try:
        make_context(xml, platform)
    except openmm.OpenMMException:  # a GPU platform without a GPU, or an unsupported force
        return False
    return True


def fastest_platform(xml: str, positions: Frames) -> str:
    """The platform that evaluates energy and forces fastest, found by timing all that work here.

    Small molecules are usually fastest on ``"Reference"``, which has the least overhead. It is also the most
    precise, so it is chosen unless another is clearly faster: two simulations on a busy machine then give
    the same bits.

    Args:
        xml: The serialised OpenMM System.
        positions: A structure to evaluate, shape ``(atoms, 3)`` in nm.
    """
    with optional("molecules"):
        import openmm
    seconds: dict[str, float] = {}
    for number in range(openmm.Platform.getNumPlatforms()):
        name = openmm.Platform.getPlatform(number).getName()
        try:
            seconds[name] = _seconds_per_evaluation(make_context(xml, name), positions)
        except openmm.OpenMMException:  # a GPU platform without a GPU, or an unsupported force
            continue
    if not math.isfinite(min(seconds.values(), default=math.inf)):
        raise ValueError(
            "no OpenMM platform finds a finite energy at the positions of this system; minimise it first."
        )
    fastest = min(seconds, key=seconds.__getitem__)
    reference = seconds.get("Reference", math.inf)
    return "Reference" if reference < CLEARLY * seconds[fastest] else fastest


def worker_count(place: str) -> int:
    """Number of processes for an OpenMM platform or a torch device: one for a GPU, else one per core."""
    return 1 if place in (*GPU_PLATFORMS, "cuda") else usable_cores()


def frame_energies(context: openmm.Context, frames: Frames) -> tuple[NDArray[np.float64], Frames]:
    """Energies in kJ/mol, shape ``(n,)``, and forces in kJ/mol/nm, shape ``(n, atoms, 3)``, of frames in nm.

    A frame with a position that is not finite, or that OpenMM refuses, gets NaN for its energy and all its
    forces.
    """
    import openmm

    energies_kj = np.full(len(frames), np.nan)
    forces_kj = np.full(frames.shape, np.nan)
    for index in np.flatnonzero(np.isfinite(frames).all((1, 2))):
        context.setPositions(frames[index])
        try:
            state = context.getState(energy=True, forces=True)
        except openmm.OpenMMException:
            continue
        # Bare values in OpenMM's units: converting them would cost as much as the energy of a small molecule.
        energies_kj[index] = state.getPotentialEnergy()._value
        forces_kj[index] = state.getForces(asNumpy=True)._value
    return energies_kj, forces_kj


def frame_worker(setup: tuple[str, str]) -> Callable[[Frames], tuple[NDArray[np.float64], Frames]]:
    """Target of a `WorkerPool`: `frame_energies` for a serialised System on a platform."""
    return partial(frame_energies, make_context(*setup))


def _seconds_per_evaluation(context: openmm.Context, positions: Frames) -> float:
    """The shortest time, since other programs can only add to it; infinity if the energy is not finite."""
    frame = np.asarray(positions, dtype=np.float64)[None]
    (energy_kj,), _ = frame_energies(context, frame)  # the first one compiles and allocates
    if not np.isfinite(energy_kj):
        return math.inf
    best, began = math.inf, time.perf_counter()
    for trial in range(TRIALS):
        if trial >= 3 and time.perf_counter() - began > TRIAL_SECONDS:
            break
        start = time.perf_counter()
        frame_energies(context, frame)
        best = min(best, time.perf_counter() - start)
    return best
