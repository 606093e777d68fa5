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
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from knotflow.analysis.evaluation import evaluation_inputs, noted_evaluation
from knotflow.config import Config
from knotflow.dynamics.chain_run import ExactPlan, open_run
from knotflow.energies import MolecularEnergy, TorchForceField, force_field
from knotflow.energies.speed import evaluations_per_second
from knotflow.errors import ConfigError
from knotflow.files import only_writer, read_json, write_atomically, write_json
from knotflow.flows.io import notes
from knotflow.inputs import file_fingerprint, refuse_others, refuse_strangers
from knotflow.json_values import parse_json
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.resources import check_time
from knotflow.simulation import Simulation, SimulationPlan
from knotflow.simulation.engines import EngineName, engine_of
from knotflow.storage import trajectory
from knotflow.training.molecules import MoleculeTraining, prepare, train_generator
from knotflow.training.refinement import EVALUATIONS, evaluations, most_cycles, relative_length
from knotflow.version import __version__
from knotflow.workflows.evaluation import evaluate
from knotflow.workflows.report import METRICS, RUN_MODEL, write_report
from knotflow.workflows.sampling import noted_samples, sample, sample_inputs
from knotflow.workflows.steps import Step, run_steps
from knotflow.workflows.training import noted_training, training_inputs

SHARES: Final = {
    "simulate": 0.3,
    "train": 0.45,
    "sample": 0.03,
    "evaluate": 0.05,
    "exact": 0.12,
    "report": 0.05,
}
"""Shares of the time, by stage; time that a stage does not need goes to those after it."""
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

Count = Annotated[int, Field(ge=0)]


class Amounts(Config):
    """How much work each stage does; None: to be decided when it begins."""

    frames: Count | None = None
    """Frames of each ladder."""
    steps: Count | None = None
    """Steps of the training."""
    refine: bool = True
    """Whether the energy is fast enough for the refinement."""
    first_cycle: Count | None = None
    """Steps of the first cycle of the refinement."""
    cycles: Count | None = None
    """Largest number of cycles."""
    samples: Count | None = None
    rows: Count | None = None
    """States of each exact chain; 0: the weights are good enough without chains."""


