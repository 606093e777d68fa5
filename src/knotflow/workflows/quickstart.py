"""The quickstart: alanine dipeptide from nothing to a page about its Boltzmann generator, in six steps.

The result of a step is complete or absent, and notes its inputs. So a finished step is skipped, and an
interrupted one is resumed or repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from knotflow.analysis.evaluation import evaluation_inputs, noted_evaluation
from knotflow.dynamics.protocol import RECORD, DynamicsConfig
from knotflow.energies import force_field
from knotflow.files import only_writer, write_atomically
from knotflow.flows.io import notes
from knotflow.inputs import file_fingerprint
from knotflow.molecules import ala2
from knotflow.progress import Progress, silent
from knotflow.simulation import Simulation, SimulationPlan
from knotflow.training.molecules import MoleculeTraining, train_generator
from knotflow.version import __version__
from knotflow.workflows.dynamics import DynamicsRun
from knotflow.workflows.evaluation import evaluate
from knotflow.workflows.report import METRICS, RUN_MODEL, write_report
from knotflow.workflows.sampling import noted_samples, sample, sample_inputs
from knotflow.workflows.steps import Step, run_steps
from knotflow.workflows.training import noted_training, training_inputs

NOTE: Final = "\n<!-- inputs: "
"""Start of the last line of the page, which notes the inputs of the page."""


@dataclass(frozen=True)
class Scale:
    """Amount of work."""

    plan: SimulationPlan
    training: MoleculeTraining
    samples: int
    """Number drawn, for the file, the evaluation and the page alike."""
    dynamics: DynamicsConfig
    seconds: tuple[float, ...]
    """Rough durations of the steps on two idle cores, for the first estimate of the time left."""
    workers: int | None = None
    """Processes for OpenMM and simulations; None: one per core."""


def full(seed: int = 0) -> Scale:
    """A few minutes of work, with results that mean something.

    Tempering gives phi > 0 its true weight, which plain dynamics of this length does not. Exchanges also
    bring fresh structures down the ladder, so frames can be kept more often. 24 ladders of 8 temperatures
    make four tasks of 48 walkers, three vectors of 16. Frames of all temperatures are trained on: those of
    the target alone would soon be memorised.
    """
    return Scale(
        SimulationPlan(
            engine="torch",
            method="tempering",
            replicas=24,
            frames=420,
            interval=100,
            equilibration=5_000,
            highest_temperature=1000.0,
            seed=seed,
        ),
        MoleculeTraining(preset="quick", forces=True, temperatures=True, epochs=15.0, seed=seed),
        samples=5_000,
        dynamics=DynamicsConfig(replicas=4, dt=5e-4, equilibration=0.2, production=0.5, every=10, seed=seed),
        seconds=(65, 25, 1, 4, 10, 6),
    )


def smoke(seed: int = 0) -> Scale:
    """Less than a minute of work: shows that all parts work; the numbers mean nothing."""
    return Scale(
        SimulationPlan(
            replicas=1, frames=120, interval=10, equilibration=10, highest_temperature=1000.0, seed=seed
        ),
        MoleculeTraining(preset="quick", forces=True, epochs=2.0, seed=seed),
        samples=200,
        dynamics=DynamicsConfig(
            replicas=2, dt=5e-4, equilibration=0.005, production=0.01, every=5, seed=seed
        ),
        seconds=(4, 8, 1, 4, 1, 12),
        workers=1,
    )


SCALES: Final[Mapping[str, Callable[[int], Scale]]] = {"full": full, "smoke": smoke}


@dataclass(frozen=True)
class Quickstart:
    """A folder and the amount of work.

    The folder is that of a training run: all commands on trained models take it.
    """

    folder: Path
    scale: Scale

    @property
    def data(self) -> Path:
        """The simulation."""
        return self.folder / "ala2.h5"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.folder / RUN_MODEL

    @property
    def samples(self) -> Path:
        """Samples of the model, with weights."""
        return self.folder / "samples.h5"

    @property
    def metrics(self) -> Path:
        """The evaluation."""
        return self.folder / METRICS

    @property
    def dynamics_folder(self) -> Path:
        """The folder of the dynamics."""
        return self.folder / "dynamics"

    @property
    def page(self) -> Path:
        """The page."""
        return self.folder / "report.html"

    def simulation(self) -> Simulation:
        """The simulation, new, interrupted or finished; refuses a file of another plan."""
        return Simulation(self.data, ala2(), self.scale.plan, self.scale.workers)

    def dynamics(self) -> DynamicsRun:
        """Dynamics of molecules on the energy of the flow, new, interrupted or finished."""
        return DynamicsRun(self.model, self.data, self.dynamics_folder, self.scale.dynamics)

    def steps(self) -> list[Step]:
        """The six steps, in order."""
        scale, model, data = self.scale, self.model, self.data
        workers, seconds = scale.workers, iter(scale.seconds)
        drawing: Any = {"n": scale.samples, "weights": True, "seed": scale.plan.seed}
        measuring: Any = {"samples": scale.samples, "seed": scale.plan.seed}

        def write_page(progress: Progress) -> None:
            write_report(model, data, self.page, **measuring, workers=workers, progress=progress)
            note = f"{NOTE}{json.dumps(self.page_inputs())} -->\n"
            write_atomically(self.page, self.page.read_bytes() + note.encode())

        return [
            Step(
                "simulating",
                lambda: {"frames": scale.plan.frames},
                lambda: {"frames": self.simulation().state.frames} if data.exists() else None,
                lambda progress: self.simulation().run(progress),
                next(seconds),
                quiet=0.3,  # workers start, and the force field is compiled
            ),
            Step(
                "training",
                lambda: training_inputs(scale.training, data),
                lambda: noted_training(notes(model)) if model.exists() else None,
                lambda progress: train_generator(
                    data, self.folder, scale.training, energy=force_field, progress=progress
                ),
                next(seconds),
                stages=(0.1, 0.9),  # frames are read; training
            ),
            Step(
                "sampling",
                lambda: sample_inputs(model, **drawing),
                lambda: noted_samples(self.samples),
                lambda progress: sample(
                    model, out=self.samples, **drawing, overwrite=True, workers=workers, progress=progress
                ),
                next(seconds),
            ),
            Step(
                "evaluating",
                lambda: evaluation_inputs(model, data, **measuring),
                lambda: noted_evaluation(self.metrics),
                lambda progress: evaluate(
                    model, data, self.metrics, **measuring, workers=workers, progress=progress
                ),
                next(seconds),
                stages=(1, 1, 1),
            ),
            Step(
                "moving molecules on the flow",
                lambda: self.dynamics().inputs,
                lambda: self.dynamics().found,
                lambda progress: self.dynamics().run(progress),
                next(seconds),
            ),
            Step(
                "writing the page",
                self.page_inputs,
                self.noted_page,
                write_page,
                next(seconds),
                stages=(1, 1, 1),
            ),
        ]

    def page_inputs(self) -> dict[str, Any]:
        """Everything that the page depends on."""
        shown = {"model": self.model, "metrics": self.metrics, "record": self.dynamics_folder / RECORD}
        files = {name: file_fingerprint(file) for name, file in shown.items()}
        seed = self.scale.plan.seed
        return {**files, "samples": self.scale.samples, "seed": seed, "knotflow": __version__}

    def noted_page(self) -> dict[str, Any] | None:
        """The inputs that the page notes; None if there is no page, or it was written by another command."""
        if not self.page.exists():
            return None
        *_, note = self.page.read_text(encoding="utf-8").rpartition(NOTE)
        try:
            found: dict[str, Any] = json.loads(note.removesuffix(" -->\n"))
        except ValueError:  # a page of `knotflow report`, or of an earlier version
            return None
        return found


def run(job: Quickstart, progress: Progress = silent) -> int:
    """Run all steps that are not done yet, and return their number.

    Raises:
        ValueError: if the folder holds results of other settings.
        OSError: if a file is damaged, or another process works in the folder.
    """
    if job.folder.exists() and not job.folder.is_dir():
        raise NotADirectoryError(f"--out must be a folder for the results, but {job.folder} is a file.")
    with only_writer(job.folder / "quickstart"):
        return run_steps(job.steps(), progress)
