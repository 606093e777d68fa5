"""What a Boltzmann generator and a force field say of each frame: the numbers behind all measures.

Positions come and go in pieces; only a few numbers of each frame stay. Densities and forces of the flow are
computed in the dtype of the generator, all that is kept is float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from knotflow.analysis.distances import force_error
from knotflow.energies.energy import MolecularEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.system import MolecularSystem
from knotflow.simulation.summary import backbone_torsions
from knotflow.storage import trajectory
from knotflow.transforms.domains import Limits

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ATOMS_AT_ONCE: Final = 40_000
"""Pieces have so many atoms in all, which bounds the memory: 1,800 frames of alanine dipeptide."""
LEAST_PIECE: Final = 64
FRAMES_WITH_FORCES: Final = 20_000
"""Of longer data, evenly spaced frames, about so many, enter the error of forces."""
COMPARED: Final = 32
"""Frames of the data whose energies are computed again, to see that the force field is the same."""
SAME_ENERGY: Final = (0.1, 1e-3)
"""In kT, and kT for each atom: what their median may differ, if the force field is the same."""

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many of its parts are done, and how many there are."""


@dataclass
class Clock:
    """Seconds spent on each kind of work."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, work: str) -> Iterator[None]:
        """Add the time that the body takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[work] = self.seconds.get(work, 0.0) + time.perf_counter() - began


@dataclass(frozen=True, eq=False)
class Observed:
    """Columns with a row for each frame: of data, or of samples."""

    log_prob: Floats
    """Of the flow, rotations and translations integrated out; -inf outside of its intervals."""
    paper_log_prob: Floats
    """The same in the paper's measure."""
    energy: Floats
    """Reduced, in kT."""
    handed: Bools
    """Whether all stereocentres have the handedness of the molecule."""
    force_error: Floats
    """Mean squared difference of the forces of flow and force field, (kT/nm)²; NaN where not computed."""
    round_trip: Floats
    """Of samples: log-density of the positions minus the one they were drawn with; NaN where not computed."""
    replica: NDArray[np.int32]
    """Of data: which of the independent simulations."""
    torsions: dict[str, Floats]
    """(phi, psi) of every residue that has both, in rad, shape ``(n, 2)``."""

    def __len__(self) -> int:
        return len(self.energy)


def piece_size(n_atoms: int) -> int:
    """Frames to take at once."""
    return max(LEAST_PIECE, ATOMS_AT_ONCE // n_atoms)


def held_out(split: Mapping[str, Any] | None, path: str | Path, n_frames: int) -> Bools | None:
    """Which rows of a file training did not see: True for those held back, shape ``(n_frames,)``.

    Args:
        split: The note ``split`` of a model: ``file``, ``frames``, and ``validation`` with pairs of first
            row and row after the last.
        path: The file.
        n_frames: How many frames it has.

    Returns:
        None if the model was not trained on a file of this name and length, or nothing was held back.

    Raises:
        ValueError: if the split is damaged.
    """
    if not split or split.get("file") != Path(path).name or split.get("frames") != n_frames:
        return None
    mask = np.zeros(n_frames, dtype=bool)
    try:
        for first, last in split["validation"]:
            if not 0 <= first <= last <= n_frames:
                raise ValueError
            mask[first:last] = True
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"the split noted in the model is damaged: expected rows of {n_frames} frames as pairs [first, "
            f"after last], got {split.get('validation')!r}; evaluate on all frames."
        ) from None
    return mask if mask.any() else None


def check_same_molecule(model: MolecularSystem, data: MolecularSystem) -> None:
    """Refuse data of another molecule, or at another temperature.

    Raises:
        ValueError: if atoms, bonds or temperature differ.
    """
    if model.n_atoms != data.n_atoms:
        raise ValueError(
            f"the model is of {model.name} with {model.n_atoms} atoms, the data of {data.name} with "
            f"{data.n_atoms}; evaluate a model on data of its own molecule."
        )
    names = [
        [f"{a.residue.name} {a.name} ({a.element.symbol})" for a in s.topology.atoms] for s in (model, data)
    ]
    for number, (mine, other) in enumerate(zip(*names, strict=True)):
        if mine != other:
            raise ValueError(
                f"atom {number} of the model ({model.name}) is {mine}, of the data ({data.name}) {other}; "
                "evaluate a model on data of its own molecule, atoms in the same order."
            )
    if model.bonds != data.bonds:
        raise ValueError(
            f"model ({model.name}) and data ({data.name}) have the same atoms with other bonds; evaluate a "
            "model on data of its own molecule."
        )
    if abs(model.temperature - data.temperature) > 1e-6:
        raise ValueError(
            f"the model is at {model.temperature:g} K, the data are at {data.temperature:g} K; evaluate a "
            "model on data at its own temperature."
        )


