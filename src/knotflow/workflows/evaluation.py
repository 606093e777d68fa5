"""Evaluate a model file on data, and know an evaluation by what it was made of."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from knotflow.analysis import Evaluation
from knotflow.analysis import evaluate as measure
from knotflow.analysis.frame_table import held_out, like
from knotflow.energies import MolecularEnergy, force_field
from knotflow.files import read_json
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.inputs import file_fingerprint
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.storage import trajectory
from knotflow.version import __version__


def evaluate(
    model: str | Path,
    data: str | Path,
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
        model: The model file.
        data: A trajectory of the same molecule. If the model was trained on it, only frames that were held
            back are used.
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
    generator = BoltzmannGenerator.load(model)
    if float64:
        generator.double()
    system = MolecularSystem.parse(generator.molecule)
    split = None if all_frames else notes(model).get("split")
    chosen = force_field(system, evaluations=samples, workers=workers) if energy is None else energy
    with chosen if energy is None else nullcontext(chosen) as field:
        found = measure(generator, data, field, split=split, samples=samples, seed=seed, progress=progress)
    if out is not None:
        found.write(Path(out), Path(model), **(more or {}))
    return found


def evaluation_inputs(
    model: Path,
    data: Path,
    *,
    samples: int = 10_000,
    seed: int = 0,
    all_frames: bool = False,
    float64: bool = False,
) -> dict[str, Any]:
    """All that an evaluation depends on, as `noted_evaluation` reads it; for the arguments see `evaluate`."""
    frames = trajectory.open_info(data).n_frames
    held = None if all_frames else held_out(notes(model).get("split"), data, frames)
    dtype = str(like(BoltzmannGenerator.load(model)).dtype).removeprefix("torch.")
    rows = "all" if held is None else "validation"
    return {
        "model": file_fingerprint(model),
        "data": {"file": data.name, "rows": rows, "frames_in_file": frames},
        "samples": samples,
        "seed": seed,
        "dtype": "float64" if float64 else dtype,
        "knotflow": __version__,
    }


def noted_evaluation(file: Path) -> dict[str, Any] | None:
    """The inputs that an evaluation notes; None if there is no evaluation that can be read."""
    try:
        about = read_json(file)["about"]
        found = {key: about.get(key) for key in ("model", "samples", "seed", "dtype", "knotflow")}
        return found | {"data": {key: about["data"][key] for key in ("file", "rows", "frames_in_file")}}
    except (OSError, ValueError, KeyError, TypeError):
        return None
