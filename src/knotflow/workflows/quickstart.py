"""The quickstart: alanine dipeptide from nothing to a page about its Boltzmann generator, in six steps.

A step leaves a result that is complete or absent, and says of which data or model it is. So a step whose
result is there is not done again, and one that was stopped goes on or is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from knotflow.analysis.evaluation import evaluate as measure
from knotflow.analysis.evaluation import evaluation_inputs, is_evaluation_of
from knotflow.dynamics.protocol import DRIFT, RECORD, run_in
from knotflow.dynamics.record import Record
from knotflow.energies import TorchForceField
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.flows.sampling import Sampler
from knotflow.inputs import file_fingerprint
from knotflow.journal import only_writer
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress
from knotflow.storage.samples import SampleWriter, read_samples
from knotflow.training.molecules import train_generator
from knotflow.training.progress import Progress as TrainingProgress
from knotflow.workflows.dynamics import frames_of, on_flow
from knotflow.workflows.quickstart_job import Quickstart
from knotflow.workflows.report import write_report

Tell = Callable[[float], None]
"""Told which part of a step is done, from 0 to 1."""

PIECE: Final = 1000
"""Samples that are drawn and weighted at a time."""
COMPILING: Final = 0.3
"""Part of the simulation's time, about, that passes before its first report."""
PREPARING: Final = 0.1
"""The same for the training: coordinates and scores of the data, densities of single coordinates."""


@dataclass(frozen=True)
class Step:
    """One of the steps."""

    doing: str
    is_done: Callable[[Quickstart], bool]
    do: Callable[[Quickstart, Tell], None]


def is_simulated(job: Quickstart) -> bool:
    """Whether all frames are there."""
    return job.data.exists() and job.simulation().finished


def simulate(job: Quickstart, tell: Tell) -> None:
    """Simulate what is missing."""
    job.simulation().run(lambda now: tell(COMPILING + (1 - COMPILING) * now.steps / now.all_steps))


def is_trained(job: Quickstart) -> bool:
    """Whether there is a model of this training on these data."""
    if not job.model.exists():
        return False
    made, plan = notes(job.model), job.scale.plan
    same_data = made.get("split", {}).get("frames") == plan.frames * plan.replicas
    return same_data and made.get("choice") == job.scale.training.plain()


def train(job: Quickstart, tell: Tell) -> None:
    """Train, or go on with it."""

    def energy(system: MolecularSystem) -> TorchForceField:
        return TorchForceField(system, compiled=False)

    def told(now: TrainingProgress) -> None:
        tell(PREPARING + (1 - PREPARING) * now.step / now.steps)

    train_generator(job.data, job.folder, job.scale.training, energy=energy, progress=False, told=told)


def is_sampled(job: Quickstart) -> bool:
    """Whether there are as many samples of this model."""
    with suppress(OSError, ValueError):
        found = read_samples(job.samples, slice(0)).provenance
        return bool(
            found.get("fingerprint") == file_fingerprint(job.model) and found["samples"] == job.scale.samples
        )
    return False


def sample(job: Quickstart, tell: Tell) -> None:
    """Draw samples, and weight them by the force field."""
    generator, n = BoltzmannGenerator.load(job.model), job.scale.samples
    sampler = Sampler(generator, job.seed)
    with (
        job.energy() as energy,
        SampleWriter(job.samples, generator.molecule, weights=True, overwrite=True) as writer,
    ):
        for start in range(0, n, PIECE):
            x, log_prob = sampler.take(min(PIECE, n - start))
            writer.write(x, log_prob, energy.energy_and_force(x.double())[0])
            tell((start + len(x)) / n)
        writer.complete(
            {
                "command": "quickstart",
                "model": job.model.name,
                "fingerprint": file_fingerprint(job.model),
                "samples": n,
                "seed": job.seed,
                "drawn": sampler.drawn,
                "mirrored": sampler.mirrored,
                "not_finite": sampler.not_finite,
            }
        )


