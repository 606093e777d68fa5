"""One page on a trained Boltzmann generator: what is at hand is collected, the rest is named as missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from knotflow.analysis import portrait
from knotflow.analysis.evaluation import evaluate
from knotflow.analysis.frame_table import Clock, Progress, like
from knotflow.dynamics.record import Record
from knotflow.energies.energy import MolecularEnergy
from knotflow.extras import need
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import fingerprint, notes
from knotflow.log_file import read_log
from knotflow.report.density_plots import Curve
from knotflow.report.generator_page import GeneratorReport, write_generator_page
from knotflow.report.verdicts import Verdict
from knotflow.storage import trajectory
from knotflow.version import __version__

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
    progress: Progress | None = None,
) -> Written:
    """Evaluate a model, unless that has been done, and write the page.

    Numbers are those of ``metrics.json`` in the folder, if they are of this model and of these data.
    Otherwise the model is evaluated, and they are written there. Pictures are of ``samples`` new samples.

    Args:
        model: The model file.
        energy: The force field of the molecule.
        out: The page.
        folder: What else is known of the model: ``metrics.json``, ``dynamics/record.npz`` and, of a run,
            ``log.csv`` and ``config.json``. By default that of the model.
        data: A trajectory of the molecule. Without, the page has what can be told from samples.
        samples: How many to draw.
        seed: Of samples and error bars.
        progress: Told how far it is.

    Raises:
        ValueError: if the data are of another molecule, temperature or force field, or without frames, or if
            a file beside the model is damaged.
        OSError: if a file is missing or damaged.
    """
    need("reports", "analysis", "plot")
    generator = BoltzmannGenerator.load(model)
    split = notes(model).get("split")
    folder = folder or model.parent
    shown = None  # first of all, because it refuses data that do not fit
    if data is not None:
        shown = portrait.of_data(generator, data, energy, split=split, progress=progress)
    clock = Clock()
    drawn = portrait.of_samples(generator, energy, samples, seed, progress, clock)
    file, written = folder / METRICS, None
    if is_evaluation_of(file, model, data):
        metrics = json.loads(file.read_text(encoding="utf-8"))
    elif data is not None:
        found = evaluate(
            generator,
            data,
            energy,
            split=split,
            samples=samples,
            seed=seed,
            progress=progress,
            drawn=drawn.seen,
            clock=clock,
        )
        metrics, written = found.write(file, model), file
    else:
        metrics = _without_data(generator, drawn, samples, seed)
    report = GeneratorReport(
        model=model.name if model.name != RUN_MODEL else f"{model.parent.name or '.'}/{model.name}",
        molecule=generator.molecule,
        coordinates=generator.coordinates.atoms,
        metrics=metrics,
        samples=drawn,
        data=shown,
        maps=_maps(generator, shown, drawn),
        seed=seed,
        **_beside(model, folder),
    )
    if progress is not None:
        progress("pictures", 0, 1)
    write_generator_page(report, out)
    if progress is not None:
        progress("pictures", 1, 1)
    return Written(out, report.verdicts(), written)


def is_evaluation_of(file: Path, model: Path, data: Path | None = None) -> bool:
    """Whether a file holds the evaluation of a model file, on these data if any are given."""
    try:
        about = json.loads(file.read_text(encoding="utf-8"))["about"]
        of_model = about["model"]
        of_data = (about["data"]["file"], about["data"]["frames_in_file"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if of_model != fingerprint(model):
        return False
    return data is None or of_data == (data.name, trajectory.open_info(data).n_frames)


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


def _without_data(
    generator: BoltzmannGenerator, drawn: portrait.Portrait, samples: int, seed: int
) -> dict[str, Any]:
    found = portrait.without_data(drawn.seen, seed)
    return {
        "about": {
            "molecule": generator.molecule["name"],
            "atoms": generator.n_atoms,
            "temperature": generator.temperature,
            "dtype": str(like(generator).dtype).removeprefix("torch."),
            "parameters": sum(p.numel() for p in generator.parameters()),
            "samples": samples,
            "seed": seed,
            "knotflow": __version__,
        },
        "measures": {key: measure.plain() for key, measure in found.items()},
        "residues": {},
    }


def _maps(
    generator: BoltzmannGenerator, shown: portrait.Portrait | None, drawn: portrait.Portrait
) -> list[portrait.LearnedMap]:
    """At frames of data or, without, at samples: those that the flow has a density for."""
    source = drawn if shown is None else shown
    inside = source.coordinates[np.isfinite(source.seen.log_prob)]
    return portrait.learned_maps(generator, inside) if len(inside) else []


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
        if loaded.about.get("model") in (None, fingerprint(model)):
            found["record"] = loaded
    return found
