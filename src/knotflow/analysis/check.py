"""Does knotflow handle a molecule rightly on this machine? Each answer is a number beside a promise.

Energies and forces are compared with OpenMM's double-precision platform, on a force field that is made anew
from its files. Coordinates are compared with themselves, there and back, and with a determinant.

**Promises in single precision** follow from rounding by 6e-8. A force field adds up terms of some 100 kT for
each atom: 1e-4 kT for each atom leaves a margin of ten. A bond of 0.1 nm is rounded by 4e-9 nm, which at
3e5 kT/nm² makes 1e-3 kT/nm, and a few of them add up on an atom. That is a millionth of the largest force of
a frame, some 3e3 kT/nm; 1e-4 of it leaves room for the approximate roots and logarithms of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from knotflow.energies.energy import MolecularEnergy
from knotflow.energies.openmm_contexts import frame_energies, make_context
from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.energies.torch_force_field import TorchForceField
from knotflow.geometry import Chirality, InternalCoordinates, audit
from knotflow.geometry.superpose import superposed
from knotflow.molecules.coordinates import chirality_of, internal_coordinates
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.simulation.engines import OpenMMEngine
from knotflow.transforms.base import check_count

ENERGY_LIMIT: Final = 1e-3
"""In kT, double precision."""
FORCE_LIMIT: Final = 1e-2
"""In kT/nm, double precision."""
SINGLE_ENERGY_LIMIT: Final = 1e-4
"""In kT for each atom, single precision."""
SINGLE_FORCE_LIMIT: Final = 1e-4
"""As a fraction of the largest force in the same frame, single precision."""
ROUND_TRIP_LIMITS: Final = {torch.float32: 1e-5, torch.float64: 1e-12}
"""In nm."""
VOLUME_LIMIT: Final = 1e-8
RETURNED_FORCE_LIMIT: Final = 1e-9
"""As a fraction of the largest force in the same frame."""

HEAT: Final = 2.0
"""Structures come from a run at so many times the temperature."""
STRUCTURES: Final = 40
STEPS: Final = 100
"""Steps of the run from one structure to the next."""
NOISE: Final = 0.003
"""In nm: how much the copies of these structures are shaken."""
ROUND_TRIPS: Final = 10
"""Frames for the coordinates, for each frame for the energies."""
DETERMINANTS: Final = 4
"""Frames for the log-determinant: its oracle takes a matrix of all coordinates."""
ATOMS_AT_ONCE: Final = 50_000
"""Frames are made and looked at in chunks of so many atoms, which bounds the memory."""
LEAST_CHUNK: Final = 64


@dataclass(frozen=True)
class Check:
    """Something measured, beside what is promised."""

    name: str
    value: float | None
    """None if it cannot be measured; the note says why."""
    limit: float | None
    """The largest value that is fine; None for mere information."""
    unit: str = ""
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether no promise is broken; a value that is NaN breaks it."""
        return self.value is None or self.limit is None or self.value <= self.limit


def check_molecule(
    system: MolecularSystem,
    frames: int = 10_000,
    seed: int = 0,
    progress: Progress = silent,
    *,
    compiled: bool = False,
) -> list[Check]:
    """Measure energies, forces and coordinates of random frames of a molecule.

    The frames are copies of structures from a short hot simulation, shaken and turned at random, with
    positions that float32 holds exactly.

    Args:
        system: The molecule.
        frames: Frames for energies and forces; for coordinates there are ten times as many.
        seed: Of all random numbers.
        progress: Called with the progress.
        compiled: Whether to compile the torch force field and check that too, which takes most of a minute.

    Raises:
        ValueError: if the molecule has no internal coordinates, or flies apart in the simulation.
    """
    check_count("frames", frames, 1)
    coordinates, chirality = internal_coordinates(system), chirality_of(system)
    reference = _Reference(system)
    with OpenMMEnergy(system) as openmm_energy:
        structures = _hot_structures(system, openmm_energy.platform, seed, progress)
        candidates, missing = _candidates(system, openmm_energy, compiled)
        shaken = _tracked(_shaken(structures, frames, seed), "energies and forces", frames, progress)
        energies = _check_energies(reference, candidates, shaken)
    sample = next(_shaken(structures, frames, seed))
    trips = ROUND_TRIPS * frames
    shaken = _tracked(_shaken(structures, trips, seed + 1), "coordinates", trips, progress)
    *round_trips, handedness = _check_round_trips(coordinates, chirality, shaken)
    return [
        *energies,
        *missing,
        *round_trips,
        _check_volume(coordinates, sample.double()),
        _check_returned_forces(coordinates, reference, sample.double()),
        handedness,
        _check_zmatrix(system, coordinates, sample),
    ]


