"""Figure 4: dynamics on flows of Table 1 and on the force field, and what became of the molecules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from knotflow.analysis.frame_table import check_same_molecule
from knotflow.dynamics import Drift, DynamicsConfig, Record, drift
from knotflow.dynamics.protocol import RECORD, run_in
from knotflow.flows.io import notes
from knotflow.molecules import ala2
from knotflow.paper import table1
from knotflow.paper.table1 import ROWS, Task
from knotflow.progress import Progress, silent, titled
from knotflow.simulation.run import Simulation, SimulationPlan
from knotflow.storage import trajectory
from knotflow.training.molecules import train_generator
from knotflow.workflows.dynamics import Compile, frames_of, on_flow, on_force_field

Say = Callable[[str], None]

FIGURE: Final = ("rq", "smooth+fm", "bspline+fm")
"""Models of Table 1 that figure 4 shows."""
CLAIMS: Final = {"rq": "all ten fail", "smooth+fm": "all ten stay", "bspline+fm": "all ten stay"}
"""What Hong & Chun (AAAI 2023) say of them; to compare with."""


@dataclass(frozen=True)
class Scale:
    """How much work to do."""

    config: DynamicsConfig = field(default_factory=DynamicsConfig)
    frames: int = 0
    """On so many frames models must have been trained."""
    training: table1.Scale | None = None
    """How to train models if there are none; None: they must be there."""


SCALES: Final = {
    "smoke": Scale(
        DynamicsConfig(replicas=3, equilibration=0.002, production=0.004, every=4),
        training=table1.SCALES["smoke"],
    ),
    "small": Scale(),
    "paper": Scale(frames=table1.SCALES["paper"].frames),
}


@dataclass(frozen=True)
class Entry:
    """A line of the table."""

    folder: str
    """Name of the folder of its run."""
    title: str
    model: Path | None
    """None: the force field."""
    claim: str = ""
    """What the paper says."""


TRUE: Final = Entry("force-field", "true force field", None)
BEST: Final = Entry("best", "best", None)


@dataclass(frozen=True, eq=False)
class Result:
    """What became of an entry."""

    entry: Entry
    record: Record
    drift: Drift


def entries(models: Path, rows: Sequence[str] = FIGURE, best: Path | None = None) -> list[Entry]:
    """The force field, models of Table 1 (of the first seed; our recipe before others), and one more.

    Raises:
        FileNotFoundError: if a model is missing; says which command trains it.
    """
    found, missing = [TRUE], []
    for row in (name for name in ROWS if name in rows):
        shown = table1.model_of(models, row)
        if shown is None:
            missing.append(row)
        else:
            found.append(_entry(*shown))
    if missing:
        options = " ".join(f"--rows {row}" for row in missing)
        raise FileNotFoundError(
            f"{models} has no model of {', '.join(ROWS[row].title for row in missing)}; train with: knotflow "
            f"reproduce table1 --data DATA.h5 {options} --out {models}"
        )
    return found if best is None else [*found, replace(BEST, model=best)]


def _entry(task: Task, model: Path | None = None) -> Entry:
    how = ", as published" if task.published else ""
    return Entry(task.folder, ROWS[task.row].title + how, model, CLAIMS.get(task.row, ""))


def read_results(folder: Path) -> list[Result]:
    """All finished runs of a folder, in the order of the table; where models were is not known any more."""
    tasks = [Task(row, 0, published) for row in ROWS for published in (False, True)]
    known = [TRUE, *map(_entry, tasks), BEST]
    found = [(entry, folder / entry.folder / RECORD) for entry in known]
    records = [(entry, Record.load(file)) for entry, file in found if file.is_file()]
    return [Result(entry, record, drift(record)) for entry, record in records]


def make_data(path: Path, *, say: Say) -> None:
    """A short simulation, 120 frames in all; one that is there is finished, or left as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    say("a short simulation of alanine dipeptide")
    plan = SimulationPlan.parse({"replicas": 2, "frames": 60, "interval": 20, "equilibration": 1000})
    Simulation(path, ala2(), plan).run()


def make_models(folder: Path, rows: Sequence[str], scale: Scale, *, say: Say) -> tuple[Path, Path]:
    """A short simulation, and models trained on it for a moment: a file of data and a folder of models."""
    data, models = folder / "ala2.h5", folder / "models"
    make_data(data, say=say)
    for row in rows:
        say(f"a short training: {ROWS[row].title}")
        task = Task(row, 0)
        choice = task.choice(scale.training or table1.Scale())
        train_generator(data, models / task.folder, choice)
    return data, models


def run(
    folder: Path,
    scale: Scale,
    todo: Sequence[Entry],
    data: Path,
    *,
    compile: Compile = "auto",
    say: Say = print,
    progress: Progress = silent,
) -> list[Result]:
    """Run the protocol for what is missing in a folder; all start from the same frames.

    Args:
        folder: For the folders of the runs.
        scale: How much work to do.
        todo: On which energies.
        data: Frames to start from; those held back in training are preferred.
        compile: Whether to compile the force field.
        say: Told which run of how many it is.
        progress: Called with the progress of each run.

    Raises:
        ValueError: if models, data and what is in the folder do not belong together.
        OSError: if a file is missing or damaged.
    """
    models = [entry.model for entry in todo if entry.model is not None]
    splits = [_checked_split(model, scale) for model in models]
    split = next((split for split in splits if split), None)
    config = scale.config
    system = trajectory.open_info(data).system
    frames = frames_of(data, system, config.replicas, seed=config.seed, split=split)
    results = []
    for number, entry in enumerate(todo, 1):
        place, title = folder / entry.folder, f"run {number} of {len(todo)}: {entry.title}"
        finished = (place / RECORD).exists()
        if entry.model is None:
            setting = on_force_field(system, config.steps, compile, replicas=config.replicas)
        else:
            setting = on_flow(entry.model)
            check_same_molecule(setting.system, system)
        compiles = setting.about.get("compiled") == "whole"
        say(f"{title}{': finished before' if finished else ', compiled first' if compiles else ''}")
        report = titled(entry.title, progress)
        record = run_in(
            place, setting.energy, setting.system, frames, config, progress=report, about=setting.about
        )
        results.append(Result(entry, record, drift(record)))
    return results


def _checked_split(model: Path, scale: Scale) -> dict[str, Any] | None:
    """The split of a model, which must have been trained on frames enough."""
    split: dict[str, Any] | None = notes(model).get("split")
    if scale.frames and split:
        seen = split["frames"] - sum(last - first for first, last in split["validation"])
        if seen < scale.frames:
            raise ValueError(
                f"the scale paper needs models trained on {scale.frames:,} frames, {model} was on {seen:,}; "
                "train with `knotflow reproduce table1 --scale paper`, or use --scale small."
            )
    return split
