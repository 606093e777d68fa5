"""One page on a trained Boltzmann generator: what is at hand is collected, the rest is named as missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from knotflow.analysis.evaluation import evaluate, evaluation_inputs, is_evaluation_of
from knotflow.analysis.frame_table import (
    FrameTable,
    observe_data,
    observe_samples,
    only_kept,
    rows_to_judge_by,
)
from knotflow.analysis.learned_maps import LearnedMap, learned_maps
from knotflow.dynamics.record import Record
from knotflow.energies.energy import MolecularEnergy
from knotflow.extras import need
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.inputs import file_fingerprint
from knotflow.log_file import read_log
from knotflow.progress import Progress, silent
from knotflow.report.curve_plots import Curve
from knotflow.report.generator_page import GeneratorReport, write_generator_page
from knotflow.report.verdicts import Verdict
from knotflow.storage import trajectory

METRICS: Final = "metrics.json"
RUN_MODEL: Final = "model.safetensors"
"""The name of a model in the folder of its run; of others nothing is known about their training."""


@dataclass(frozen=True)
class Written:
    """What was made."""

    page: Path
    verdicts: list[Verdict]
    metrics: Path | None
    """Where numbers were written, if they had to be computed."""


def write_report(
    model: Path,
    energy: MolecularEnergy,
    out: Path,
    *,
    folder: Path | None = None,
    data: Path | None = None,
    samples: int = 10_000,
    seed: int = 0,
    progress: Progress = silent,
) -> Written:
    """Evaluate a model, unless that has been done, and write the page.

    Numbers are those of ``metrics.json`` in the folder, if they are of the same model, data, samples, seed,
    precision, force field and version. Otherwise the model is evaluated, and they are written there.

    Args:
        model: The model file.
        energy: The force field of the molecule.
        out: The page.
        folder: What else is known of the model: ``metrics.json``, ``dynamics/record.npz`` and, of a run,
            ``log.csv`` and ``config.json``. By default that of the model.
        data: A trajectory of the molecule. Without, the page shows what samples alone tell, or the
            numbers of an earlier evaluation of the same samples on any data.
        samples: How many to draw.
        seed: Of samples and error bars.
        progress: Called with the progress.

    Raises:
        ValueError: if the data are of another molecule, temperature or force field, or without frames, or if
            a file beside the model is damaged.
        OSError: if a file is missing or damaged.
    """
    need("reports", "analysis", "plot")
    generator, split = BoltzmannGenerator.load(model), notes(model).get("split")
    folder = folder or model.parent
    file, written = folder / METRICS, None
    inputs = evaluation_inputs(model, data, samples=samples, seed=seed, energy=energy)
    if is_evaluation_of(file, inputs):
        metrics, frames = json.loads(file.read_text(encoding="utf-8")), None
        if data is not None:
            selected, _ = rows_to_judge_by(split, data, trajectory.open_info(data).n_frames)
            frames = observe_data(generator, data, energy, only_kept(selected, generator.n_atoms), progress)
        drawn = observe_samples(generator, energy, samples, seed, progress)
    else:
        found = evaluate(generator, data, energy, split=split, samples=samples, seed=seed, progress=progress)
        drawn, frames, metrics = found.samples, found.data, found.plain()
        if data is not None:
            metrics, written = found.write(file, model), file
    shown = None if frames is None else frames.pictured()
    report = GeneratorReport(
        model=model.name if model.name != RUN_MODEL else f"{model.parent.name or '.'}/{model.name}",
        molecule=generator.molecule,
        coordinates=generator.coordinates.atoms,
        metrics=metrics,
        samples=drawn,
        data=shown,
        maps=_maps(generator, drawn.pictured() if shown is None else shown),
        seed=seed,
        **_beside(model, folder),
    )
    progress("pictures", 0, 1)
    write_generator_page(report, out)
    progress("pictures", 1, 1)
    return Written(out, report.verdicts, written)


def find_data(model: Path) -> Path | None:
    """The trajectory that a model was trained on, if it is in a place where one would keep it.

    A model knows name and length of the file. It is looked for in the working folder, beside the model, and
    one and two folders above it, and in the folders ``data`` there.
    """
    split = notes(model).get("split")
    if not split:
        return None
    home = model.resolve().parent
    for folder in (Path(), home, home.parent, home.parent.parent):
        for path in (folder / str(split["file"]), folder / "data" / str(split["file"])):
            with suppress(OSError, ValueError):  # another file of that name
                if trajectory.open_info(path).n_frames == split["frames"]:
                    return path
    return None


def read_curves(path: Path) -> dict[str, Curve]:
    """Steps and values of all that a training has logged, by name; an unfinished last line is left out."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for step, name, value in read_log(path):
        curves.setdefault(name, []).append((step, value))
    return {name: (np.array([s for s, _ in c]), np.array([v for _, v in c])) for name, c in curves.items()}


def _maps(generator: BoltzmannGenerator, shown: FrameTable) -> list[LearnedMap]:
    """At frames that the flow has a density for."""
    inside = shown.coordinates[np.isfinite(shown.log_prob)]
    return learned_maps(generator, inside) if len(inside) else []


def _beside(model: Path, folder: Path) -> Mapping[str, Any]:
    """What else a folder holds about a model."""
    found: dict[str, Any] = {}
    if model == folder / RUN_MODEL:
        found["files"] = {
            name: (folder / name).read_bytes()
            for name in ("config.json", "log.csv")
            if (folder / name).is_file()
        }
        if "log.csv" in found["files"]:
            found["training"] = read_curves(folder / "log.csv")
    record = folder / "dynamics" / "record.npz"
    if record.is_file():
        loaded = Record.load(record)
        # A force field has no model, and is shown for comparison.
        if loaded.about.get("model") in (None, file_fingerprint(model)):
            found["record"] = loaded
    return found
