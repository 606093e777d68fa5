"""Densities, energies, forces and torsions of each frame: the one table behind all numbers and pictures.

One pass over data and one over samples fill it. Positions are processed in pieces; the table keeps a few
numbers per frame and, for pictures, the structures of some thousand evenly spaced frames. Densities and
forces of the flow are computed in the dtype of the generator; columns are float64.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from knotflow.analysis.distances import force_error
from knotflow.energies.energy import MolecularEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import Flow, like
from knotflow.molecules.backbone import backbone_torsions
from knotflow.molecules.conformation import ConformationAngle, conformation_angles
from knotflow.molecules.coordinates import labels_of
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.ranks import OneByOne, Team, piece_seed
from knotflow.resources import check_memory
from knotflow.statistics.estimates import Estimate, Floats, Rows, blocks, spread
from knotflow.storage import trajectory
from knotflow.storage.intake import Intake
from knotflow.storage.split import Bools, held_out
from knotflow.transforms.domains import Limits

Singles = NDArray[np.float32]

ATOMS_AT_ONCE: Final = 40_000
"""Atoms in a piece, which bounds the memory: 1,800 frames of alanine dipeptide."""
LEAST_PIECE: Final = 64
FRAMES_WITH_FORCES: Final = 20_000
"""About this many evenly spaced frames of longer data enter the error of forces."""
STRUCTURES: Final = 10_000
"""At most this many evenly spaced structures of data, and of samples, are kept for pictures."""
ATOMS_KEPT: Final = 2_000_000
"""Atoms of all kept structures, some 100 MB: of molecules with more than 200 atoms fewer are kept."""
FORCES: Final = 1_000
"""Largest number of structures whose forces are shown."""
COMPARED: Final = 32
"""Frames of the data whose energies are recomputed, to verify that the force field is the same."""
SAME_ENERGY: Final = (0.1, 1e-3)
"""Largest median difference with the same force field: in kT, and in kT per atom."""
LABELLED: Final = 100
"""Samples that show in which order a model labels equivalent hydrogens."""


@dataclass
class Clock:
    """Seconds spent on each kind of work."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, work: str) -> Iterator[None]:
        """Add the time spent in the ``with`` block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add({work: time.perf_counter() - began})

    def add(self, seconds: Mapping[str, float], ranks: int = 1) -> None:
        """Add times that so many processes have spent side by side."""
        for work, spent in seconds.items():
            self.seconds[work] = self.seconds.get(work, 0.0) + spent / ranks


@dataclass(frozen=True, eq=False)
class FrameTable:
    """Columns with a row for each frame of data or samples, and the structures of some rows."""

    log_prob: Floats
    """Log-density of the flow, rotations and translations integrated out; -inf outside its intervals."""
    paper_log_prob: Floats
    """The same in the paper's measure."""
    energy: Floats
    """Reduced, in kT."""
    handed: Bools
    """Whether all stereocentres have the handedness of the molecule."""
    force_error: Floats
    """Mean squared difference of the forces of flow and force field, (kT/nm)²; NaN where not computed."""
    round_trip: Floats
    """For samples: log-density of the positions minus that of the draw; NaN where not computed."""
    replica: NDArray[np.int32]
    """For data: number of the independent simulation."""
    torsions: dict[str, Floats]
    """(phi, psi) of every residue that has both, in rad, shape ``(n, 2)``."""
    angles: dict[str, Floats] = field(default_factory=dict)
    """Angles that tell conformations apart, in rad, shape ``(n,)``; by name (`ConformationAngle`)."""
    kept: Rows = field(default_factory=lambda: np.empty(0, np.intp))
    """Numbers of the rows whose structures are kept: the following fields have a row for each of them."""
    positions: Singles = field(default_factory=lambda: np.empty((0, 0, 3), np.float32))
    """In nm, shape ``(k, atoms, 3)``."""
    coordinates: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """Internal coordinates as the flow takes them, in nm and rad, shape ``(k, d)``."""
    true_force: Singles = field(default_factory=lambda: np.empty((0, 0, 3), np.float32))
    """Forces of the force field in kT/nm, shape ``(k, atoms, 3)``."""
    flow_force: Singles = field(default_factory=lambda: np.empty((0, 0, 3), np.float32))
    """Forces of the flow; NaN where it has no density."""

    def __len__(self) -> int:
        return len(self.energy)

    def of_rows(self, rows: Rows | slice) -> FrameTable:
        """The columns of some rows, without structures."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        named: dict[str, Any] = {
            name: {key: column[rows] for key, column in getattr(self, name).items()} for name in BY_NAME
        }
        return FrameTable(**columns, **named)

    def pictured(self) -> FrameTable:
        """Only the rows that have structures."""
        structures = {name: getattr(self, name) for name in STRUCTURE_COLUMNS}
        return replace(self.of_rows(self.kept), **{**structures, "kept": np.arange(len(self.kept))})

    @cached_property
    def force_rows(self) -> Rows:
        """At most `FORCES` evenly spaced structures, as numbers of rows of `kept`, with finite forces."""
        known = np.isfinite(self.log_prob[self.kept]) & np.isfinite(self.true_force).all((1, 2))
        rows = np.flatnonzero(known)[spaced(int(known.sum()), FORCES)]
        return rows[np.isfinite(self.flow_force[rows]).all((1, 2))]

    @cached_property
    def forces(self) -> tuple[Floats, Floats]:
        """Forces of force field and flow at `force_rows`, in kT/nm, both of shape ``(m, atoms, 3)``."""
        rows = self.force_rows
        return self.true_force[rows].astype(np.float64), self.flow_force[rows].astype(np.float64)

    @property
    def unexplained(self) -> Estimate:
        r"""Share of `forces` that the flow has not learned, $\sum |f - f_0|^2 / \sum |f_0|^2$.

        The error is over blocks of replicas.
        """
        true, flow = self.forces
        wrong, square = ((flow - true) ** 2).sum((1, 2)), (true**2).sum((1, 2))
        total = float(square.sum())
        if not total > 0:
            return Estimate(math.nan)
        share = float(wrong.sum()) / total
        block = blocks(self.replica[self.kept[self.force_rows]])
        return Estimate(share, spread((wrong - share * square) / total, block))


STRUCTURE_COLUMNS: Final = ("kept", "positions", "coordinates", "true_force", "flow_force")
BY_NAME: Final = ("torsions", "angles")
"""Columns in dictionaries."""
COLUMNS: Final = tuple(
    column.name for column in fields(FrameTable) if column.name not in (*STRUCTURE_COLUMNS, *BY_NAME)
)


def piece_size(n_atoms: int) -> int:
    """Number of frames to process at a time."""
    return max(LEAST_PIECE, ATOMS_AT_ONCE // n_atoms)


def spaced(n: int, most: int) -> Rows:
    """Numbers of at most ``most`` of n rows, evenly spaced."""
    return np.arange(n) if n <= most else np.arange(most) * n // most


def rows_to_judge_by(split: Mapping[str, Any] | None, path: str | Path, n_frames: int) -> tuple[Bools, str]:
    """The rows of a trajectory that a model is judged by, and what they are called.

    These are the held-out rows (``"validation"``) if the model was trained on this file, else all rows
    (``"all"``): see `knotflow.storage.split.held_out`.
    """
    held = held_out(split, path, n_frames)
    return (np.ones(n_frames, dtype=bool), "all") if held is None else (held, "validation")


def only_kept(selected: Bools, n_atoms: int) -> Bools:
    """The selected rows whose structures `observe_data` keeps."""
    mask, rows = np.zeros_like(selected), np.flatnonzero(selected)
    mask[rows[_kept(len(rows), n_atoms)]] = True
    return mask


def check_same_molecule(model: MolecularSystem, data: MolecularSystem) -> None:
    """Refuse data of another molecule, or at another temperature.

    Raises:
        ValueError: if atoms, bonds or temperature differ.
    """
    names = [
        [f"{a.residue.name} {a.name} ({a.element.symbol})" for a in s.topology.atoms] for s in (model, data)
    ]
    if model.n_atoms != data.n_atoms:
        problem = (
            f"the model is of {model.name} with {model.n_atoms} atoms, "
            f"the data of {data.name} with {data.n_atoms}"
        )
    elif names[0] != names[1]:
        number = next(i for i, (mine, other) in enumerate(zip(*names, strict=True)) if mine != other)
        mine, other = names[0][number], names[1][number]
        problem = f"atom {number} of the model ({model.name}) is {mine}, of the data ({data.name}) {other}"
    elif model.bonds != data.bonds:
        problem = f"model ({model.name}) and data ({data.name}) have the same atoms but different bonds"
    elif abs(model.temperature - data.temperature) > 1e-6:
        problem = f"the model is at {model.temperature:g} K, the data are at {data.temperature:g} K"
    else:
        return
    raise ValueError(
        f"{problem}; use data of the model's molecule at its temperature, with atoms in the same order."
    )


@torch.no_grad()
def intake_for(generator: BoltzmannGenerator, path: str | Path) -> Intake:
    """Brings frames of a file to the handedness of a model's structure, and to the model's own labels.

    A model labels equivalent hydrogens as the data did that it was trained on. That is the order of its
    structure, unless an earlier version trained it on data in another order; its samples show that.
    """
    system = MolecularSystem.parse(generator.molecule)
    drawn = generator.sample(LABELLED, generator=torch.Generator(like(generator).device).manual_seed(0))
    return Intake(system, [path], labels=labels_of(system).as_in(drawn), reference="the model")


@torch.no_grad()
def observe_data(
    generator: BoltzmannGenerator,
    path: str | Path,
    energy: MolecularEnergy,
    selected: Bools,
    progress: Progress = silent,
    clock: Clock | None = None,
    intake: Intake | None = None,
    angles: Sequence[ConformationAngle] | None = None,
) -> FrameTable:
    """The table of the selected rows of a trajectory, without mirror images, labelled as the model is.

    Args:
        generator: The model.
        path: The file.
        energy: The force field.
        selected: The rows, a mask.
        progress: Called with the progress.
        clock: Counts the seconds.
        intake: Counts frames that are set aside or labelled anew; None: the one of `intake_for`.
        angles: The angles to measure; None: those of `conformation_angles`.

    Raises:
        ValueError: if the data are of another molecule, temperature, force field or handedness, or nothing is
            selected.
        OSError: if the file is missing or damaged.
    """
    system, own, clock = MolecularSystem.parse(generator.molecule), like(generator), clock or Clock()
    theirs = trajectory.open_info(path).system
    check_same_molecule(system, theirs)
    intake = intake or intake_for(generator, path)
    shift = theirs.zero_kj - system.zero_kj
    angles = conformation_angles(system) if angles is None else angles
    total, done, read = int(selected.sum()), 0, 0
    if total == 0:
        raise ValueError(f"{path} holds no frames yet; evaluate when it has some.")
    # Rows are chosen by their number among all selected rows, mirror images included.
    measured, kept, parts = np.arange(total) % _stride(total) == 0, _kept(total, generator.n_atoms), []

    def pieces() -> Iterator[_DataPiece]:
        nonlocal done, read
        for found in _pieces(path, selected, piece_size(generator.n_atoms)):
            progress("data: densities and forces", read, total)
            frames, usable = intake(found)
            rows = read + np.flatnonzero(usable)
            read += len(found)
            if not len(frames):
                continue
            u = (frames.energies + shift) / system.kT
            if done == 0:
                with clock("energies"):
                    _check_energies(
                        energy, torch.from_numpy(frames.positions[:COMPARED]).to(own), u[:COMPARED]
                    )
            yield _DataPiece(frames, u, measured[rows], kept[rows], done)
            done += len(frames)

    with Team("knotflow.analysis.frame_table:observer", (generator, None, angles)) as team:
        for table, seconds in team.stream(pieces()):
            parts.append(table)
            clock.add(seconds, team.size)
    progress("data: densities and forces", total, total)
    intake.conclude()
    return _joined(parts)


def check_samples(n: int) -> None:
    """Refuse more samples than memory can hold the table of, at least ten numbers of each."""
    check_memory(f"{n:,} samples", 80 * n)


@torch.no_grad()
def observe_samples(
    generator: BoltzmannGenerator,
    energy: MolecularEnergy,
    n: int,
    seed: int,
    progress: Progress = silent,
    clock: Clock | None = None,
    angles: Sequence[ConformationAngle] | None = None,
) -> FrameTable:
    """Draw samples and compute their table, with some angles or those of `conformation_angles`."""
    system, clock = MolecularSystem.parse(generator.molecule), clock or Clock()
    angles = conformation_angles(system) if angles is None else angles
    size, kept, parts, done = piece_size(generator.n_atoms), _kept(n, generator.n_atoms), [], 0
    pieces = [
        _SamplePiece(piece_seed(seed, number), kept[first : first + size], first)
        for number, first in enumerate(range(0, n, size))
    ]
    progress("samples: positions, energies and forces", 0, n)
    with Team("knotflow.analysis.frame_table:observer", (generator, energy, angles)) as team:
        for table, seconds in team.stream(pieces):
            parts.append(table)
            clock.add(seconds, team.size)
            done += len(table)
            progress("samples: positions, energies and forces", done, n)
    return _joined(parts)


class _DataPiece(NamedTuple):
    """Frames to observe."""

    frames: trajectory.Frames
    energy: Floats
    """Reduced energies."""
    measured: Bools
    """Which of them enter the error of forces."""
    kept: Bools
    """Which structures are kept."""
    first: int
    """Row of the first frame in the whole table."""


class _SamplePiece(NamedTuple):
    """Samples to draw and observe."""

    seed: int
    kept: Bools
    """Which structures are kept; its length is the number of samples."""
    first: int


Observed = tuple[FrameTable, dict[str, float]]
"""The table of a piece, and the seconds that each kind of work took."""


def observer(
    setup: tuple[BoltzmannGenerator, MolecularEnergy | None, Sequence[ConformationAngle]],
) -> OneByOne:
    """Target of a `Team`: tables of pieces of data or, with an energy, of samples."""
    generator, energy, angles = setup
    system = MolecularSystem.parse(generator.molecule)

    @torch.no_grad()
    def work(piece: _DataPiece | _SamplePiece) -> Observed:
        if isinstance(piece, _DataPiece):
            return _observe_data(generator, system, angles, piece)
        if energy is None:
            raise ValueError("samples need an energy.")
        return _observe_samples(generator, system, energy, angles, piece)

    return OneByOne(work)


def _observe_data(
    generator: BoltzmannGenerator,
    system: MolecularSystem,
    angles: Sequence[ConformationAngle],
    piece: _DataPiece,
) -> Observed:
    clock, frames = Clock(), piece.frames
    x = torch.from_numpy(frames.positions).to(like(generator))
    with clock("density of the data"):
        q, log_prob, paper, held = _density(generator, x)
    with clock("forces of the flow"):
        force, _ = _flow_force(generator, x, held.cpu() & torch.from_numpy(piece.measured))
    table = _table(
        generator, system, x, q, frames.forces / system.kT, force, piece.kept, piece.first, angles,
        log_prob=log_prob,
        paper_log_prob=paper,
        energy=piece.energy,
        round_trip=np.full(len(x), np.nan),
        replica=frames.replica,
    )  # fmt: skip
    return table, clock.seconds


def _observe_samples(
    generator: BoltzmannGenerator,
    system: MolecularSystem,
    energy: MolecularEnergy,
    angles: Sequence[ConformationAngle],
    piece: _SamplePiece,
) -> Observed:
    clock = Clock()
    random = torch.Generator(like(generator).device).manual_seed(piece.seed)
    with clock("sampling"):
        x, log_prob = generator.sample_and_log_prob(len(piece.kept), generator=random)
        q, ladj = generator.internal(x)
        paper = log_prob - ladj - generator.coordinates.paper_ladj(q)
    with clock("energies"):
        u, true = energy.energy_and_force(x)
    with clock("forces of the flow"):
        force, again = _flow_force(generator, x, inside(generator.flow, q).cpu())
    table = _table(
        generator, system, x, q, _array(true), force, piece.kept, piece.first, angles,
        log_prob=log_prob,
        paper_log_prob=paper,
        energy=u,
        round_trip=again - _array(log_prob),
        replica=np.zeros(len(x), dtype=np.int32),
    )  # fmt: skip
    return table, clock.seconds


def _stride(n: int) -> int:
    """One row in this many enters the error of forces."""
    return -(-n // FRAMES_WITH_FORCES)


def _kept(n: int, n_atoms: int) -> Bools:
    """Which of n rows keep their structures: evenly spaced ones of those in the error of forces."""
    mask, measured = np.zeros(n, dtype=bool), np.arange(0, n, max(1, _stride(n)))
    mask[measured[spaced(len(measured), min(STRUCTURES, max(LEAST_PIECE, ATOMS_KEPT // n_atoms)))]] = True
    return mask


def _pieces(path: str | Path, selected: Bools, size: int) -> Iterator[trajectory.Frames]:
    """The selected rows of a file, read in pieces of at most ``size`` rows of the file."""
    for start in range(0, len(selected), size):
        wanted = selected[start : start + size]
        if wanted.any():
            first, last = np.flatnonzero(wanted)[[0, -1]] + start
            frames = trajectory.read(path, slice(int(first), int(last) + 1))
            yield frames[selected[first : last + 1]]


def _density(generator: BoltzmannGenerator, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Coordinates, log-densities in both measures (-inf where the flow has none), and where it has some."""
    q, ladj = generator.internal(x)
    held = inside(generator.flow, q)
    log_q = q.new_full(held.shape, -torch.inf)
    log_q[held] = generator.flow.log_prob(q[held])
    return q, log_q + ladj, log_q - generator.coordinates.paper_ladj(q), held