class Plan(Config):
    """What ``plan.json`` holds: the settings of a run, the amounts decided so far, and the time spent."""

    molecule: str
    temperature: float
    hours: float
    seed: int
    amounts: Amounts = Amounts()
    spent: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Seconds that each stage has taken so far."""

    @property
    def inputs(self) -> dict[str, Any]:
        """The settings."""
        return self.model_dump(exclude={"amounts", "spent"})


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

    @property
    def plan(self) -> Path:
        """The amounts that were decided."""
        return self.folder / "plan.json"

    def noted(self) -> Plan:
        """The plan so far."""
        if not self.plan.exists():
            return self._asked()
        try:
            return Plan.parse(read_json(self.plan))
        except ValueError as error:
            raise ConfigError(
                f"{self.plan} is not the plan of a run, or is damaged ({error}); what is beside it is for "
                "other commands, choose another --out for a new run."
            ) from None

    def _asked(self) -> Plan:
        """The plan before anything is decided."""
        about = {"molecule": self.system.name, "temperature": self.system.temperature}
        return Plan.parse({**about, "hours": self.hours, "seed": self.seed})

    def note(self, **parts: Any) -> None:
        """Change parts of the plan."""
        write_json(self.plan, self.noted().model_copy(update=parts).plain())

    def amounts(self) -> Amounts:
        """The amounts so far."""
        return self.noted().amounts.model_copy(update=self.given.model_dump(exclude_unset=True))

    def decide(self, **amounts: Any) -> None:
        """Note amounts; None: they are to be decided again."""
        self.note(amounts=self.amounts().model_copy(update=amounts))

    def _timed(self, stage: str, work: Callable[[Progress], Any]) -> Callable[[Progress], None]:
        """The work of a stage, its time noted also if it is interrupted."""

        def timed(progress: Progress) -> None:
            began = time.perf_counter()
            try:
                work(progress)
            finally:
                spent = self.noted().spent
                self.note(spent={**spent, stage: spent.get(stage, 0.0) + time.perf_counter() - began})

        return timed

    def check(self) -> None:
        """Refuse a folder of something else, or a time that is far too short, before anything is written."""
        refuse_strangers(self.plan, "a run", [file for stage in SHARES for file in self._files(stage)])
        found, asked = self.noted().inputs, self._asked().inputs
        undecided = self.amounts().frames is None
        if undecided:  # it was stopped within its first frames: it may have another time
            found["hours"] = self.hours
        refuse_others(self.folder, "a run", found, asked)
        if undecided and not self.data.exists():
            self._refuse_hopeless()

    def claim(self) -> None:
        """Note the settings, which `check` has found to be possible here."""
        if self.noted().hours != self.hours:
            self.again("simulate")
        self.note(hours=self.hours, amounts=self.amounts())

    def seconds(self, stage: str) -> float:
        """The time for a stage: its share of what those before it have left, at least half of its own."""
        stages = list(SHARES)
        before, after = stages[: stages.index(stage)], stages[stages.index(stage) :]
        all_time, spent = 3600 * self.hours, self.noted().spent
        left = all_time - sum(spent.get(name, all_time * SHARES[name]) for name in before)
        own = SHARES[stage]
        return max(left * own / sum(SHARES[name] for name in after), all_time * own / 2)

    def again(self, stage: str) -> None:
        """Remove the results of a stage and of all stages after it, to make them anew."""
        stages = list(SHARES)
        redone = stages[stages.index(stage) :]
        for name in redone:
            for file in self._files(name):
                shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
            self.decide(**{amount: None for amount in _DECIDED[name]})
        spent = {name: seconds for name, seconds in self.noted().spent.items() if name not in redone}
        self.note(spent=spent)

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
        amounts = self.amounts()
        if amounts.frames is None:
            began, first = time.perf_counter(), self.simulation(FIRST_FRAMES)
            clock = _Clock(progress)
            first.run(clock)
            left = self.seconds("simulate") - (time.perf_counter() - began)
            walkers, interval = first.walkers, first.plan.interval
            more = int(left * clock.rate / (walkers * interval)) if clock.rate else 0
            frames = min(first.state.frames + max(0, more), MOST_FRAMES // walkers)
            found = frames * walkers
            if found < FEWEST_FRAMES:
                needed = self.hours * FEWEST_FRAMES / max(1, found)
                raise ValueError(self._too_short("simulation", f"{found} frames", needed))
            self.decide(frames=frames)
        self.simulation(self._decided("frames")).run(progress)

    def _refuse_hopeless(self) -> None:
        """Refuse a time that is far too short, before anything is simulated."""
        walkers = self.simulation(FIRST_FRAMES).walkers
        shortest = self.simulation(max(FIRST_FRAMES, math.ceil(FEWEST_FRAMES / walkers)))
        if shortest.seconds_per_step is not None:
            left, needed = self.seconds("simulate"), shortest.steps * shortest.seconds_per_step
            if needed > HOPELESS * left:
                few = f"{100 * left / needed:.2g} % of the shortest one"
                raise ValueError(self._too_short("simulation", few, self.hours * needed / left))

    def choice(self) -> MoleculeTraining:
        """The settings of the training."""
        amounts = self.amounts()
        if self.quick:
            return MoleculeTraining(preset="quick", forces=True, steps=amounts.steps, seed=self.seed)
        parts = amounts.model_dump(include={"steps", "refine", "first_cycle", "cycles"})
        return MoleculeTraining(**parts, seed=self.seed)

    def train(self, progress: Progress) -> None:
        """Train and refine for the time of this stage."""
        if self.amounts().steps is None:
            progress("timing a step of the training", 0, 0)
            ready = prepare(self.data, self.choice(), folder=self.folder)
            step, batch = ready.seconds_per_step(), ready.training.batch_size
            enough = math.ceil(PASSES * ready.steps_in_a_pass)
            with force_field(self.system) as energy:
                decided = self._timed_plan(step, batch, enough, energy)
                if decided["refine"]:
                    # Compiled for so many evaluations, it may be faster, so that there is time for more.
                    energy.expect(evaluations(decided["first_cycle"], decided["cycles"], batch))
                    decided = self._timed_plan(step, batch, enough, energy)
            del ready  # with its frames on the disk
            if decided["steps"] < min(STEPS[0], enough):
                hours = self.hours * min(STEPS[0], enough) / max(1, decided["steps"])
                raise ValueError(self._too_short("training", f"{decided['steps']} steps", hours))
            self.decide(**decided)
        train_generator(self.data, self.folder, self.choice(), energy=force_field, progress=progress)

    def _timed_plan(self, step: float, batch: int, enough: int, energy: MolecularEnergy) -> dict[str, Any]:
        """`_training_plan` for batches of this size, with the energy as fast as it is now."""
        rate = evaluations_per_second(energy, self.system.positions)
        return self._training_plan(step, step + EVALUATIONS * batch / rate, enough)

    def _training_plan(self, step: float, refining_step: float, enough: int) -> dict[str, Any]:
        """Steps of training and refinement that fit into the time.

        As many cycles of the refinement as leave the training its share. A training that must end early, not
        to memorise few frames, leaves its time to the refinement.

        Args:
            step: Seconds for a step of the training.
            refining_step: Seconds for a step of the refinement, its energies included.
            enough: Steps after which the training memorises.
        """
        seconds, (fewest, most) = self.seconds("train"), (min(limit, enough) for limit in STEPS)
        for cycles in range(most_cycles(3 * self.system.n_atoms - 6), 0, -1):
            length = relative_length(cycles)
            # The first cycle has half as many steps as the training, unless that had to end early.
            steps = min(int(seconds / (step + length / 2 * refining_step)), most)
            if steps >= (min(ENOUGH_STEPS, most) if cycles > 1 else fewest):
                left = (seconds - steps * step) / (length * refining_step)
                first = max(1, min(int(left), STEPS[1] // 2))
                return {"steps": steps, "refine": True, "first_cycle": first, "cycles": cycles}
        return {"steps": min(int(seconds / step), most), "refine": False}

    def sample(self, progress: Progress) -> None:
        """Draw as many samples as can be weighted in the time of this stage."""
        if self.amounts().samples is None:
            with force_field(self.system, evaluations=SAMPLES[0]) as energy:
                rate = evaluations_per_second(energy, self.system.positions)
            fewest, most = SAMPLES
            self.decide(samples=max(fewest, min(most, int(self.seconds("sample") * rate / 1000) * 1000)))
        sample(self.model, out=self.samples, **self._drawing(), overwrite=True, progress=progress)

    def exact(self, progress: Progress) -> None:
        """Run exact chains, unless the weights are good enough."""
        if self.amounts().rows is None:
            self.decide(rows=self._rows())
        plan = self._chain_plan(max(1, self._decided("rows")))
        if self._decided("rows"):
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
        rows = int((self.seconds("exact") * rate - one.evaluations) / row)
        fewest, most = ROWS
        return min(most, rows) if rows >= fewest else 0

    def _chain_plan(self, rows: int) -> ExactPlan:
        return ExactPlan.parse({"rows": rows, "seed": self.seed})

    def _drawing(self) -> dict[str, Any]:
        return {"n": self._decided("samples"), "weights": True, "seed": self.seed}

    def _measuring(self) -> dict[str, Any]:
        return {"samples": self._decided("samples"), "seed": self.seed}

    def _decided(self, amount: str) -> int:
        return int(getattr(self.amounts(), amount) or 0)

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
            frames = self.amounts().frames
            if frames is None or not self.data.exists():
                return None
            return {"frames": self.simulation(frames).state.frames}

        def chained() -> dict[str, Any] | None:
            rows = self.amounts().rows
            if rows is None or (rows and not self.chains.exists()):
                return None
            done = open_run(self.chains, self.model, self._chain_plan(rows)) if rows else None
            return {"rows": rows if done is None or done.finished else -1}

        stages: dict[str, tuple[str, Callable[[], Any], Callable[[], Any], Callable[[Progress], Any]]] = {
            "simulate": ("simulating", lambda: {"frames": self.amounts().frames}, simulated, self.simulate),
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
            "exact": ("exact chains", lambda: {"rows": self.amounts().rows}, chained, self.exact),
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
                self._timed(name, work),
                seconds=3600 * self.hours * SHARES[name],
                stages=several.get(name, (1.0,)),
            )
            for name, (doing, inputs, noted, work) in stages.items()
        ]

    def _trained(self) -> bool:
        """Whether the training is over, the refinement included."""
        if self.amounts().steps is None or not self.model.exists():
            return False
        return self.quick or not self.amounts().refine or "refinement" in notes(self.model)

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


_DECIDED: Final[dict[str, tuple[str, ...]]] = {
    "simulate": ("frames",),
    "train": ("steps", "first_cycle", "cycles"),
    "sample": ("samples",),
    "evaluate": (),
    "exact": ("rows",),
    "report": (),
}
"""Amounts that each stage decides."""


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
    if again is not None and not job.plan.exists():
        raise ValueError(
            f"there is no run in {job.folder} yet, so no stage can be done again; leave out --again."
        )
    job.check()
    with only_writer(job.folder / "run"):
        job.claim()
        if again is not None:
            job.again(again)
        return run_steps(job.steps(), progress)
