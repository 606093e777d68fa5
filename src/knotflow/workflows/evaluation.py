"""Evaluate a model file on data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from knotflow.analysis import Evaluation
from knotflow.analysis import evaluate as measure
from knotflow.analysis.temperatures import at_temperatures
from knotflow.energies import MolecularEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.workflows.models import energy_of, find_chains, model_file


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
    temperatures: Sequence[float] = (),
    states: Sequence[str] = (),
    chains: str | Path | None = None,
    more: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Compare a model with data of its molecule and with the force field.

    Args:
        model: A model file, the folder of a training run, or ``"ala2"``, which comes with knotflow.
        data: A trajectory of the same molecule. If the model was trained on it, only held-out frames are
            used. None: only the measures that need no data.
        out: A file for all numbers, such as ``metrics.json``; None: they are not written.
        samples: Number of samples to draw.
        seed: Seed of samples and error bars.
        all_frames: Whether to use the training frames, too.
        float64: Whether the flow computes densities and forces in double precision.
        energy: The force field; None: that of the molecule, by OpenMM or, for very many samples, in torch.
        workers: Processes of OpenMM; None: one per core.
        temperatures: Temperatures in K at which to compute free energy, mean energy and heat capacity as
            well, from as many samples each; the model must know them.
        states: States whose populations and free energies are compared, such as
            ``"anti: torsion 0 1 2 3 in 120..240"``: atoms by number from 0 or by name (ALA2:CA), degrees,
            conditions joined by "and". By default the wells of all turning torsions and of rings.
        chains: Exact chains (`knotflow exact`), whose states are given beside; None: ``exact.h5`` beside the
            model, if it is of this model.
        more: Further entries for the file.
        progress: Called with frames and samples, stage by stage.

    Raises:
        ValueError: if a state cannot be read, or if the data are of another molecule, temperature or force
            field, or without frames.
        OSError: if a file is missing or damaged.
    """
    path = model_file(model)
    generator = BoltzmannGenerator.load(path)
    if float64:
        generator.double()
    split = None if all_frames else notes(path).get("split")
    system = MolecularSystem.parse(generator.molecule)
    for temperature in temperatures:
        generator.at(temperature)  # refuse now, not after the work
    evaluations = samples * (1 + len(temperatures))
    with energy_of(system, energy, evaluations=evaluations, workers=workers) as field:
        found = measure(
            generator, data, field, split=split, samples=samples, seed=seed, states=states,
            chains=find_chains(path) if chains is None else chains, progress=progress,
        )  # fmt: skip
        if temperatures:
            warm = at_temperatures(
                generator, temperatures, field, data, samples=samples, seed=seed, progress=progress
            )
            found = replace(found, temperatures=warm)
    if out is not None:
        found.write(Path(out), path, **(more or {}))
    return found
