"""The quickstart: alanine dipeptide from nothing to a page about its Boltzmann generator, in six steps.

A step leaves a result that is complete or absent, and says of which data or model it is. So a step whose
result is there is not done again, and one that was stopped goes on or is repeated.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from knotflow.analysis.evaluation import evaluate as measure
from knotflow.analysis.observations import Progress
from knotflow.dynamics.protocol import DRIFT, RECORD, DynamicsConfig, run_in
from knotflow.dynamics.record import Record
from knotflow.experiments.generator_report import (
    METRICS,
    RUN_MODEL,
    check_tools,
    is_evaluation_of,
    write_report,
)
from knotflow.experiments.motion import frames_of, on_flow
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import fingerprint, notes
from knotflow.flows.sampling import Sampler
from knotflow.journal import only_writer
from knotflow.physics import MolecularSystem, OpenMMEnergy, Simulation, SimulationPlan, TorchForceField, ala2
from knotflow.physics.samples import SampleWriter, read_samples
from knotflow.physics.summary import Average, summarise
from knotflow.report.verdicts import Level, judge
from knotflow.training.logs import read_log
from knotflow.training.molecules import MoleculeTraining, train_generator

Tell = Callable[[float], None]
"""Told which part of a step is done, from 0 to 1."""

PIECE: Final = 1000
"""Samples that are drawn and weighted at a time."""
COMPILING: Final = 0.3
"""Part of the simulation's time, about, that passes before its first report."""
PREPARING: Final = 0.1
"""The same for the training: coordinates and scores of the data, densities of single coordinates."""
AGREE: Final = 2.0
"""Standard errors up to which two numbers count as equal."""


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
    temperatures make four tasks of 48 walkers, three vectors of 16. So few steps of training do not pay for
    compilation, and more of them would learn the frames by heart.
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
        MoleculeTraining(preset="quick", forces=True, epochs=15.0, compile=False, seed=seed),
        samples=5_000,
        dynamics=DynamicsConfig(replicas=4, dt=5e-4, equilibration=0.2, production=0.5, every=10, seed=seed),
        seconds=(110, 100, 5, 25, 60, 30),
    )


