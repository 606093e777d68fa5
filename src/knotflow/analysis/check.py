"""Checks of a molecule on this machine: energies, forces and coordinates, each measured against a limit.

Energies and forces are compared with OpenMM's double-precision platform, for a force field rebuilt from its
files. Another energy is compared with itself: its forces with differences of energies, and the energy of a
molecule with that after a rotation. Coordinates are converted there and back, and their log-determinant is
compared with a Jacobian's.

**Limits in single precision** follow from rounding by 6e-8. A force field adds up terms of some 100 kT per
atom: 1e-4 kT per atom leaves a margin of ten. A bond of 0.1 nm is rounded by 4e-9 nm, which at 3e5 kT/nm²
makes 1e-3 kT/nm, and a few of them add up on an atom. That is a millionth of the largest force of a frame,
some 3e3 kT/nm; 1e-4 of it leaves room for the approximate roots and logarithms of GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from knotflow.energies.choose import force_field
from knotflow.energies.energy import MolecularEnergy
from knotflow.energies.openmm_contexts import frame_energies, make_context
from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.energies.torch_force_field import TorchForceField
from knotflow.flows.flow import dtype_name
from knotflow.geometry import Chirality, InternalCoordinates, audit
from knotflow.geometry.superpose import superposed
from knotflow.molecules.coordinates import chirality_of, internal_coordinates
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.simulation.engines import Engine, engine_of, make_engine
from knotflow.transforms.base import check_count

ENERGY_LIMIT: Final = 1e-3
"""In kT, double precision."""
FORCE_LIMIT: Final = 1e-2
"""In kT/nm, double precision."""
SINGLE_ENERGY_LIMIT: Final = 1e-4
"""In kT per atom, single precision."""
SINGLE_FORCE_LIMIT: Final = 1e-4
"""As a fraction of the largest force in the same frame, single precision."""
ROUND_TRIP_LIMITS: Final = {torch.float32: 1e-5, torch.float64: 1e-12}
"""In nm."""
SLOPE_LIMIT: Final = 1e-3
"""As a fraction of the forces in the same frame, other energies than force fields. Their forces are not exact
to the last digit, so they may also turn a molecule, which internal coordinates do not keep."""
ROTATION_LIMIT: Final = 1e-2
"""In kT, likewise."""
DIFFERENCE: Final = 2e-3
"""Displacement of all atoms together for differences of energies, in nm."""
SLOPES: Final = 100
"""Frames for these two checks: such energies are slow."""
VOLUME_LIMIT: Final = 1e-8
RETURNED_FORCE_LIMIT: Final = 1e-9
"""As a fraction of the largest force in the same frame."""

HEAT: Final = 2.0
"""Structures come from a run at this multiple of the temperature."""
STRUCTURES: Final = 40
STEPS: Final = 100
"""Simulation steps between two structures."""
NOISE: Final = 0.003
"""Random displacement of the atoms in copies of these structures, in nm."""
ROUND_TRIPS: Final = 10
"""Frames for the coordinates, per frame for the energies."""
DETERMINANTS: Final = 4
"""Frames for the log-determinant, whose reference takes a matrix of all coordinates."""
ATOMS_AT_ONCE: Final = 50_000
"""Atoms in a chunk of frames, which bounds the memory."""
LEAST_CHUNK: Final = 64


@dataclass(frozen=True)
class Check:
    """A measured value and its limit."""

    name: str
    value: float | None
    """None if it cannot be measured; the note says why."""
    limit: float | None
    """The largest value that is fine; None if the value is only information."""
    unit: str = ""
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the value respects its limit, if it has one; NaN does not."""
        return self.value is None or self.limit is None or self.value <= self.limit


class Worst:
    """The largest of numbers that come in pieces; NaN if one of them is, or if there are none."""

    def __init__(self) -> None:
        self._value = torch.tensor(-math.inf, dtype=torch.float64)

    def add(self, values: Tensor) -> None:
        """Include more numbers."""
        if values.numel():
            # Torch's maximum keeps NaN, which must show.
            self._value = torch.maximum(self._value, values.max().double())

    @property
    def value(self) -> float:
        """The largest so far."""
        return math.nan if self._value == -math.inf else self._value.item()


