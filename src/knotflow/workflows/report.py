"""Write the page about a trained Boltzmann generator from all that is available; name what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from knotflow.analysis.evaluation import evaluate, evaluation_inputs, noted_evaluation
from knotflow.analysis.frame_table import (
    FrameTable,
    check_samples,
    observe_data,
    observe_samples,
    only_kept,
    rows_to_judge_by,
)
from knotflow.analysis.learned_maps import LearnedMap, learned_maps
from knotflow.dynamics.record import Record
from knotflow.energies import MolecularEnergy
from knotflow.extras import need
from knotflow.files import read_json
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.inputs import file_fingerprint, made_of
from knotflow.log_file import read_log
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.report.curve_plots import Curve
from knotflow.report.generator_page import GeneratorReport, write_generator_page
from knotflow.report.verdicts import Verdict
from knotflow.storage import trajectory
from knotflow.workflows.models import energy_of, find_chains, model_file, results_folder

METRICS: Final = "metrics.json"
RUN_MODEL: Final = "model.safetensors"
"""File name of a model in its run folder; nothing is known about the training of models with other names."""


@dataclass(frozen=True)
class Written:
    """What `write_report` wrote."""

    page: Path
    data: Path | None
    """The trajectory that the model was compared with, if any."""
    verdicts: list[Verdict]
    metrics: Path | None
    """The file of numbers, if they had to be computed."""


def write_report(
    model: str | Path,
    data: str | Path | None = None,
    out: str | Path | None = None,
    *,
    samples: int = 10_000,
    seed: int = 0,
    folder: Path | None = None,
    energy: MolecularEnergy | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> Written:
    """Write one page about a Boltzmann generator, evaluating it first unless that has been done.

    The numbers are those of ``metrics.json`` in the folder, if they are of the same model, data, samples,
    seed, precision, force field, exact chains and version. Otherwise the model is evaluated, with the states
    that were named there, and they are written there.

    Args:
        model: A model file, the folder of a training run, or ``"ala2"``, which comes with knotflow.
        data: A trajectory of the molecule; None: the training data, if `find_data` finds them. Without any,
            the page shows what samples alone can show, or the numbers of an earlier evaluation of the same
            samples on any data.
        out: The page; None: ``report.html`` in the folder.
        samples: Number of samples to draw.
        seed: Seed of samples and error bars.
        folder: Where to look for ``metrics.json``, ``dynamics/record.npz`` and, of a run, ``log.csv`` and
            ``config.json``; None: the folder of the model.
        energy: The force field; None: that of the molecule, by OpenMM or, for very many samples, in torch.
        workers: Processes of OpenMM; None: one per core.
        progress: Called with the progress.

    Raises:
        ValueError: if the data are of another molecule, temperature or force field, or without frames, or if
            a file beside the model is damaged.
        OSError: if a file is missing or damaged.
    """
    need("reports", "analysis", "plot")
    path = model_file(model)
    molecule, split = notes(path).get("molecule"), notes(path).get("split")
    if molecule is None:
        raise ValueError(f"{path} holds a flow without a molecule; give a Boltzmann generator.")
    folder = folder or results_folder(path)
    source = find_data(path) if data is None else Path(data)
    page = folder / "report.html" if out is None else Path(out)
    generator, file, written = BoltzmannGenerator.load(path), folder / METRICS, None
    check_samples(samples)
    with energy_of(MolecularSystem.parse(molecule), energy, evaluations=samples, workers=workers) as field:
        chains, noted = find_chains(path), noted_evaluation(file) or {}
        inputs = evaluation_inputs(path, source, samples=samples, seed=seed, energy=field, chains=chains)
        if noted.get("states") is not None and made_of(noted, inputs):
            metrics, frames = read_json(file), None
            if source is not None:
                rows, _ = rows_to_judge_by(split, source, trajectory.open_info(source).n_frames)
                frames = observe_data(generator, source, field, only_kept(rows, generator.n_atoms), progress)
            drawn = observe_samples(generator, field, samples, seed, progress)
        else:
            options: Any = {
                "split": split, "samples": samples, "seed": seed, "progress": progress,
                "states": noted.get("states") or (), "chains": chains,
            }  # fmt: skip
            found = evaluate(generator, source, field, **options)
            drawn, frames, metrics = found.samples, found.data, found.plain()
            if source is not None:
                metrics, written = found.write(file, path), file
    shown = None if frames is None else frames.pictured()
    content = GeneratorReport(
        model=path.name if path.name != RUN_MODEL else f"{path.parent.name or '.'}/{path.name}",
        molecule=generator.molecule,
        coordinates=generator.coordinates.atoms,
        metrics=metrics,
        samples=drawn,
        data=shown,
        maps=_maps(generator, drawn.pictured() if shown is None else shown),
        seed=seed,
        **_beside(path, folder),
    )
    progress("pictures", 0, 1)
    write_generator_page(content, page)
    progress("pictures", 1, 1)
    return Written(page, source, content.verdicts, written)


def find_data(model: Path) -> Path | None:
    """The trajectory that a model was trained on; None if it is in none of the usual places.

    A model knows the name and length of the file. The places are the working folder, the folder of the model,
    the two folders above it, and the folder ``data`` in each of these.
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
    """Steps and values of everything that a training logged, by name, without an unfinished last line."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for step, name, value in read_log(path):
        curves.setdefault(name, []).append((step, value))
    return {name: (np.array([s for s, _ in c]), np.array([v for _, v in c])) for name, c in curves.items()}


def _maps(generator: BoltzmannGenerator, shown: FrameTable) -> list[LearnedMap]:
    """The learned maps at frames where the density of the flow is not zero."""
    inside = shown.coordinates[np.isfinite(shown.log_prob)]
    return learned_maps(generator, inside) if len(inside) else []


def _beside(model: Path, folder: Path) -> Mapping[str, Any]:
    """Everything else that a folder holds about a model."""
    found: dict[str, Any] = {}
    if model == folder / RUN_MODEL:
        files = [folder / name for name in ("config.json", "log.csv")]
        found["files"] = {file.name: file.read_bytes() for file in files if file.is_file()}
        if "log.csv" in found["files"]:
            found["training"] = read_curves(folder / "log.csv")
    record = folder / "dynamics" / "record.npz"
    if record.is_file():
        loaded = Record.load(record)
        # A force field has no model, and is shown for comparison.
        if loaded.about.get("model") in (None, file_fingerprint(model)):
            found["record"] = loaded
    return found