def smoke(seed: int = 0) -> Scale:
    """Less than a minute: all parts work, and the numbers mean nothing."""
    return Scale(
        SimulationPlan(
            replicas=1, frames=120, interval=10, equilibration=10, highest_temperature=1000.0, seed=seed
        ),
        MoleculeTraining(preset="quick", forces=True, epochs=2.0, compile=False, seed=seed),
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
    def motion(self) -> Path:
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

    def energy(self) -> OpenMMEnergy:
        """The force field of the molecule."""
        return OpenMMEnergy(MolecularSystem.parse(notes(self.model)["molecule"]), self.scale.workers)


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

    with _followed(job.folder, lambda part: tell(PREPARING + (1 - PREPARING) * part)):
        train_generator(job.data, job.folder, job.scale.training, energy=energy, progress=False)


@contextmanager
def _followed(folder: Path, tell: Tell) -> Iterator[None]:
    """Tell how far the training in a folder is, by what it logs, while the block runs."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(1.0):
            with suppress(OSError, ValueError, LookupError):  # not there yet
                steps = json.loads((folder / "config.json").read_text(encoding="utf-8"))["training"]["steps"]
                tell(read_log(folder / "log.csv")[-1][0] / steps)

    thread = threading.Thread(target=follow, name="follow the training", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_sampled(job: Quickstart) -> bool:
    """Whether there are as many samples of this model."""
    with suppress(OSError, ValueError):
        found = read_samples(job.samples, slice(0)).provenance
        return bool(
            found.get("fingerprint") == fingerprint(job.model) and found["samples"] == job.scale.samples
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
                "fingerprint": fingerprint(job.model),
                "samples": n,
                "seed": job.seed,
                "drawn": sampler.drawn,
                "mirrored": sampler.mirrored,
                "not_finite": sampler.not_finite,
            }
        )


def is_evaluated(job: Quickstart) -> bool:
    """Whether the numbers are of this model and these data."""
    return is_evaluation_of(job.metrics, job.model, job.data)


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
        about.get("model") == fingerprint(job.model) and about["config"] == job.scale.dynamics.plain()
    )


def move(job: Quickstart, tell: Tell) -> None:
    """Let molecules move on the energy of the flow, or go on with it."""
    config = job.scale.dynamics
    setting = on_flow(job.model, config.steps, "off")
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

    def progress(doing: str, done: int, total: int) -> None:
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
        ModuleNotFoundError: if a package is missing, before anything is written.
    """
    check_tools()
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


@dataclass(frozen=True)
class Facts:
    """What came out, as far as the last lines tell of it."""

    metrics: Mapping[str, Any]
    """What the evaluation wrote."""
    drift: Mapping[str, Any]
    """What the dynamics wrote."""
    simulated: Average
    """F(phi > 0) - F(phi < 0) in kT of all frames; infinite if only one side was visited."""


def facts(job: Quickstart) -> Facts:
    """Read them from the files."""
    (left,) = summarise(job.data).left_handed.values()
    metrics, drift = (
        json.loads(file.read_text(encoding="utf-8")) for file in (job.metrics, job.motion / DRIFT)
    )
    return Facts(metrics, drift, side_difference(left))


def side_difference(left: Average) -> Average:
    r"""F(phi > 0) - F(phi < 0) in kT from the fraction p of phi > 0: $\log((1 - p)/p)$."""
    p = left.mean
    if not 0 < p < 1:
        return Average(math.inf if p <= 0 else -math.inf, math.nan)
    return Average(math.log((1 - p) / p), left.error / (p * (1 - p)))


def lines(job: Quickstart, found: Facts) -> dict[str, str]:
    """Five sentences: what was learned, how good it is (two), where to look, and what to do next."""
    about, drift = found.metrics["about"], found.drift
    frames, atoms = about["data"]["frames_in_file"], about["atoms"]
    verdicts = {verdict.subject: verdict for verdict in judge(found.metrics)}
    weights, worth = verdicts["Weights"], verdicts["Efficiency"].sentence
    if weights.level is Level.POOR:
        worth = f"{worth}; {weights.sentence}"
    force = _average(found.metrics["measures"], "force_error_1e4")
    error = f"{force} · 10⁴ (kT/nm)²" if math.isfinite(force.mean) else "not known"
    whole, production = drift["replicas"] - drift["broken"], drift["about"]["config"]["production"]
    return {
        "Learned": f"the Boltzmann distribution of alanine dipeptide at {about['temperature']:g} K, from "
        f"{frames:,} frames of a simulation and the forces on its {atoms} atoms.",
        "Samples": f"{worth}; {_free_energy(found)}.",
        "Forces": f"squared error (FME) {error} on frames not seen in training; {whole} of "
        f"{drift['replicas']} molecules stayed whole for {production:g} ps on the learned energy.",
        "Look at": f"{job.page}, in a browser; {job.samples} has the samples and their weights.",
        "Next": f"`knotflow sample {job.folder} -n 100 --out look.pdb` for a viewer of molecules; "
        "docs/tutorials/first.md has all steps one by one, and says how to make them better.",
    }


def _free_energy(found: Facts) -> str:
    """F(phi > 0) - F(phi < 0) by weighted samples, and by the simulation."""
    residue: Mapping[str, Any] = next(iter(found.metrics["residues"].values()), {})
    ours, theirs = _average(residue, "side_difference_reweighted"), found.simulated
    name = "F(phi>0) - F(phi<0)"
    if not math.isfinite(theirs.mean):
        return f"{name} is not known, as the simulation never changed sides"
    if not math.isfinite(ours.mean):
        return f"{name} is {theirs} kT in the simulation, and not known from samples"
    spread = math.hypot(*(0.0 if math.isnan(part.error) else part.error for part in (ours, theirs)))
    near = abs(ours.mean - theirs.mean) <= AGREE * spread
    verdict = "within error bars" if near else "more apart than error bars explain"
    return f"{name} is {ours} kT reweighted, {theirs} kT in the simulation, {verdict}"


def _average(measures: Mapping[str, Any], key: str) -> Average:
    """Value and error of a measure; NaN for what is missing or, as JSON has it, null."""
    found = (measures.get(key, {}).get(part) for part in ("value", "error"))
    value, error = (math.nan if number is None else float(number) for number in found)
    return Average(value, error)