@torch.no_grad()
def observe_data(
    generator: BoltzmannGenerator,
    path: str | Path,
    energy: MolecularEnergy,
    selected: Bools,
    progress: Progress,
    clock: Clock,
) -> Observed:
    """Density, force and torsions of the selected rows of a trajectory.

    Raises:
        ValueError: if the energies in the file are not those of the force field.
    """
    system, own = MolecularSystem.parse(generator.molecule), like(generator)
    total, done = int(selected.sum()), 0
    stride = -(-total // FRAMES_WITH_FORCES)
    columns: list[Observed] = []
    for frames in _pieces(path, selected, piece_size(generator.n_atoms)):
        progress("data: densities and forces", done, total)
        x, u = torch.from_numpy(frames.positions).to(own), frames.energies / system.kT
        if done == 0:
            with clock("energies"):
                _check_energies(energy, x[:COMPARED], u[:COMPARED])
        with clock("density of the data"):
            log_prob, paper, inside = _density(generator, x)
        with clock("forces of the flow"):
            chosen = torch.zeros(len(x), dtype=torch.bool)
            chosen[-done % stride :: stride] = True
            error, _ = _force_error(generator, x, inside.cpu() & chosen, frames.forces / system.kT)
        columns.append(
            Observed(
                log_prob=_array(log_prob),
                paper_log_prob=_array(paper),
                energy=u,
                handed=generator.chirality.matches(x).cpu().numpy(),
                force_error=error,
                round_trip=np.full(len(x), np.nan),
                replica=frames.replica,
                torsions=_torsions(system, frames.positions),
            )
        )
        done += len(x)
    progress("data: densities and forces", done, total)
    return _joined(columns)


@torch.no_grad()
def observe_samples(
    generator: BoltzmannGenerator,
    energy: MolecularEnergy,
    n: int,
    seed: int,
    progress: Progress,
    clock: Clock,
) -> Observed:
    """Draw samples, with their densities, energies, forces and torsions."""
    system, own = MolecularSystem.parse(generator.molecule), like(generator)
    random = torch.Generator(own.device).manual_seed(seed)
    size = piece_size(generator.n_atoms)
    columns: list[Observed] = []
    for done in range(0, n, size):
        progress("samples: positions, energies and forces", done, n)
        with clock("sampling"):
            x, log_prob = generator.sample_and_log_prob(min(size, n - done), generator=random)
            q, ladj = generator.internal(x)
            paper = log_prob - ladj - generator.coordinates.paper_ladj(q)
        with clock("energies"):
            u, force = energy.energy_and_force(x)
        with clock("forces of the flow"):
            error, again = _force_error(generator, x, _inside(generator, q).cpu(), _array(force))
        positions = _array(x).astype(np.float32)
        columns.append(
            Observed(
                log_prob=_array(log_prob),
                paper_log_prob=_array(paper),
                energy=_array(u),
                handed=generator.chirality.matches(x).cpu().numpy(),
                force_error=error,
                round_trip=again - _array(log_prob),
                replica=np.zeros(len(x), dtype=np.int32),
                torsions=_torsions(system, positions),
            )
        )
    progress("samples: positions, energies and forces", n, n)
    return _joined(columns)


def _pieces(path: str | Path, selected: Bools, size: int) -> Iterator[trajectory.Frames]:
    """The selected rows of a file, read in pieces of at most ``size`` rows of the file."""
    for start in range(0, len(selected), size):
        wanted = selected[start : start + size]
        if wanted.any():
            first, last = np.flatnonzero(wanted)[[0, -1]] + start
            frames = trajectory.read(path, slice(int(first), int(last) + 1))
            yield frames[selected[first : last + 1]]


def _density(generator: BoltzmannGenerator, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-densities of positions in both measures, -inf where the flow has none, and where it has some."""
    q, ladj = generator.internal(x)
    inside = _inside(generator, q)
    log_q = q.new_full(inside.shape, -torch.inf)
    log_q[inside] = generator.flow.log_prob(q[inside])
    return log_q + ladj, log_q - generator.coordinates.paper_ladj(q), inside


def _inside(generator: BoltzmannGenerator, q: Tensor) -> Tensor:
    """Which coordinates (n, d) are finite and in the intervals of the flow, where it takes them."""
    return Limits.of(generator.flow.domains, q).hold(q)


def _force_error(
    generator: BoltzmannGenerator, x: Tensor, chosen: Tensor, target: NDArray[np.floating[Any]]
) -> tuple[Floats, Floats]:
    """Squared error of the flow's forces, and its log-densities, for chosen frames; NaN for the others."""
    error, log_prob = np.full(len(x), np.nan), np.full(len(x), np.nan)
    if chosen.any():
        rows = chosen.numpy()
        density, force = generator.log_prob_and_force(x[chosen.to(x.device)])
        log_prob[rows] = _array(density)
        with np.errstate(all="ignore"):
            error[rows] = force_error(_array(force), target[rows])
    return error, log_prob


def _check_energies(energy: MolecularEnergy, x: Tensor, u: Floats) -> None:
    found = _array(energy.energy_and_force(x)[0])
    gap = float(np.median(np.abs(found - u)))
    constant, each = SAME_ENERGY
    if not gap <= max(constant, each * energy.n_atoms):
        raise ValueError(
            f"the energies in the data differ by {gap:.3g} kT from those of the model's force field; "
            "evaluate a model on data made with the same force field and solvent."
        )


def _torsions(system: MolecularSystem, positions: NDArray[np.float32]) -> dict[str, Floats]:
    return {t.residue: np.stack((t.phi, t.psi), -1) for t in backbone_torsions(system, positions)}


def like(generator: BoltzmannGenerator) -> Tensor:
    """A tensor with the dtype and on the device of the generator."""
    return next(generator.parameters(), torch.empty(0))


def _array(x: Tensor) -> Floats:
    array: Floats = x.detach().to("cpu", torch.float64).numpy()
    return array


def _joined(parts: Sequence[Observed]) -> Observed:
    def column(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    names = ("log_prob", "paper_log_prob", "energy", "handed", "force_error", "round_trip", "replica")
    torsions = {key: np.concatenate([part.torsions[key] for part in parts]) for key in parts[0].torsions}
    return Observed(**{name: column(name) for name in names}, torsions=torsions)