def _hot_structures(system: MolecularSystem, platform: str, seed: int, progress: Progress) -> Tensor:
    """Structures (structures, atoms, 3) along a Langevin run that starts at the minimum of the energy."""
    random = np.random.default_rng(seed)
    engine = OpenMMEngine(system, platform)
    engine.seed(int(random.integers(1, 2**31)))
    temperature = np.array([HEAT * system.temperature])
    x, v = system.positions[None], engine.thermal_velocities(temperature, random)
    found = []
    for number in range(STRUCTURES):
        progress("simulation", number, STRUCTURES)
        try:
            now = engine.advance(x, v, temperature, STEPS)
        except FloatingPointError as error:
            raise ValueError(
                f"{system.name} flew apart in a short run at {temperature[0]:g} K ({error}); check its "
                "structure and its force field, or lower the temperature."
            ) from None
        x, v = now.positions, now.velocities
        found.append(x[0])
    progress("simulation", STRUCTURES, STRUCTURES)
    return torch.from_numpy(np.array(found))


def _shaken(structures: Tensor, n: int, seed: int) -> Iterator[Tensor]:
    """Copies of structures in turn, shaken and turned at random, float32, in chunks (frames, atoms, 3)."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=structures.dtype)

    chunk = max(LEAST_CHUNK, ATOMS_AT_ONCE // structures.shape[1])
    for start in range(0, n, chunk):
        x = structures[torch.arange(start, min(start + chunk, n)) % len(structures)]
        turn, _ = torch.linalg.qr(noise(len(x), 3, 3))
        turn = turn * torch.linalg.det(turn).sign()[:, None, None]
        yield ((x + NOISE * noise(*x.shape)) @ turn).float()


def _tracked(frames: Iterable[Tensor], doing: str, total: int, progress: Progress) -> Iterator[Tensor]:
    """The same chunks, reported as they are taken."""
    done = 0
    for x in frames:
        progress(doing, done, total)
        yield x
        done += len(x)
    progress(doing, done, total)


class _Reference:
    """Energies and forces by OpenMM in double precision, one frame after the other."""

    def __init__(self, system: MolecularSystem) -> None:
        self.n_atoms = system.n_atoms
        self.note = ""
        try:
            system = system.parametrised_again()
        except ValueError as error:
            self.note = f"compared with the stored system only: {error}"
        self._kT = system.kT
        self._context = make_context(system.xml, "Reference")

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Reduced energies (frames,) and forces (frames, atoms, 3) in kT/nm."""
        energies_kj, forces_kj = frame_energies(self._context, x.double().numpy())
        return torch.from_numpy(energies_kj / self._kT), torch.from_numpy(forces_kj / self._kT)


@dataclass(frozen=True)
class _Candidate:
    """An energy to judge: its name, with what dtype to call it, and whether it computes in float64."""

    name: str
    energy: MolecularEnergy
    dtype: torch.dtype
    double: bool


def _candidates(
    system: MolecularSystem, openmm_energy: OpenMMEnergy, compiled: bool
) -> tuple[list[_Candidate], list[Check]]:
    """The energies there are for a molecule; and what to say about one that there is not."""
    name = f"OpenMM {openmm_energy.platform}"
    double = openmm_energy.platform == "Reference"
    by_openmm = _Candidate(name, openmm_energy, torch.float64, double)
    try:
        field = TorchForceField(system, compiled=False)
    except ValueError as error:
        return [by_openmm], [Check("energy, torch", None, None, "", f"not available: {error}")]
    found = [
        _Candidate("torch float64", field, torch.float64, double=True),
        _Candidate("torch float32", field, torch.float32, double=False),
    ]
    if compiled:
        field = TorchForceField(system, compiled=True)
        found.append(_Candidate("torch float32, compiled", field, torch.float32, double=False))
    return [*found, by_openmm], []