def is_evaluated(job: Quickstart) -> bool:
    """Whether the numbers are of this model, these data and this many samples."""
    inputs = evaluation_inputs(job.model, job.data, samples=job.scale.samples, seed=job.seed)
    return is_evaluation_of(job.metrics, inputs)


def evaluate(job: Quickstart, tell: Tell) -> None:
    """Compare the model with frames it has not seen, and with the force field."""
    generator, split = BoltzmannGenerator.load(job.model), notes(job.model).get("split")
    with job.energy() as energy:
        found = measure(
            generator,
            job.data,
            energy,
            split=split,
            samples=job.scale.samples,
            seed=job.seed,
            progress=_stages(tell, 3),
        )
    found.write(job.metrics, job.model)


def has_moved(job: Quickstart) -> bool:
    """Whether there is such a dynamics on this model."""
    if not ((job.motion / RECORD).exists() and (job.motion / DRIFT).exists()):
        return False
    about = Record.load(job.motion / RECORD).about
    return bool(
        about.get("model") == file_fingerprint(job.model) and about["config"] == job.scale.dynamics.plain()
    )


def move(job: Quickstart, tell: Tell) -> None:
    """Let molecules move on the energy of the flow, or go on with it."""
    config = job.scale.dynamics
    setting = on_flow(job.model)
    split = notes(job.model).get("split")
    frames = frames_of(job.data, setting.system, config.replicas, seed=config.seed, split=split)
    run_in(
        job.motion,
        setting.energy,
        setting.system,
        frames,
        config,
        progress=lambda done, steps, _: tell(done / steps),
        about=setting.about,
    )


def is_reported(job: Quickstart) -> bool:
    """Whether the page is younger than all it shows."""
    shown = (job.model, job.metrics, job.motion / RECORD)
    return job.page.exists() and all(file.stat().st_mtime <= job.page.stat().st_mtime for file in shown)


def report(job: Quickstart, tell: Tell) -> None:
    """Write the page."""
    with job.energy() as energy:
        write_report(
            job.model,
            energy,
            job.page,
            data=job.data,
            samples=job.scale.samples,
            seed=job.seed,
            progress=_stages(tell, 3),
        )


def _stages(tell: Tell, n: int) -> Progress:
    """Progress of n stages, which take about as long as each other."""
    seen: list[str] = []

    def progress(doing: str, done: float, total: float, note: str = "") -> None:
        if doing not in seen:
            seen.append(doing)
        tell(min(1.0, (seen.index(doing) + done / max(1, total)) / n))

    return progress


STEPS: Final = (
    Step("simulating", is_simulated, simulate),
    Step("training", is_trained, train),
    Step("sampling", is_sampled, sample),
    Step("evaluating", is_evaluated, evaluate),
    Step("moving molecules on the flow", has_moved, move),
    Step("writing the page", is_reported, report),
)


class Watcher(Protocol):
    """Told what happens."""

    def begin(self, number: int) -> None:
        """Step `number`, from 0, begins."""

    def tell(self, part: float) -> None:
        """A part of it, from 0 to 1, is done."""

    def end(self, number: int) -> None:
        """It is done, now or earlier."""


def run(job: Quickstart, watcher: Watcher) -> int:
    """Do all steps that are not done yet; how many these were.

    Raises:
        ValueError: if the folder holds something else, made with other settings.
        OSError: if a file is damaged, or another process works in the folder.
    """
    if job.folder.exists() and not job.folder.is_dir():
        raise NotADirectoryError(f"--out must be a folder for the results, but {job.folder} is a file.")
    made = 0
    with only_writer(job.folder / "quickstart"):
        for number, step in enumerate(STEPS):
            if not step.is_done(job):
                watcher.begin(number)
                step.do(job, watcher.tell)
                made += 1
            watcher.end(number)
    return made
