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
from knotflow.energies import MolecularEnergy, force_field
from knotflow.extras import need
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.inputs import file_fingerprint
from knotflow.log_file import read_log
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.report.curve_plots import Curve
from knotflow.report.generator_page import GeneratorReport, write_generator_page
from knotflow.report.verdicts import Verdict
from knotflow.storage import trajectory
from knotflow.workflows.models import model_file, results_folder

METRICS: Final = "metrics.json"
RUN_MODEL: Final = "model.safetensors"
"""The name of a model in the folder of its run; of others nothing is known about their training."""


@dataclass(frozen=True)
class Written:
    """What was made."""

    page: Path
    data: Path | None
    """The trajectory that the model was compared with, if there was one."""
    verdicts: list[Verdict]
    metrics: Path | None
    """Where numbers were written, if they had to be computed."""


def write_report(
    model: str | Path,
    data: str | Path | None = None,
    out: str | Path | None = None,
    *,
    samples: int = 10_000,
    seed: int = 0,
    folder: Path | None = None,
    energy: MolecularEnergy | None = None,
    progress: Progress = silent,
) -> Written:
    """Write one page about a Boltzmann generator, evaluating it first unless that has been done.

    The numbers are those of ``metrics.json`` in the folder, if they are of the same model, data, samples,
    seed, precision, force field and version. Otherwise the model is evaluated, and they are written there.

    Args:
        model: A model file, the folder of a training run, or ``"ala2"``, which comes with knotflow.
        data: A trajectory of the molecule; None: the training data, if `find_data` finds them. Without any,
            the page shows what samples alone tell, or the numbers of an earlier evaluation of the same
            samples on any data.
        out: The page; None: ``report.html`` in the folder.
        samples: How many samples to draw.
        seed: Seed of samples and error bars.
        folder: Where ``metrics.json``, ``dynamics/record.npz`` and, of a run, ``log.csv`` and
            ``config.json`` are; None: the folder of the model.
        energy: The force field; None: that of the molecule, by OpenMM or, for very many samples, in torch.
        progress: Called with the progress.

    Raises:
        ValueError: if the data are of another molecule, temperature or force field, or without frames, or if
            a file beside the model is damaged.
        OSError: if a file is missing or damaged.
    """
    need("reports", "analysis", "plot")
    path = model_file(model)
    molecule = notes(path).get("molecule")
    if molecule is None:
        raise ValueError(f"{path} holds a flow without a molecule; give a Boltzmann generator.")
    folder = folder or results_folder(path)
    source = find_data(path) if data is None else Path(data)
    page = folder / "report.html" if out is None else Path(out)
    if energy is not None:
        return _write(path, source, page, folder, samples, seed, energy, progress)
    with force_field(MolecularSystem.parse(molecule), evaluations=samples) as chosen:
        return _write(path, source, page, folder, samples, seed, chosen, progress)


def _write(
    model: Path,
    data: Path | None,
    out: Path,
    folder: Path,
    samples: int,
    seed: int,
    energy: MolecularEnergy,
    progress: Progress,
) -> Written:
    generator, split = BoltzmannGenerator.load(model), notes(model).get("split")
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
    content = GeneratorReport(
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
    write_generator_page(content, out)
    progress("pictures", 1, 1)
    return Written(out, data, content.verdicts, written)


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