def _check_energies(
    reference: _Reference, candidates: list[_Candidate], frames: Iterable[Tensor]
) -> list[Check]:
    """Largest differences of energies and forces from the reference."""
    worst = {candidate.name: torch.zeros(3, dtype=torch.float64) for candidate in candidates}
    for x in frames:
        u, f = reference(x)
        for candidate in candidates:
            # Torch's maximum keeps NaN, which must show.
            now = _differences(candidate, x, u, f)
            worst[candidate.name] = torch.maximum(worst[candidate.name], now)
    checks = []
    for candidate in candidates:
        energy, force, relative = worst[candidate.name].tolist()
        if candidate.double:
            checks += [
                Check(f"energy, {candidate.name}", energy, ENERGY_LIMIT, "kT", reference.note),
                Check(f"force, {candidate.name}", force, FORCE_LIMIT, "kT/nm"),
            ]
        else:
            limit = SINGLE_ENERGY_LIMIT * reference.n_atoms
            checks += [
                Check(f"energy, {candidate.name}", energy, limit, "kT", reference.note),
                Check(f"force, {candidate.name}", relative, SINGLE_FORCE_LIMIT, "of max"),
            ]
    return checks


def _differences(candidate: _Candidate, x: Tensor, u: Tensor, f: Tensor) -> Tensor:
    """Largest error of an energy, of the force on an atom, and of it relative to the largest of its frame."""
    its_u, its_f = candidate.energy.energy_and_force(x.to(candidate.dtype))
    error = (its_f.double() - f).norm(dim=-1).amax(-1)
    relative = error / f.norm(dim=-1).amax(-1)
    return torch.stack([(its_u.double() - u).abs().max(), error.max(), relative.max()])


def _check_round_trips(
    coordinates: InternalCoordinates, chirality: Chirality, frames: Iterable[Tensor]
) -> list[Check]:
    """Positions to coordinates and back; and whether frames are of the right hand at all."""
    worst = {dtype: torch.zeros((), dtype=torch.float64) for dtype in ROUND_TRIP_LIMITS}
    mirrored = 0
    for x in frames:
        mirrored += int((~chirality.matches(x)).sum())
        for dtype in worst:
            back, _ = coordinates.inverse(coordinates(x.to(dtype))[0])
            y = x.double()
            error = (superposed(back.double(), y) - y).norm(dim=-1).max()
            worst[dtype] = torch.maximum(worst[dtype], error)
    checks = [
        Check(f"round trip, {str(dtype).removeprefix('torch.')}", worst[dtype].item(), limit, "nm")
        for dtype, limit in ROUND_TRIP_LIMITS.items()
    ]
    return [*checks, Check("frames of other handedness", mirrored, None, "", chiral_centres(chirality))]


def chiral_centres(chirality: Chirality) -> str:
    """How many a molecule has, in words."""
    centres = len(chirality.centres)
    return f"the molecule has {centres} chiral centre{'' if centres == 1 else 's'}"


def _check_volume(coordinates: InternalCoordinates, x: Tensor) -> Check:
    """Log-determinants of both directions against that of the Jacobian of all coordinates."""
    q, ladj = coordinates(x[:DETERMINANTS])
    oracle = torch.stack([log_determinant(coordinates, frame) for frame in q])
    errors = torch.stack([ladj + oracle, coordinates.inverse(q)[1] - oracle])
    return Check("log-determinant", errors.abs().max().item(), VOLUME_LIMIT)


def log_determinant(coordinates: InternalCoordinates, q: Tensor) -> Tensor:
    """Of the positions by 3 shifts, 3 rotations at the standard pose, and all coordinates, by autograd."""

    def positions(everything: Tensor) -> Tensor:
        shift, axis, q = everything.split([3, 3, coordinates.n_coordinates])
        x, _ = coordinates.inverse(q)
        # A rotation to first order, which is enough for its derivatives at zero.
        moved: Tensor = x + torch.linalg.cross(axis.expand_as(x), x) + shift
        return moved.flatten()

    jacobian = torch.func.jacrev(positions, chunk_size=64)(torch.cat((q.new_zeros(6), q)))
    logarithm: Tensor = torch.linalg.slogdet(jacobian).logabsdet
    return logarithm


def _check_returned_forces(coordinates: InternalCoordinates, reference: _Reference, x: Tensor) -> Check:
    """Forces of the molecule taken along the coordinates and back to the atoms."""
    _, force = reference(x)
    back = coordinates.cartesian_force(x, coordinates.internal_force(x, force))
    error = (back - force).norm(dim=-1).amax(-1) / force.norm(dim=-1).amax(-1)
    return Check("forces there and back", error.max().item(), RETURNED_FORCE_LIMIT, "of max")


def _check_zmatrix(system: MolecularSystem, coordinates: InternalCoordinates, x: Tensor) -> Check:
    found = audit(coordinates.zmatrix, x, system.bonds)
    return Check("problems of the z-matrix", len(found.problems), None, "", str(found))
