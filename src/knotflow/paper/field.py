"""A benchmark beside the field: Boltzmann generators of peptides from nothing but the molecule.

For each molecule: a tempering simulation, training, exact chains where they are cheap, and measures of many
weighted samples, with everything that they cost. Every step resumes or is skipped if its result is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from knotflow.analysis.evaluation import evaluation_inputs, noted_evaluation
from knotflow.dynamics.chain_run import ExactPlan, open_run
from knotflow.energies import force_field
from knotflow.files import only_writer
from knotflow.flows.io import notes
from knotflow.inputs import refuse_others
from knotflow.molecules import MolecularSystem, ala2, peptide
from knotflow.paper.costs import Meter, spent
from knotflow.paper.field_torsions import torsional
from knotflow.progress import Progress, silent, titled
from knotflow.simulation import Simulation, SimulationPlan
from knotflow.storage.observables import read_observables
from knotflow.training.molecules import MoleculeTraining, train_generator
from knotflow.workflows.evaluation import evaluate
from knotflow.workflows.models import energy_of
from knotflow.workflows.steps import Say, Step, run_steps
from knotflow.workflows.training import noted_training, training_inputs

DATA, MODEL, CHAINS, METRICS, COSTS = (
    "simulation.h5", "model.safetensors", "chains.h5", "measures.json", "costs.json",
)  # fmt: skip
"""Files in the folder of a molecule."""


@dataclass(frozen=True)
class System:
    """A molecule of the benchmark."""

    make: Callable[[], MolecularSystem]
    title: str
    force_field: str
    frames: int
    """Frames of each replica at the scale full."""
    hours: float
    """What the scale full is meant to take on two cores."""
    chains: bool = False
    """Whether exact chains are cheap enough."""


SYSTEMS: Final = {
    "ala2": System(
        ala2, "alanine dipeptide", "ff99SB-ILDN + OBC II", frames=3000, hours=3, chains=True
    ),
    "ala2-ff96": System(
        lambda: peptide("A", ["amber96.xml"]),
        "alanine dipeptide",
        "ff96 + OBC II",
        frames=3000,
        hours=3,
        chains=True,
    ),
    "AAA": System(
        lambda: peptide("AAA"), "alanine tetrapeptide, ACE-AAA-NME", "ff99SB-ILDN + OBC II", 2000, hours=6
    ),
    "AAAAA": System(
        lambda: peptide("AAAAA"), "alanine hexapeptide, ACE-AAAAA-NME", "ff99SB-ILDN + OBC II", 1600, hours=12
    ),
}  # fmt: skip


@cache
def molecule(name: str) -> MolecularSystem:
    """A molecule of `SYSTEMS`."""
    return SYSTEMS[name].make()


@dataclass(frozen=True)
class Scale:
    """Amount of work for a molecule."""

    plan: SimulationPlan
    """How to simulate; at the scale full, ``frames`` is that of the molecule."""
    training: MoleculeTraining
    """How to train; ``refine`` says whether to go on with the energy."""
    samples: int
    """Weighted samples that are measured."""
    chains: ExactPlan
    seconds: float
    """Rough duration for alanine dipeptide."""
    full: bool = False
    workers: int | None = None
    """Processes; None: one per core."""


TEMPERING: Final = {"engine": "torch", "method": "tempering"}
SCALES: Final = {
    "smoke": Scale(
        training=MoleculeTraining(preset="quick", forces=True, epochs=2.0, refine=False),
        plan=SimulationPlan.parse({"replicas": 1, "frames": 480, "interval": 10, "equilibration": 10}),
        samples=200,
        chains=ExactPlan.parse({"chains": 8, "rows": 4, "burn_in": 1, "every": 1, "md_steps": 2}),
        seconds=15,
        workers=1,
    ),
    "small": Scale(
        training=MoleculeTraining(preset="best", epochs=15.0, refine=True),
        plan=SimulationPlan.parse(
            {**TEMPERING, "replicas": 24, "frames": 420, "interval": 100, "equilibration": 5_000}
        ),
        samples=10_000,
        chains=ExactPlan.parse({"rows": 40}),
        seconds=600,
    ),
    "full": Scale(
        training=MoleculeTraining(preset="best", refine=True),
        plan=SimulationPlan.parse({**TEMPERING, "replicas": 48, "interval": 250}),
        samples=100_000,
        chains=ExactPlan.parse({"rows": 200}),
        seconds=3600 * 3,
        full=True,
    ),
}


@dataclass(frozen=True)
class Task:
    """A molecule at a scale, and the folder of its results, which is that of a training run."""

    name: str
    """A key of `SYSTEMS`."""
    folder: Path
    scale: Scale
    seed: int = 0

    @property
    def plan(self) -> SimulationPlan:
        """The simulation."""
        frames = SYSTEMS[self.name].frames if self.scale.full else self.scale.plan.frames
        return self.scale.plan.model_copy(update={"frames": frames, "seed": self.seed})

    @property
    def choice(self) -> MoleculeTraining:
        """The training."""
        return self.scale.training.model_copy(update={"seed": self.seed})

    @property
    def exact(self) -> ExactPlan | None:
        """The exact chains, if they are made."""
        chains = self.scale.chains.model_copy(update={"seed": self.seed})
        return chains if SYSTEMS[self.name].chains else None

    def file(self, name: str) -> Path:
        """A file in the folder."""
        return self.folder / name

    def steps(self) -> list[Step]:
        """All steps, in order."""
        data, model, metrics = map(self.file, (DATA, MODEL, METRICS))
        system = SYSTEMS[self.name]
        measuring: Any = {"samples": self.scale.samples, "seed": self.seed}
        # Of the whole: simulation, training, chains, measures.
        simulating, training, moving, measured = (
            share * self.scale.seconds * system.hours / SYSTEMS["ala2"].hours
            for share in (0.35, 0.5, 0.05, 0.1)
        )

        def simulation() -> Simulation:
            return Simulation(data, molecule(self.name), self.plan, self.scale.workers)

        def measure(meter: Meter) -> None:
            found = evaluate(model, data, workers=self.scale.workers, progress=meter.progress, **measuring)
            found.write(metrics, model, **torsional(found.samples, read_observables(data), self.seed))

        def move(meter: Meter) -> None:
            if self.exact is not None:
                run = open_run(self.file(CHAINS), model, self.exact)
                with energy_of(run.system, None, compiled=self.scale.full) as energy:
                    run.run(energy, meter.progress)

        def moved() -> dict[str, Any] | None:
            if self.exact is None:
                return {}
            if not (self.file(CHAINS).exists() and model.exists()):
                return None
            return {"rows": open_run(self.file(CHAINS), model, self.exact).rows}

        return [
            Step(
                "simulating",
                lambda: {"frames": self.plan.frames},
                lambda: {"frames": simulation().state.frames} if data.exists() else None,
                self._timed("simulation", lambda meter: simulation().run(meter.progress)),
                simulating,
            ),
            Step(
                "training",
                lambda: training_inputs(self.choice, data),
                self._trained,
                self._timed(
                    "training",
                    lambda meter: train_generator(
                        data,
                        self.folder,
                        self.choice,
                        energy=lambda system: meter.counted(force_field(system)),
                        progress=meter.progress,
                    ),
                ),
                training,
                # Frames, marginals, training, and cycles of refinement, each twice as long as the last.
                stages=(0.1, 0.1, 1, *((0.5, 1, 2, 4) if self.choice.refine else ())),
            ),
            Step(
                "measuring samples",
                lambda: evaluation_inputs(model, data, **measuring),
                lambda: noted_evaluation(metrics),
                self._timed("measures", measure),
                measured,
                stages=(1, 4, 1),
            ),
            Step(
                "running exact chains",
                lambda: {"rows": self.exact.rows} if self.exact else {},
                moved,
                self._timed("exact chains", move),
                moving,
            ),
        ]

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return all(step.is_done for step in self.steps())

    def _trained(self) -> dict[str, Any] | None:
        """What the model notes, once it is refined; a model of another training took long and is refused."""
        if not self.file(MODEL).exists():
            return None
        noted, wanted = notes(self.file(MODEL)), training_inputs(self.choice, self.file(DATA))
        found = noted_training(noted)
        refuse_others(self.folder, "a training", {**wanted, **found}, wanted)
        return found if "refinement" in noted or not self.choice.refine else None

    def _timed(self, name: str, run: Callable[[Meter], object]) -> Callable[[Progress], None]:
        """The work, with what it takes added to the file of costs."""

        def timed(progress: Progress) -> None:
            with spent(self.file(COSTS), name, progress) as meter:
                run(meter)

        return timed


def run(
    folder: Path,
    scale: str,
    systems: Sequence[str] = tuple(SYSTEMS),
    *,
    seed: int = 0,
    say: Say = print,
    progress: Progress = silent,
) -> list[Task]:
    """Do what is missing for some molecules, and return all tasks that are finished in a folder.

    Args:
        folder: Gets a folder for each molecule.
        scale: A key of `SCALES`.
        systems: Keys of `SYSTEMS`.
        seed: Seed of everything.
        say: Called with a line as each molecule begins.
        progress: Called with the progress of each molecule.

    Raises:
        ValueError: if a name is unknown, or the folder holds results of other settings.
        OSError: if a file is damaged, or another process works in the folder.
    """
    _check("scale", scale, SCALES)
    for name in systems:
        _check("molecule", name, SYSTEMS)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out must be a folder for the results, but {folder} is a file.")
    tasks = {name: Task(name, folder / name, SCALES[scale], seed) for name in SYSTEMS}
    for number, name in enumerate(systems, 1):
        about = f"molecule {number} of {len(systems)}: {name}"
        with only_writer(folder / name / "field"):
            say(f"{about}: finished before" if tasks[name].finished else about)
            run_steps(tasks[name].steps(), titled(about, progress))
    return [task for task in tasks.values() if task.folder.is_dir() and task.finished]


def _check(kind: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise ValueError(f"the {kind} must be one of {', '.join(known)}, got {name!r}.")
