"""From a molecule to an answer: simulation, training, samples, evaluation, exact chains if needed, a page.

Every stage gets a share of the time that is left. How much it can do in it is measured when it begins, and
noted in ``plan.json``. The result of a stage is complete or absent, and notes its inputs. So a finished stage
is skipped, and an interrupted one is continued or repeated, with the same amounts.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from knotflow.analysis.evaluation import evaluation_inputs, noted_evaluation
from knotflow.dynamics.chain_run import ExactPlan, open_run
from knotflow.energies import TorchForceField, force_field
from knotflow.energies.speed import evaluations_per_second
from knotflow.files import only_writer, read_json, write_atomically
from knotflow.flows.io import notes
from knotflow.inputs import file_fingerprint, refuse_others, refuse_strangers
from knotflow.json_values import parse_json
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.resources import check_time
from knotflow.simulation import Simulation, SimulationPlan
from knotflow.simulation.engines import EngineName, engine_of
from knotflow.storage import trajectory
from knotflow.training.cycles import most_cycles, relative_length
from knotflow.training.molecules import MoleculeTraining, prepare, train_generator
from knotflow.training.refinement import evaluations
from knotflow.version import __version__
from knotflow.workflows.evaluation import evaluate
from knotflow.workflows.report import METRICS, RUN_MODEL, write_report
from knotflow.workflows.run_plan import SHARES, Amounts, Plan, PlanFile
from knotflow.workflows.sampling import noted_samples, sample, sample_inputs
from knotflow.workflows.steps import Step, run_steps
from knotflow.workflows.training import noted_training, training_inputs

LADDERS: Final = {"torch": 24, "module": 24, "openmm": 8}
"""Ladders of a simulation, by engine. Other energies are slow: two ladders of four temperatures."""
FIRST_FRAMES: Final = 40
"""Frames of each ladder after which the speed of a simulation is known."""
FEWEST_FRAMES: Final = 800
"""Frames of all ladders and temperatures below which nothing can be learned."""
HOPELESS: Final = 5.0
"""A simulation that is expected to take so many times its share of the time is not begun."""
MOST_FRAMES: Final = 500_000
"""Frames of all temperatures above which more hardly help, but fill memory."""
STEPS: Final = (500, 16_000)
"""Fewest and most steps of the training; the refinement adds more."""
ENOUGH_STEPS: Final = 2500
"""Steps of the training below which it is better to leave out a cycle of the refinement."""
PASSES: Final = 15
"""Passes through the frames after which a flow begins to memorise them."""
SAMPLES: Final = (1_000, 100_000)
"""Fewest and most samples."""
ROWS: Final = (20, 400)
"""Fewest and most states kept of each exact chain."""
GOOD_SHARE: Final = 0.3
GOOD_K: Final = 0.7
"""With a smaller effective sample size, or a larger Pareto k, weights are not trusted: chains are run."""
SMALL: Final = 30
"""Atoms up to which ladders reach 1,000 K. Larger molecules need more rungs: theirs end at 700 K."""
NOTE: Final = "\n<!-- inputs: "
"""Start of the last line of the page, which notes the inputs of the page."""


@dataclass(frozen=True)
class Run:
    """A molecule, a folder and the time for it.

    The folder is that of a training run: all commands on trained models take it.
    """

    folder: Path
    system: MolecularSystem
    hours: float = 2.0
    seed: int = 0
    given: Amounts = field(default_factory=Amounts)
    """Amounts that are not to be decided."""
    quick: bool = False
    """Plain dynamics and the preset quick, without refinement: to see that all parts work."""

    @property
    def data(self) -> Path:
        """The simulation."""
        return self.folder / "data.h5"

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
    def chains(self) -> Path:
        """The exact chains, if there are any."""
        return self.folder / "exact.h5"

    @property
    def page(self) -> Path:
        """The page."""
        return self.folder / "report.html"

    @cached_property
    def plan(self) -> PlanFile:
        """The plan, and the amounts that were decided so far."""
        about = {"molecule": self.system.name, "temperature": self.system.temperature}
        asked = Plan.parse({**about, "hours": self.hours, "seed": self.seed})
        return PlanFile(self.folder / "plan.json", asked, self.given)

    def check(self) -> None:
        """Refuse a folder of something else, or a time that is far too short, before anything is written."""
        files = [file for stage in SHARES for file in self._files(stage)]
        refuse_strangers(self.plan.path, "a run", files)
        found, asked = self.plan.noted().inputs, self.plan.asked.inputs
        undecided = self.plan.amounts().frames is None
        if undecided:  # it was stopped within its first frames: it may have another time
            found["hours"] = self.hours
        refuse_others(self.folder, "a run", found, asked)
        if undecided and not self.data.exists():
            self._refuse_hopeless()

    def claim(self) -> None:
        """Note the settings, which `check` has found to be possible here."""
        if self.plan.noted().hours != self.hours:
            self.again("simulate")
        self.plan.note(hours=self.hours, amounts=self.plan.amounts())

    def again(self, stage: str) -> None:
        """Remove the results of a stage and of all stages after it, to make them anew."""
        stages = list(SHARES)
        redone = stages[stages.index(stage) :]
        for name in redone:
            for file in self._files(name):
                shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        self.plan.undecide(redone)

    def _files(self, stage: str) -> list[Path]:
        """Everything that a stage writes."""
        ladder = trajectory.ladder_file(self.data)
        # The last one tells that the others are of a training, also if this is interrupted.
        run = ("last.ckpt", "log.csv", "split.json", "initial.safetensors", "refinement", "config.json")
        made = {
            "simulate": [self.data, self.data.with_name(f"{self.data.name}.state"), ladder],
            "train": [
                self.model,
                self.folder / "temperatures.safetensors",
                self.folder / "tensorboard",
                *(self.folder / name for name in run),
            ],
            "sample": [self.samples],
            "evaluate": [self.metrics],
            "exact": [self.chains, self.chains.with_name(f"{self.chains.name}.state")],
            "report": [self.page],
        }
        return made[stage]

    def simulation(self, frames: int) -> Simulation:
        """The simulation, new, interrupted or finished; refuses a file of another plan."""
        if self.quick:
            few = {"replicas": 1, "frames": frames, "interval": 10, "equilibration": 10, "seed": self.seed}
            return Simulation(self.data, self.system, SimulationPlan.parse(few), 1)
        engine = self._engine()
        short = self.hours < 1
        plan = {
            "engine": engine,
            "method": "tempering",
            "replicas": LADDERS.get(engine, 2),
            "frames": frames,
            "interval": 100 if short else 250,
            "equilibration": 5_000 if short else 20_000,
            "highest_temperature": 1000.0 if self.system.n_atoms <= SMALL else 700.0,
            "seed": self.seed,
        }
        if engine not in LADDERS:
            plan |= {"rungs": 4, "interval": 20 if short else 50, "equilibration": 1_000 if short else 5_000}
        return Simulation(self.data, self.system, SimulationPlan.parse(plan))

    def _engine(self) -> EngineName:
        """The fastest engine that knows the energy."""
        if self.system.energy is None and isinstance(force_field(self.system), TorchForceField):
            return "torch"
        return engine_of(self.system)

    def simulate(self, progress: Progress) -> None:
        """Simulate for the time of this stage."""
        if self.plan.amounts().frames is None:
            began, first = time.perf_counter(), self.simulation(FIRST_FRAMES)
            clock = _Clock(progress)
            first.run(clock)
            left = self.plan.seconds("simulate") - (time.perf_counter() - began)
            walkers, interval = first.walkers, first.plan.interval
            more = int(left * clock.rate / (walkers * interval)) if clock.rate else 0
            frames = min(first.state.frames + max(0, more), MOST_FRAMES // walkers)
            found = frames * walkers
            if found < FEWEST_FRAMES:
                needed = self.hours * FEWEST_FRAMES / max(1, found)
                raise ValueError(self._too_short("simulation", f"{found} frames", needed))
            self.plan.decide(frames=frames)
        self.simulation(self.plan.decided("frames")).run(progress)

    def _refuse_hopeless(self) -> None:
        """Refuse a time that is far too short, before anything is simulated."""
        walkers = self.simulation(FIRST_FRAMES).walkers
        shortest = self.simulation(max(FIRST_FRAMES, math.ceil(FEWEST_FRAMES / walkers)))
        if shortest.seconds_per_step is not None:
            left, needed = self.plan.seconds("simulate"), shortest.steps * shortest.seconds_per_step
            if needed > HOPELESS * left:
                few = f"{100 * left / needed:.2g} % of the shortest one"
                raise ValueError(self._too_short("simulation", few, self.hours * needed / left))

    def choice(self) -> MoleculeTraining:
        """The settings of the training."""
        amounts = self.plan.amounts()
        if self.quick:
            return MoleculeTraining(preset="quick", forces=True, steps=amounts.steps, seed=self.seed)
        return MoleculeTraining(steps=amounts.steps, refine=amounts.refine, seed=self.seed)

    def train(self, progress: Progress) -> None:
        """Train and refine for the time of this stage."""
        until = time.time() + self.plan.left("train")
        if self.plan.amounts().steps is None:
            progress("timing a step of the training", 0, 0)
            steps, refine = self._training_plan()
            self.plan.decide(steps=steps, refine=refine)
        choice = self.choice()
        train_generator(self.data, self.folder, choice, energy=force_field, until=until, progress=progress)

    def _training_plan(self) -> tuple[int, bool]:
        """Steps of the training that leave time for a refinement, and whether there is time for one.

        As many cycles of the refinement, the first half as long as the training, as leave the training enough
        steps. The refinement then takes what time is left, also that of a training that must end early, not
        to memorise few frames.
        """
        ready = prepare(self.data, self.choice(), folder=self.folder)
        step, batch = ready.seconds_per_step(), ready.training.batch_size
        enough = math.ceil(PASSES * ready.steps_in_a_pass)
        coordinates = ready.flow.dim
        del ready  # with its frames on the disk
        seconds, (fewest, most) = self.plan.seconds("train"), (min(limit, enough) for limit in STEPS)
        with force_field(self.system) as energy:
            energy.expect(evaluations(seconds / step, batch))
            rate = evaluations_per_second(energy, self.system.positions)
        refining = step + evaluations(1, batch) / rate
        for cycles in range(most_cycles(coordinates), 0, -1):
            steps = min(int(seconds / (step + relative_length(cycles) / 2 * refining)), most)
            if steps >= (min(ENOUGH_STEPS, most) if cycles > 1 else fewest):
                return steps, True
        steps = min(int(seconds / step), most)
        if steps < fewest:
            hours = self.hours * fewest / max(1, steps)
            raise ValueError(self._too_short("training", f"{steps} steps", hours))
        return steps, False

    def sample(self, progress: Progress) -> None:
        """Draw as many samples as can be weighted in the time of this stage."""
        if self.plan.amounts().samples is None:
            with force_field(self.system, evaluations=SAMPLES[0]) as energy:
                rate = evaluations_per_second(energy, self.system.positions)
            thousands, (fewest, most) = int(self.plan.seconds("sample") * rate / 1000), SAMPLES
            self.plan.decide(samples=max(fewest, min(most, 1000 * thousands)))
        sample(self.model, out=self.samples, **self._drawing(), overwrite=True, progress=progress)

    def exact(self, progress: Progress) -> None:
        """Run exact chains, unless the weights are good enough."""
        if self.plan.amounts().rows is None:
            self.plan.decide(rows=self._rows())
        plan = self._chain_plan(max(1, self.plan.decided("rows")))
        if self.plan.decided("rows"):
            with force_field(self.system, evaluations=plan.evaluations) as energy:
                open_run(self.chains, self.model, plan).run(energy, progress)
            self.evaluate(progress)  # with states of the chains beside the others

    def evaluate(self, progress: Progress) -> None:
        """Compare the model with held-out frames and with the energy."""
        evaluate(self.model, self.data, self.metrics, **self._measuring(), progress=progress)

    def _rows(self) -> int:
        """States of each chain for which there is time; 0 if weights can be trusted."""
        measures = read_json(self.metrics, "measures")["measures"]
        # Of all weights: clipping hides a single sample of a state that the flow hardly knows.
        share, k = (measures.get(name, {}).get("value") for name in ("ess", "pareto_k"))
        if share is not None and k is not None and share >= GOOD_SHARE and k <= GOOD_K:
            return 0
        if self.quick:
            return 1
        one = self._chain_plan(1)
        with force_field(self.system) as energy:
            rate = evaluations_per_second(energy, self.system.positions)
        row = self._chain_plan(2).evaluations - one.evaluations
        rows = int((self.plan.seconds("exact") * rate - one.evaluations) / row)
        fewest, most = ROWS
        return min(most, rows) if rows >= fewest else 0

    def _chain_plan(self, rows: int) -> ExactPlan:
        return ExactPlan.parse({"rows": rows, "seed": self.seed})

    def _drawing(self) -> dict[str, Any]:
        return {"n": self.plan.decided("samples"), "weights": True, "seed": self.seed}

    def _measuring(self) -> dict[str, Any]:
        return {"samples": self.plan.decided("samples"), "seed": self.seed}

    def _too_short(self, stage: str, found: str, hours: float) -> str:
        return (
            f"{self.hours:g} hours are too short for the {stage}: there is time for {found} only; give it at "
            f"least --hours {math.ceil(100 * hours) / 100:g}."
        )

    def steps(self) -> list[Step]:
        """All stages, in order."""

        def write_page(progress: Progress) -> None:
            write_report(self.model, self.data, self.page, **self._measuring(), progress=progress)
            note = f"{NOTE}{json.dumps(self.page_inputs())} -->\n"
            write_atomically(self.page, self.page.read_bytes() + note.encode())

        def simulated() -> dict[str, Any] | None:
            frames = self.plan.amounts().frames
            if frames is None or not self.data.exists():
                return None
            return {"frames": self.simulation(frames).state.frames}

        def chained() -> dict[str, Any] | None:
            rows = self.plan.amounts().rows
            if rows is None or (rows and not self.chains.exists()):
                return None
            done = open_run(self.chains, self.model, self._chain_plan(rows)) if rows else None
            return {"rows": rows if done is None or done.finished else -1}

        stages: dict[str, tuple[str, Callable[[], Any], Callable[[], Any], Callable[[Progress], Any]]] = {
            "simulate": (
                "simulating",
                lambda: {"frames": self.plan.amounts().frames},
                simulated,
                self.simulate,
            ),
            "train": (
                "training",
                lambda: training_inputs(self.choice(), self.data),
                lambda: noted_training(notes(self.model)) if self._trained() else None,
                self.train,
            ),
            "sample": (
                "sampling",
                lambda: sample_inputs(self.model, **self._drawing()),
                lambda: noted_samples(self.samples),
                self.sample,
            ),
            "evaluate": (
                "evaluating",
                lambda: evaluation_inputs(self.model, self.data, **self._measuring()),
                lambda: noted_evaluation(self.metrics),
                self.evaluate,
            ),
            "exact": ("exact chains", lambda: {"rows": self.plan.amounts().rows}, chained, self.exact),
            "report": ("writing the page", self.page_inputs, self.noted_page, write_page),
        }
        several = {
            "simulate": (0.2, 0.8),  # to measure its speed; the rest
            "train": (0.05, 0.25, 0.1, 0.2, 0.4),
            "evaluate": (1.0, 1.0, 1.0),
            "report": (1.0, 1.0, 1.0),
        }
        return [
            Step(
                doing,
                inputs,
                noted,
                self.plan.timed(name, work),
                seconds=3600 * self.hours * SHARES[name],
                stages=several.get(name, (1.0,)),
            )
            for name, (doing, inputs, noted, work) in stages.items()
        ]

    def _trained(self) -> bool:
        """Whether the training is over, the refinement included."""
        if self.plan.amounts().steps is None or not self.model.exists():
            return False
        return self.quick or not self.plan.amounts().refine or "refinement" in notes(self.model)

    def page_inputs(self) -> dict[str, Any]:
        """Everything that the page depends on."""
        shown = {"model": self.model, "metrics": self.metrics}
        files = {name: file_fingerprint(file) for name, file in shown.items()}
        return {**files, **self._measuring(), "knotflow": __version__}

    def noted_page(self) -> dict[str, Any] | None:
        """The inputs that the page notes; None if there is no page, or it was written by another command."""
        if not self.page.exists():
            return None
        try:
            *_, note = self.page.read_text(encoding="utf-8").rpartition(NOTE)
            found: dict[str, Any] = parse_json(note.removesuffix(" -->\n"))
        except ValueError:  # a page of `knotflow report`, or of an earlier version
            return None
        return found


class _Clock:
    """Passes progress on, and measures the speed of the last half of what it sees."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.seen: list[tuple[float, float]] = []

    def __call__(self, doing: str, done: float, total: float, note: str = "") -> None:
        if doing == "sampling":
            self.seen.append((time.perf_counter(), done))
        self.progress(doing, done, total, note)

    @property
    def rate(self) -> float:
        """Steps a second; 0 if unknown."""
        if len(self.seen) < 2:
            return 0.0
        (t0, first), (t1, last) = self.seen[len(self.seen) // 2 - 1], self.seen[-1]
        return (last - first) / max(t1 - t0, 1e-9)


def complete(job: Run, progress: Progress = silent, again: str | None = None) -> int:
    """Run all stages that are not done yet, and return their number.

    Args:
        job: The molecule, the folder and the time.
        progress: Called with the expected seconds of work done, of all stages together.
        again: A stage to be done again, with all that follow.

    Raises:
        ValueError: if the folder holds results of other settings, or the time is too short.
        OSError: if a file is damaged, or another process works in the folder.
    """
    if not 0 < job.hours < math.inf:
        raise ValueError(f"hours must be a positive number, got {job.hours:g}.")
    check_time("a run of these hours", 3600 * job.hours)
    if job.folder.exists() and not job.folder.is_dir():
        raise NotADirectoryError(f"--out must be a folder for the results, but {job.folder} is a file.")
    if again is not None and again not in SHARES:
        raise ValueError(f"the stage to do again must be one of {', '.join(SHARES)}, got {again!r}.")
    if again is not None and not job.plan.path.exists():
        raise ValueError(
            f"there is no run in {job.folder} yet, so no stage can be done again; leave out --again."
        )
    job.check()
    with only_writer(job.folder / "run"):
        job.claim()
        if again is not None:
            job.again(again)
        return run_steps(job.steps(), progress)
