"""The record of a dynamics run: energies and positions over time, in one file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from knotflow.extras import optional
from knotflow.json_values import parse_json
from knotflow.storage.arrays import read_arrays, write_arrays

if TYPE_CHECKING:
    import mdtraj

    from knotflow.molecules.system import MolecularSystem

FORMAT: Final = "knotflow-dynamics-1"


@dataclass(frozen=True, eq=False)
class Record:
    """Replicas over time; values after a replica has stopped are NaN."""

    time: NDArray[np.float64]
    """Time in ps, (records,); the first is the start."""
    potential: NDArray[np.float64]
    """Potential energy in kT, (records, replicas)."""
    kinetic: NDArray[np.float64]
    """Kinetic energy in kT, (records, replicas)."""
    positions: NDArray[np.float32]
    """Positions in nm, (records, replicas, atoms, 3)."""
    status: NDArray[np.int64]
    """`knotflow.dynamics.Status` at the end, (replicas,)."""
    stopped: NDArray[np.int64]
    """The step that failed, (replicas,); -1 if none did."""
    production: int
    """First record without a thermostat."""
    degrees_of_freedom: int
    about: dict[str, Any] = field(default_factory=dict)
    """Configuration, molecule, its temperature in K, number of computed steps and the seconds they took:
    anything JSON can hold."""

    @property
    def total(self) -> NDArray[np.float64]:
        """Total energy in kT, (records, replicas)."""
        return self.potential + self.kinetic

    @property
    def temperature(self) -> NDArray[np.float64]:
        """Kinetic temperature as a share of that of the energy, (records, replicas); 1 in equilibrium."""
        return 2 / self.degrees_of_freedom * self.kinetic

    @property
    def milliseconds_per_step(self) -> float:
        """Wall time of a step of all replicas, without compilation; NaN if unknown."""
        steps = self.about.get("steps", 0)
        return 1000 * self.about["seconds"] / steps if steps else math.nan

    def trajectory(self, system: MolecularSystem) -> mdtraj.Trajectory:
        """All replicas for MDTraj, one after another, each until it stopped; times restart with each."""
        return to_mdtraj(self.positions, system, self.time)

    def save(self, path: str | Path) -> None:
        """Write a compressed ``.npz`` file, which NumPy can read as well."""
        arrays = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self) if f.name != "about"}
        write_noted(Path(path), arrays, self.about, compressed=True)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            OSError: if the file does not exist.
            ValueError: if it is another kind of file, or damaged.
        """
        arrays, about = read_noted(Path(path))
        try:
            for name in ("production", "degrees_of_freedom"):
                arrays[name] = int(arrays[name])
            record = cls(**arrays, about=about)
            rows, replicas = record.potential.shape
            if record.time.shape != (rows,) or record.kinetic.shape != (rows, replicas):
                raise ValueError("its arrays do not fit together")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove it.") from None
        return record


def to_mdtraj(
    positions: ArrayLike, system: MolecularSystem, time: ArrayLike | None = None
) -> mdtraj.Trajectory:
    """Positions as an MDTraj trajectory, to write or analyse.

    Args:
        positions: in nm, (frames, atoms, 3), or (frames, replicas, atoms, 3) as in `Record` and `Chains`.
            Replicas then follow one another. Frames that are not finite are left out.
        system: the molecule.
        time: in ps, (frames,); by default the number of the frame.

    Raises:
        ValueError: if shapes do not fit.
        ModuleNotFoundError: without MDTraj.
    """
    with optional("trajectories"):
        import mdtraj
    x = np.asarray(positions, dtype=np.float32)
    x = x[:, None] if x.ndim == 3 else x
    clock = np.arange(len(x)) if time is None else np.asarray(time)
    if x.ndim != 4 or x.shape[2:] != (system.n_atoms, 3) or clock.shape != x.shape[:1]:
        raise ValueError(
            f"positions must have shape (frames, {system.n_atoms}, 3), or one more axis for replicas, and "
            f"time (frames,), got {tuple(np.shape(positions))} and {clock.shape}."
        )
    clock = np.broadcast_to(clock[:, None], x.shape[:2])
    kept = np.isfinite(x).all((2, 3)).T
    return mdtraj.Trajectory(x.swapaxes(0, 1)[kept], system.topology, time=clock.T[kept])


def from_mdtraj(trajectory: mdtraj.Trajectory, system: MolecularSystem) -> NDArray[np.float32]:
    """Positions (frames, atoms, 3) in nm of an MDTraj trajectory.

    Raises:
        ValueError: if the atoms are not those of the molecule.
    """
    elements = [getattr(atom.element, "symbol", "?") for atom in trajectory.topology.atoms]
    if elements != system.elements:
        raise ValueError(
            f"the atoms of the trajectory are not those of {system.name}: expected "
            f"{' '.join(system.elements)}, got {' '.join(elements)}; put them in this order."
        )
    positions: NDArray[np.float32] = trajectory.xyz
    return positions


def write_noted(
    path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any], *, compressed: bool = False
) -> None:
    """Write arrays and a dictionary, completely or not at all."""
    note = np.array(json.dumps({"format": FORMAT, "about": about}))
    write_arrays(path, {"note": note, **arrays}, compressed=compressed)


def read_noted(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what `write_noted` wrote."""
    try:
        arrays = read_arrays(path)
        note = parse_json(str(arrays.pop("note")))
        if note["format"] != FORMAT:
            raise ValueError(f"its format is {note['format']}")
        about: dict[str, Any] = note["about"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a file of dynamics ({FORMAT}), or is damaged ({error}); remove it."
        ) from None
    return arrays, about
