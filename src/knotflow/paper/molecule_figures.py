"""Figures 3 and 7 to 9: forces, torsions and energies of a flow, on frames of data and on its samples."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis import portrait
from knotflow.analysis.frame_table import Progress
from knotflow.energies import OpenMMEnergy
from knotflow.files import write_atomically
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import fingerprint, notes
from knotflow.storage import trajectory

Floats = NDArray[np.float64]

SEED: Final = 0
"""Of the samples."""


@dataclass(frozen=True, eq=False)
class Look:
    """What pictures show of frames or samples."""

    torsions: Floats
    """(phi, psi) in rad, shape (n, 2)."""
    energy: Floats
    """Of the force field in kT, shape (n,)."""
    flow_energy: Floats
    """-log p of the flow in nats, shape (n,)."""
    true_force: Floats
    """Of the force field in kT/nm, shape (m, atoms, 3), for some of the frames."""
    flow_force: Floats
    """Of the flow, for the same frames."""

    @classmethod
    def of(cls, seen: portrait.Portrait) -> Self:
        """What is needed of a portrait."""
        torsions = next(iter(seen.seen.torsions.values()))
        return cls(torsions, seen.seen.energy, -seen.seen.log_prob, seen.true_force, seen.flow_force)

    @property
    def force_error(self) -> float:
        """Mean squared error of the forces over frames, atoms and directions, (kT/nm)²."""
        return float(np.mean(self._errors())) if len(self.true_force) else math.nan

    @property
    def median_force_error(self) -> float:
        """Median over frames of the mean squared error of the forces, which clashes do not change."""
        return float(np.median(self._errors())) if len(self.true_force) else math.nan

    def _errors(self) -> Floats:
        errors: Floats = ((self.flow_force - self.true_force) ** 2).mean((1, 2))
        return errors

    @property
    def shifted(self) -> Floats:
        """The flow's energy with the minimum of the force field's, as in the paper's figures; in kT."""
        known = np.isfinite(self.flow_energy) & np.isfinite(self.energy)
        if not known.any():
            return self.flow_energy
        shift: float = self.energy[known].min() - self.flow_energy[known].min()
        return self.flow_energy + shift


@dataclass(frozen=True, eq=False)
class Looks:
    """Both rows of a figure."""

    data: Look
    """Frames that training did not see."""
    samples: Look


def run(
    model: Path,
    data: Path,
    file: Path,
    samples: int,
    *,
    progress: Progress | None = None,
) -> Looks:
    """Read the numbers behind the pictures of a model, or compute them and keep them in a file.

    Args:
        model: The model file.
        data: The trajectory that it was trained on.
        file: Where the numbers are kept (.npz).
        samples: How many to draw.
        progress: Told how far it is.
    """
    info = trajectory.open_info(data)
    about = json.dumps([fingerprint(model), data.name, info.n_frames, samples, SEED])
    kept = load(file, about)
    if kept is not None:
        return kept
    generator, split = BoltzmannGenerator.load(model), notes(model).get("split")
    with OpenMMEnergy(info.system) as energy:
        shown = portrait.of_data(generator, data, energy, split=split, progress=progress)
        drawn = portrait.of_samples(generator, energy, samples, SEED, progress=progress)
    found = Looks(Look.of(shown), Look.of(drawn))
    save(found, file, about)
    return found


def save(looks: Looks, file: Path, about: str) -> None:
    """Write all numbers, as float32, and what they are about."""
    columns = {
        f"{side}_{field.name}": getattr(getattr(looks, side), field.name).astype(np.float32)
        for side in ("data", "samples")
        for field in fields(Look)
    }
    content = io.BytesIO()
    np.savez_compressed(content, about=np.array(about), **columns)
    write_atomically(file, content.getvalue())


def load(file: Path, about: str) -> Looks | None:
    """Read them; None if there is no file, or one about something else."""
    if not file.exists():
        return None
    with np.load(file, allow_pickle=False) as kept:
        if str(kept["about"]) != about:
            return None
        sides = [
            Look(**{field.name: kept[f"{side}_{field.name}"].astype(np.float64) for field in fields(Look)})
            for side in ("data", "samples")
        ]
    return Looks(*sides)
