"""Adapt a trained generator to another energy of the same molecule, with few evaluations of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

from torch import Tensor

from knotflow.dynamics.masses import Masses
from knotflow.energies import MolecularEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.training.data import thinned
from knotflow.training.frames import load_data
from knotflow.training.molecules import MoleculeTraining, standardised_metric, training_config
from knotflow.training.refinement import refine

BATCH: Final = 256
"""Points of a step; what docs/tutorials/correct.md says was measured with so many."""


def adapt(
    generator: BoltzmannGenerator,
    frames: str | Path,
    folder: Path,
    energy: MolecularEnergy,
    *,
    steps: int,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[BoltzmannGenerator, list[dict[str, Any]]]:
    """The generator after one cycle of `refine` on its new energy, and the figures of the cycle.

    The better of the flows before and after is returned. Called again, an interrupted cycle resumes.

    Args:
        generator: Of the molecule with the new energy; its flow was trained on another one.
        frames: Frames of the new energy, such as exact chains; they keep the flow from forgetting states.
        folder: For the files of the refinement.
        energy: The new energy.
        steps: Steps of the cycle, of `BATCH` points each; for each point the energy is evaluated some
            `knotflow.training.refinement.EVALUATIONS` times.
        seed: Seed of all random numbers.
        progress: Called with the frames read, then with the steps done.

    Raises:
        ValueError: if there are too few frames.
    """
    system = MolecularSystem.parse(generator.molecule)
    loaded = load_data(frames, generator.coordinates, progress, folder=folder)
    train, validation = (
        part._replace(x=generator.unwound(part.x)) for part in map(thinned, (loaded.train, loaded.validation))
    )
    choice = MoleculeTraining(steps=steps, batch_size=BATCH, seed=seed)
    flow, cycles = refine(
        generator,
        train,
        training_config(choice, len(train.x), generator.coordinates.n_coordinates),
        folder,
        energy=energy,
        masses=Masses.molecule(system.masses, system.temperature),
        metric=standardised_metric(generator.flow, cast(Tensor, train.force)),
        validation=validation,
        first=steps,
        cycles=1,
        progress=progress,
    )
    return BoltzmannGenerator(generator.coordinates, flow, generator.molecule), cycles
