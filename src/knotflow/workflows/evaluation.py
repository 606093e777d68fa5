"""Evaluate a model file on data."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from knotflow.analysis import Evaluation
from knotflow.analysis import evaluate as measure
from knotflow.energies import MolecularEnergy, force_field
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.workflows.models import model_file


def evaluate(
    model: str | Path,
    data: str | Path | None = None,
    out: str | Path | None = None,
    *,
    samples: int = 10_000,
    seed: int = 0,
    all_frames: bool = False,
    float64: bool = False,
    energy: MolecularEnergy | None = None,
    workers: int | None = None,
    more: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Compare a model with data of its molecule and with the force field.

    Args:
        model: A model file, the folder of a training run, or ``"ala2"``, which comes with knotflow.
        data: A trajectory of the same molecule. If the model was trained on it, only frames that were held
            back are used. Without data, the measures are those that samples alone can tell.
        out: A file for all numbers, such as ``metrics.json``; None: they are not written.
        samples: How many samples to draw.
        seed: Of samples and error bars.
        all_frames: Whether to use the frames of the training, too.
        float64: Whether densities and forces of the flow are computed in double precision.
        energy: The force field; by default that of the molecule, by OpenMM or, for very many samples, in
            torch.
        workers: Processes of OpenMM; None: one for each core.
        more: What else to write into the file.
        progress: Called with frames and samples, stage by stage.

    Raises:
        ValueError: if the data are of another molecule, temperature or force field, or without frames.
        OSError: if a file is missing or damaged.
    """
    path = model_file(model)
    generator = BoltzmannGenerator.load(path)
    if float64:
        generator.double()
    system = MolecularSystem.parse(generator.molecule)
    split = None if all_frames else notes(path).get("split")
    chosen = force_field(system, evaluations=samples, workers=workers) if energy is None else energy
    with chosen if energy is None else nullcontext(chosen) as field:
        found = measure(generator, data, field, split=split, samples=samples, seed=seed, progress=progress)
    if out is not None:
        found.write(Path(out), path, **(more or {}))
    return found
