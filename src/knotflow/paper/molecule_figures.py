"""Figures 3 and 7 to 9: forces, torsions and energies of a flow, on frames of data and on its samples."""

from __future__ import annotations

import io
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
from knotflow.files import write_atomically
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.inputs import fingerprint
from knotflow.progress import Progress, silent
from knotflow.storage import trajectory

Floats = NDArray[np.float64]

SEED: Final = 0
"""Of the samples."""


@dataclass(frozen=True, eq=False)
class ShownFrames:
    """Both rows of a figure."""

    data: FrameTable
    """Frames that training did not see."""
    samples: FrameTable


def frame_errors(table: FrameTable) -> Floats:
    """Mean squared errors of the forces that a picture shows, in (kT/nm)², shape (m,); NaN without any.

    Their median is hardly changed by a few clashes, their mean is.
    """
    return force_error(*table.forces) if len(table.forces[0]) else np.array([math.nan])


def shifted_flow_energy(table: FrameTable) -> Floats:
    """The flow's energy with the minimum of the force field's, as in the paper's figures; in kT."""
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
        samples: How many to draw.
        progress: Called with the progress.
    """
    about = fingerprint(evaluation_inputs(model, data, samples=samples, seed=SEED))
    kept = load(file, about)
    if kept is not None:
        return kept
    info, generator = trajectory.open_info(data), BoltzmannGenerator.load(model)
    selected, _ = rows_to_judge_by(notes(model).get("split"), data, info.n_frames)
    with OpenMMEnergy(info.system) as energy:
        frames = observe_data(generator, data, energy, only_kept(selected, generator.n_atoms), progress)
        drawn = observe_samples(generator, energy, samples, SEED, progress)
    found = ShownFrames(frames, drawn)
    save(found, file, about)
    return found


def save(shown: ShownFrames, file: Path, about: str) -> None:
    """Write columns and forces, numbers as float32, and what they are about."""
    arrays: dict[str, NDArray[Any]] = {}
    for side, table in (("data", shown.data), ("samples", shown.samples)):
        columns = {name: getattr(table, name) for name in COLUMNS}
        columns |= {f"torsions {residue}": angles for residue, angles in table.torsions.items()}
        columns |= {"kept": table.kept[table.force_rows]}
        columns |= dict(zip(("true_force", "flow_force"), table.forces, strict=True))
        arrays |= {f"{side} {name}": _narrow(column) for name, column in columns.items()}
    content = io.BytesIO()
    np.savez_compressed(content, **{**arrays, "about": np.array(about)})  # type: ignore[arg-type]
    write_atomically(file, content.getvalue())


def load(file: Path, about: str) -> ShownFrames | None:
    """Read them; None if there is no file, or one about something else."""
    if not file.exists():
        return None
    with np.load(file, allow_pickle=False) as kept:
        if str(kept["about"]) != about:
            return None
        return ShownFrames(*(_table({**kept}, side) for side in ("data", "samples")))


def _table(arrays: dict[str, NDArray[Any]], side: str) -> FrameTable:
    own = {name.removeprefix(f"{side} "): part for name, part in arrays.items() if name.startswith(side)}
    columns = {name: own[name] for name in (*COLUMNS, "kept", "true_force", "flow_force")}
    for name in COLUMNS:
        if columns[name].dtype == np.float32:
            columns[name] = columns[name].astype(np.float64)
    torsions = {
        name.removeprefix("torsions "): angles.astype(np.float64)
        for name, angles in own.items()
        if name.startswith("torsions ")
    }
    return FrameTable(**columns, torsions=torsions)


def _narrow(column: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # energies of clashes become infinite
        return column.astype(np.float32) if column.dtype == np.float64 else column
