"""Figures 3 and 7 to 9: forces, torsions and energies of a flow, on frames of data and on its samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.distances import force_error
from knotflow.analysis.evaluation import evaluation_inputs
from knotflow.analysis.frame_table import (
    COLUMNS,
    FrameTable,
    observe_data,
    observe_samples,
    only_kept,
    rows_to_judge_by,
)
from knotflow.energies import OpenMMEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.inputs import fingerprint
from knotflow.progress import Progress, silent
from knotflow.storage import trajectory
from knotflow.storage.arrays import read_arrays, write_arrays

Floats = NDArray[np.float64]

SEED: Final = 0
"""Seed of the samples."""


@dataclass(frozen=True, eq=False)
class ShownFrames:
    """Both rows of a figure."""

    data: FrameTable
    """Held-out frames."""
    samples: FrameTable

    @property
    def rows(self) -> dict[str, FrameTable]:
        """Both, by their names on the page."""
        return {"test frames": self.data, "samples": self.samples}


def frame_errors(table: FrameTable) -> Floats:
    """Mean squared errors of the forces in a picture, in (kT/nm)², shape (m,); a single NaN if it has none.

    A few clashes hardly change their median, but they change their mean.
    """
    return force_error(*table.forces) if len(table.forces[0]) else np.array([math.nan])


def shifted_flow_energy(table: FrameTable) -> Floats:
    """The flow's energy in kT, shifted to the minimum of the force field's, as in the paper's figures."""
    flow_energy = -table.log_prob
    known = np.isfinite(flow_energy) & np.isfinite(table.energy)
    if not known.any():
        return flow_energy
    shift: float = table.energy[known].min() - flow_energy[known].min()
    return flow_energy + shift


def run(model: Path, data: Path, file: Path, samples: int, *, progress: Progress = silent) -> ShownFrames:
    """Read the numbers behind the pictures of a model, or compute them and keep them in a file.

    Args:
        model: The model file.
        data: The trajectory that it was trained on.
        file: Where the numbers are kept (.npz).
        samples: Number of samples to draw.
        progress: Called with the progress.
    """
    about = fingerprint(evaluation_inputs(model, data, samples=samples, seed=SEED))
    found = load(file, about)
    if found is None:
        info, generator = trajectory.open_info(data), BoltzmannGenerator.load(model)
        selected, _ = rows_to_judge_by(notes(model).get("split"), data, info.n_frames)
        with OpenMMEnergy(info.system) as energy:
            frames = observe_data(generator, data, energy, only_kept(selected, generator.n_atoms), progress)
            found = ShownFrames(frames, observe_samples(generator, energy, samples, SEED, progress))
        save(found, file, about)
    return found


def save(shown: ShownFrames, file: Path, about: str) -> None:
    """Write columns and forces, with numbers as float32, and the fingerprint of their inputs."""
    arrays: dict[str, NDArray[Any]] = {"about": np.array(about)}
    for side, table in (("data", shown.data), ("samples", shown.samples)):
        columns = {name: getattr(table, name) for name in COLUMNS}
        columns |= {f"torsions {residue}": angles for residue, angles in table.torsions.items()}
        columns |= {"kept": table.kept[table.force_rows]}
        columns |= dict(zip(("true_force", "flow_force"), table.forces, strict=True))
        with np.errstate(over="ignore"):  # energies of clashes become infinite
            arrays |= {
                f"{side} {name}": column.astype(np.float32) if column.dtype == np.float64 else column
                for name, column in columns.items()
            }
    write_arrays(file, arrays, compressed=True)


def load(file: Path, about: str) -> ShownFrames | None:
    """Read them; None if there is no file, or its inputs were others."""
    kept = read_arrays(file) if file.exists() else {}
    if str(kept.get("about")) != about:
        return None
    return ShownFrames(_table(kept, "data"), _table(kept, "samples"))


def _table(arrays: dict[str, NDArray[Any]], side: str) -> FrameTable:
    own = {name.removeprefix(f"{side} "): part for name, part in arrays.items() if name.startswith(side)}
    columns: dict[str, Any] = {name: own[name] for name in ("kept", "true_force", "flow_force")}
    for name in COLUMNS:
        columns[name] = own[name].astype(np.float64) if own[name].dtype == np.float32 else own[name]
    torsions = {
        name.removeprefix("torsions "): angles.astype(np.float64)
        for name, angles in own.items()
        if name.startswith("torsions ")
    }
    return FrameTable(**columns, torsions=torsions)