def inside(flow: Flow, q: Tensor, margin: float = 0.0) -> Tensor:
    """Which coordinates (n, d) are finite and inside the intervals of a flow, less a margin (a fraction)."""
    return Limits.of(flow.domains, q, margin=margin).hold(q)


def _flow_force(generator: BoltzmannGenerator, x: Tensor, chosen: Tensor) -> tuple[Floats, Floats]:
    """Forces and log-densities of the flow for chosen frames; NaN for the others."""
    force, log_prob = np.full(x.shape, np.nan), np.full(len(x), np.nan)
    if chosen.any():
        found = generator.log_prob_and_force(x[chosen.to(x.device)])
        log_prob[chosen.numpy()], force[chosen.numpy()] = map(_array, found)
    return force, log_prob


def _table(
    generator: BoltzmannGenerator,
    system: MolecularSystem,
    x: Tensor,
    q: Tensor,
    true_force: NDArray[np.floating[Any]],
    flow_force: Floats,
    kept: Bools,
    first: int,
    angles: Sequence[ConformationAngle],
    **columns: Any,
) -> FrameTable:
    """The table of a piece that begins with row ``first``, with the structures of some of its rows."""
    positions, rows = _array(x).astype(np.float32), np.flatnonzero(kept)
    with np.errstate(all="ignore"):  # forces of clashes may overflow
        error = force_error(flow_force, true_force)
        kept_forces = [force[rows].astype(np.float32) for force in (true_force, flow_force)]
    tensors = {name: _array(column) for name, column in columns.items() if isinstance(column, Tensor)}
    return FrameTable(
        **{**columns, **tensors},
        handed=generator.chirality.matches(x).cpu().numpy(),
        force_error=error,
        torsions=backbone_torsions(system, positions),
        angles={angle.name: angle(positions) for angle in angles},
        kept=rows + first,
        positions=positions[rows],
        coordinates=_array(q)[rows],
        true_force=kept_forces[0],
        flow_force=kept_forces[1],
    )


def _check_energies(energy: MolecularEnergy, x: Tensor, u: Floats) -> None:
    """Refuse data whose energies are not those of the force field."""
    found = _array(energy.energy_and_force(x)[0])
    gap = float(np.median(np.abs(found - u)))
    constant, each = SAME_ENERGY
    if not gap <= max(constant, each * energy.n_atoms):
        raise ValueError(
            f"the energies in the data differ by {gap:.3g} kT from those of the model's force field; "
            "evaluate a model on data made with the same force field and solvent."
        )


def _array(x: Tensor) -> Floats:
    array: Floats = x.detach().to("cpu", torch.float64).numpy()
    return array


def _joined(parts: Sequence[FrameTable]) -> FrameTable:
    names = (*COLUMNS, *STRUCTURE_COLUMNS)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in names
    }
    named: dict[str, Any] = {
        name: {
            key: np.concatenate([getattr(part, name)[key] for part in parts])
            for key in getattr(parts[0], name)
        }
        for name in BY_NAME
    }
    return FrameTable(**columns, **named)
