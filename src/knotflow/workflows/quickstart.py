"""The quickstart: alanine dipeptide from nothing to a page about its Boltzmann generator, in six steps.

Every step leaves a result that is complete or absent and notes its inputs. So a step whose result is there is
not done again, and one that was stopped goes on or is repeated.
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
from knotflow.molecules import MolecularSystem, ala2
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
"""Begins the last line of the page, which notes what the page was made of."""


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    plan: SimulationPlan
    training: MoleculeTraining
    samples: int
    """To draw, for the file, the evaluation and the page alike."""
    dynamics: DynamicsConfig
    seconds: tuple[float, ...]
    """What the steps take on two idle cores, roughly: where an estimate of the time left begins."""
    workers: int | None = None
    """Processes for OpenMM and simulations; None: one for each core."""


def full(seed: int = 0) -> Scale:
    """Minutes.

    Tempering gives phi > 0 the weight it has, which plain dynamics of this length does not. Exchanges also
    bring fresh structures down the ladder, so that frames can be kept more often. 24 ladders of 8
    temperatures make four tasks of 48 walkers, three vectors of 16. More steps of training would learn the
    frames by heart.
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
        MoleculeTraining(preset="quick", forces=True, epochs=15.0, seed=seed),
        samples=5_000,
        dynamics=DynamicsConfig(replicas=4, dt=5e-4, equilibration=0.2, production=0.5, every=10, seed=seed),
        seconds=(65, 25, 1, 4, 10, 6),
    )


def smoke(seed: int = 0) -> Scale:
    """Less than a minute: all parts work, and the numbers mean nothing."""
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
    """Where it happens, and how much of it.

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

    @property
    def seed(self) -> int:
        """Of all random numbers."""
        return self.scale.plan.seed

    def simulation(self) -> Simulation:
        """The simulation as far as it is; refuses a file that was begun otherwise."""
        return Simulation(self.data, ala2(), self.scale.plan, self.scale.workers)

    def dynamics(self) -> DynamicsRun:
        """Molecules that move on the energy of the flow, as far as they are."""
        return DynamicsRun(self.model, self.data, self.dynamics_folder, self.scale.dynamics)

    def steps(self) -> list[Step]:
        """What there is to do."""
        scale, seconds = self.scale, iter(self.scale.seconds)
        return [
            Step(
                "simulating",
                lambda: {"frames": scale.plan.frames},
                lambda: {"frames": self.simulation().state.frames} if self.data.exists() else None,
                self._simulate,
                next(seconds),
                quiet=0.3,  # workers start, and the force field is compiled
            ),
            Step(
                "training",
                lambda: training_inputs(scale.training, self.data),
                lambda: noted_training(notes(self.model)) if self.model.exists() else None,
                self._train,
                next(seconds),
                stages=(0.1, 0.9),  # frames are read; training
            ),
            Step(
                "sampling",
                self._sample_inputs,
                lambda: noted_samples(self.samples),
                self._sample,
                next(seconds),
            ),
            Step(
                "evaluating",
                lambda: evaluation_inputs(self.model, self.data, samples=scale.samples, seed=self.seed),
                lambda: noted_evaluation(self.metrics),
                self._evaluate,
                next(seconds),
                stages=(1, 1, 1),
            ),
            Step(
                "moving molecules on the flow",
                lambda: self.dynamics().inputs,
                lambda: self.dynamics().found,
                self._move,
                next(seconds),
            ),
            Step(
                "writing the page",
                self._page_inputs,
                self._noted_page,
                self._report,
                next(seconds),
                stages=(1, 1, 1),
            ),
        ]

    def _simulate(self, progress: Progress) -> None:
        self.simulation().run(progress)

    def _train(self, progress: Progress) -> None:
        train_generator(
            self.data,
            self.folder,
            self.scale.training,
            energy=force_field,
            progress=progress,
        )

    def _sample_inputs(self) -> dict[str, Any]:
        return sample_inputs(self.model, self.scale.samples, weights=True, seed=self.seed)

    def _sample(self, progress: Progress) -> None:
        n, workers = self.scale.samples, self.scale.workers
        sample(
            self.model,
            n,
            self.samples,
            weights=True,
            seed=self.seed,
            overwrite=True,
            workers=workers,
            progress=progress,
        )

    def _evaluate(self, progress: Progress) -> None:
        n, workers = self.scale.samples, self.scale.workers
        evaluate(
            self.model, self.data, self.metrics, samples=n, seed=self.seed, workers=workers, progress=progress
        )

    def _move(self, progress: Progress) -> None:
        self.dynamics().run(progress)

    def _page_inputs(self) -> dict[str, Any]:
        shown = {"model": self.model, "metrics": self.metrics, "record": self.dynamics_folder / RECORD}
        files = {name: file_fingerprint(file) for name, file in shown.items()}
        return {**files, "samples": self.scale.samples, "seed": self.seed, "knotflow": __version__}

    def _noted_page(self) -> dict[str, Any] | None:
        if not self.page.exists():
            return None
        *_, note = self.page.read_text(encoding="utf-8").rpartition(NOTE)
        try:
            found: dict[str, Any] = json.loads(note.removesuffix(" -->\n"))
        except ValueError:  # a page of `knotflow report`, or of an earlier version
            return None
        return found

    def _report(self, progress: Progress) -> None:
        system = MolecularSystem.parse(notes(self.model)["molecule"])
        n, workers = self.scale.samples, self.scale.workers
        with force_field(system, evaluations=n, workers=workers) as energy:
            write_report(
                self.model,
                self.data,
                self.page,
                samples=n,
                seed=self.seed,
                energy=energy,
                progress=progress,
            )
        note = f"{NOTE}{json.dumps(self._page_inputs())} -->\n"
        write_atomically(self.page, self.page.read_bytes() + note.encode())


def run(job: Quickstart, progress: Progress = silent) -> int:
    """Do all steps that are not done yet; how many these were.

    Raises:
        ValueError: if the folder holds something else, made with other settings.
        OSError: if a file is damaged, or another process works in the folder.
    """
    if job.folder.exists() and not job.folder.is_dir():
        raise NotADirectoryError(f"--out must be a folder for the results, but {job.folder} is a file.")
    with only_writer(job.folder / "quickstart"):
        return run_steps(job.steps(), progress)