def chunks(doing: str, total: int, size: int, progress: Progress) -> Iterator[range]:
    """Ranges of at most ``size`` of all items; reports the progress as they are taken."""
    for start in range(0, total, size):
        progress(doing, start, total)
        yield range(start, min(start + size, total))
    progress(doing, total, total)


def displacements(x: Tensor, reference: Tensor) -> Tensor:
    """Distances of atoms (frames, atoms) from a reference after superposition, in float64."""
    y = reference.double()
    distances: Tensor = (superposed(x.double(), y) - y).norm(dim=-1)
    return distances


def log_volume(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    r"""$\log |\det J|$ of the Jacobian of a map of vectors at a point (d,), by autograd."""
    jacobian = torch.func.jacrev(function, chunk_size=64)(x)
    logarithm: Tensor = torch.linalg.slogdet(jacobian.detach()).logabsdet
    return logarithm


def coordinate_log_volume(coordinates: InternalCoordinates, q: Tensor) -> Tensor:
    """`log_volume` of the positions as functions of 3 shifts, 3 rotations and all internal coordinates."""

    def positions(everything: Tensor) -> Tensor:
        shift, axis, q = everything.split([3, 3, coordinates.n_coordinates])
        x, _ = coordinates.inverse(q)
        # A rotation to first order, which is enough for its derivatives at zero.
        moved: Tensor = x + torch.linalg.cross(axis.expand_as(x), x) + shift
        return moved.flatten()

    return log_volume(positions, torch.cat((q.new_zeros(6), q)))


def chiral_centres(chirality: Chirality) -> str:
    """The number of chiral centres, as a sentence."""
    centres = len(chirality.centres)
    return f"the molecule has {centres} chiral centre{'' if centres == 1 else 's'}"


def check_molecule(
    system: MolecularSystem,
    frames: int = 10_000,
    seed: int = 0,
    progress: Progress = silent,
    *,
    compiled: bool = False,
) -> list[Check]:
    """Check energies, forces and coordinates of random frames of a molecule.

    The frames are copies of structures from a short hot simulation, shaken and rotated at random, with
    positions that float32 holds exactly.

    Args:
        system: The molecule.
        frames: Frames for energies and forces; coordinates get ten times as many.
        seed: Seed of all random numbers.
        progress: Called with the progress.
        compiled: Whether to check the compiled torch force field too, which takes most of a minute.

    Raises:
        ValueError: if the molecule has no internal coordinates, or flies apart in the simulation.
    """
    check_count("frames", frames, 1)
    coordinates, chirality = internal_coordinates(system), chirality_of(system)
    with force_field(system, evaluations=0) as energy:
        place = energy.platform if isinstance(energy, OpenMMEnergy) else "cpu"
        engine = make_engine(engine_of(system), system, place)
        structures = _hot_structures(engine, system, seed, progress)
        sample = next(_shaken(structures, frames, seed))
        if isinstance(energy, OpenMMEnergy):
            shaken = _shaken(structures, frames, seed, "energies and forces", progress)
            reference = _Reference(system)
            energies = _check_force_field(system, energy, reference, shaken, compiled)
            forces = reference(sample)[1]
        else:
            sample = sample[:SLOPES]
            energies, forces = _check_energy(energy, sample.double(), seed)
    returned_limit = RETURNED_FORCE_LIMIT if system.energy is None else SLOPE_LIMIT
    shaken = _shaken(structures, ROUND_TRIPS * frames, seed + 1, "coordinates", progress)
    *round_trips, handedness = _check_round_trips(coordinates, chirality, shaken)
    zmatrix = audit(coordinates.zmatrix, sample, system.bonds)
    return [
        *energies,
        *round_trips,
        _check_volume(coordinates, sample.double()),
        _check_returned_forces(coordinates, forces, sample.double(), returned_limit),
        handedness,
        Check("problems of the z-matrix", len(zmatrix.problems), None, "", str(zmatrix)),
    ]


def _check_force_field(
    system: MolecularSystem,
    energy: OpenMMEnergy,
    reference: _Reference,
    frames: Iterable[Tensor],
    compiled: bool,
) -> list[Check]:
    """Energies and forces of the force field by all programs, against the reference."""
    candidates, missing = _candidates(system, energy, compiled)
    for x in frames:
        u, f = reference(x)
        for candidate in candidates:
            candidate.compare(x, u, f)
    found = [check for candidate in candidates for check in candidate.checks(system.n_atoms, reference.note)]
    return [*found, *missing]


def _check_energy(energy: MolecularEnergy, x: Tensor, seed: int) -> tuple[list[Check], Tensor]:
    r"""Any energy, and its forces at ``x``: they must be its slopes, and rotations must not change it.

    A slope along a random direction is $(8 (u_1 - u_{-1}) - (u_2 - u_{-2})) / 12h$, of fourth order in $h$.
    """
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    direction = direction / direction.flatten(1).norm(dim=1)[:, None, None]
    u, force = energy.energy_and_force(x)
    moved = {n: energy.energy_and_force(x + n * DIFFERENCE * direction)[0] for n in (-2, -1, 1, 2)}
    slope = (8 * (moved[1] - moved[-1]) - (moved[2] - moved[-2])) / (12 * DIFFERENCE)
    error = (slope + (force * direction).sum((1, 2))).abs() / force.flatten(1).norm(dim=1)
    turned = energy.energy_and_force(x[..., [1, 2, 0]])[0]
    note = energy.failure or ""
    checks = [
        Check("forces against energies", error.max().item(), SLOPE_LIMIT, "of the force", note),
        Check("energy after a rotation", (turned - u).abs().max().item(), ROTATION_LIMIT, "kT"),
    ]
    return checks, force


def _hot_structures(engine: Engine, system: MolecularSystem, seed: int, progress: Progress) -> Tensor:
    """Structures (structures, atoms, 3) along a Langevin run that starts at the minimum of the energy."""
    random = np.random.default_rng(seed)
    engine.seed(int(random.integers(1, 2**31)))
    temperature = np.array([HEAT * system.temperature])
    x, v = system.positions[None], engine.thermal_velocities(temperature, random)
    found = []
    for _ in chunks("simulation", STRUCTURES, 1, progress):
        try:
            now = engine.advance(x, v, temperature, STEPS)
        except FloatingPointError as error:
            raise ValueError(
                f"{system.name} flew apart in a short run at {temperature[0]:g} K ({error}); check its "
                "structure and its energy, or lower the temperature."
            ) from None
        x, v = now.positions, now.velocities
        found.append(x[0])
    return torch.from_numpy(np.array(found))


def _shaken(
    structures: Tensor, n: int, seed: int, doing: str = "", progress: Progress = silent
) -> Iterator[Tensor]:
    """Copies of structures in turn, shaken and rotated at random, float32, in chunks (frames, atoms, 3)."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=structures.dtype)

    for rows in chunks(doing, n, max(LEAST_CHUNK, ATOMS_AT_ONCE // structures.shape[1]), progress):
        x = structures[torch.arange(rows.start, rows.stop) % len(structures)]
        turn, _ = torch.linalg.qr(noise(len(x), 3, 3))
        turn = turn * torch.linalg.det(turn).sign()[:, None, None]
        yield ((x + NOISE * noise(*x.shape)) @ turn).float()


class _Reference:
    """Energies and forces by OpenMM in double precision, one frame at a time."""

    def __init__(self, system: MolecularSystem) -> None:
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


@dataclass
class _Candidate:
    """An energy to check, called with tensors of a dtype, and its largest errors so far."""

    name: str
    energy: MolecularEnergy
    dtype: torch.dtype
    double: bool
    """Whether it computes in float64."""
    energy_error: Worst = field(default_factory=Worst)
    force_error: Worst = field(default_factory=Worst)

    def compare(self, x: Tensor, u: Tensor, f: Tensor) -> None:
        """Compare with the true energies and forces of more frames."""
        its_u, its_f = self.energy.energy_and_force(x.to(self.dtype))
        self.energy_error.add((its_u.double() - u).abs())
        self.force_error.add(_force_errors(its_f, f, relative=not self.double))

    def checks(self, n_atoms: int, note: str) -> list[Check]:
        """The errors, with the limits of the precision."""
        limits = SINGLE_ENERGY_LIMIT * n_atoms, SINGLE_FORCE_LIMIT, "of max"
        energy_limit, force_limit, unit = (ENERGY_LIMIT, FORCE_LIMIT, "kT/nm") if self.double else limits
        return [
            Check(f"energy, {self.name}", self.energy_error.value, energy_limit, "kT", note),
            Check(f"force, {self.name}", self.force_error.value, force_limit, unit),
        ]


def _candidates(
    system: MolecularSystem, openmm_energy: OpenMMEnergy, compiled: bool
) -> tuple[list[_Candidate], list[Check]]:
    """The energies available for a molecule, and a note if the torch force field is not."""
    platform = openmm_energy.platform
    by_openmm = _Candidate(f"OpenMM {platform}", openmm_energy, torch.float64, platform == "Reference")
    try:
        torch_field = TorchForceField(system, compiled=False)
    except ValueError as error:
        return [by_openmm], [Check("energy, torch", None, None, "", f"not available: {error}")]
    found = [
        _Candidate("torch float64", torch_field, torch.float64, double=True),
        _Candidate("torch float32", torch_field, torch.float32, double=False),
    ]
    if compiled:
        torch_field = TorchForceField(system, compiled=True)
        found.append(_Candidate("torch float32, compiled", torch_field, torch.float32, double=False))
    return [*found, by_openmm], []


def _force_errors(force: Tensor, true: Tensor, *, relative: bool) -> Tensor:
    """Largest error on an atom in each frame (frames,), in kT/nm or relative to the largest true force."""
    error: Tensor = (force.double() - true).norm(dim=-1).amax(-1)
    return error / true.norm(dim=-1).amax(-1) if relative else error


def _check_round_trips(
    coordinates: InternalCoordinates, chirality: Chirality, frames: Iterable[Tensor]
) -> list[Check]:
    """Positions to coordinates and back, and the number of frames of the wrong handedness."""
    worst = {dtype: Worst() for dtype in ROUND_TRIP_LIMITS}
    mirrored = 0
    for x in frames:
        mirrored += int((~chirality.matches(x)).sum())
        for dtype in worst:
            back, _ = coordinates.inverse(coordinates(x.to(dtype))[0])
            worst[dtype].add(displacements(back, x))
    checks = [
        Check(f"round trip, {dtype_name(dtype)}", worst[dtype].value, limit, "nm")
        for dtype, limit in ROUND_TRIP_LIMITS.items()
    ]
    return [*checks, Check("frames of other handedness", mirrored, None, "", chiral_centres(chirality))]


def _check_volume(coordinates: InternalCoordinates, x: Tensor) -> Check:
    """Log-determinants of both directions against the Jacobian of all coordinates."""
    q, ladj = coordinates(x[:DETERMINANTS])
    oracle = torch.stack([coordinate_log_volume(coordinates, frame) for frame in q])
    errors = torch.stack([ladj + oracle, coordinates.inverse(q)[1] - oracle])
    return Check("log-determinant", errors.abs().max().item(), VOLUME_LIMIT)


def _check_returned_forces(coordinates: InternalCoordinates, force: Tensor, x: Tensor, limit: float) -> Check:
    """Forces converted to internal coordinates and back to the atoms."""
    back = coordinates.cartesian_force(x, coordinates.internal_force(x, force))
    error = _force_errors(back, force, relative=True).max().item()
    return Check("forces there and back", error, limit, "of max")
