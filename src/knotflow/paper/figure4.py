"""Figure 4: dynamics on flows of Table 1 and on the force field, which molecules stay whole, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from knotflow.dynamics import Drift, DynamicsConfig, Record, drift
from knotflow.dynamics.protocol import RECORD
from knotflow.dynamics.score import summary
from knotflow.files import json_bytes, write_atomically
from knotflow.flows.io import notes
from knotflow.molecules import ala2
from knotflow.paper import table1
from knotflow.paper.table1 import ROWS, Task
from knotflow.progress import Progress, silent, titled
from knotflow.report.dynamics_plots import EnergyPanel, draw_energies, reasons
from knotflow.report.figures import save
from knotflow.report.page import Download, Page, Picture, Section, Table, write_page
from knotflow.simulation.run import Simulation, SimulationPlan
from knotflow.statistics.estimates import Estimate
from knotflow.training.molecules import train_generator
from knotflow.workflows.dynamics import Compile, DynamicsRun
from knotflow.workflows.steps import Say

FIGURE: Final = ("rq", "smooth+fm", "bspline+fm")
"""Models of Table 1 that figure 4 shows."""
CLAIMS: Final = {"rq": "all ten fail", "smooth+fm": "all ten stay", "bspline+fm": "all ten stay"}
"""What Hong & Chun (AAAI 2023) say of them."""
COLUMNS: Final = (
    "energy",
    "broken",
    "why",
    "slope, kT/ps",
    "deviation, kT",
    "temperature, K",
    "ms a step",
    "paper",
)
NOTES: Final = (
    "Slope and standard deviation of the total energy without a thermostat, per degree of freedom; "
    "temperature of the motion. ±: standard errors over the replicas that stay whole.",
    "Broken: a number is not finite, the molecule left the flow's support, a bond became 1.5 times as long "
    "as it should be, or as short, or the total energy moved by more than half a kT per degree of freedom.",
    "Time of a step of all replicas at once, compilation left out, on the machine that ran it.",
)


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
    """All finished runs of a folder, in the order of the table; it is not known where the models are."""
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
        say: Called with a line as each run begins.
        progress: Called with the progress of each run.

    Raises:
        ValueError: if models, data and what is in the folder do not belong together.
        OSError: if a file is missing or damaged.
    """
    models = [entry.model for entry in todo if entry.model is not None]
    splits = [_checked_split(model, scale) for model in models]
    split = next((split for split in splits if split), None)
    results = []
    for i, entry in enumerate(todo, 1):
        place = folder / entry.folder
        moved = DynamicsRun(entry.model, data, place, scale.config, split=split, compile=compile)
        state = ": finished before" if moved.finished else ", compiled first" if moved.compiles else ""
        say(f"run {i} of {len(todo)}: {entry.title}{state}")
        record = moved.run(titled(entry.title, progress))
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


def rows(results: Sequence[Result]) -> list[list[str]]:
    """Cells under `COLUMNS`, a row for each energy."""
    return [
        [
            result.entry.title,
            f"{result.drift.broken} of {len(result.drift.reasons)}",
            reasons(result.drift.plain()["reasons"]),
            str(result.drift.mean(result.drift.slope)),
            str(result.drift.mean(result.drift.deviation)),
            str(result.drift.mean(result.drift.temperature)),
            str(Estimate(result.record.milliseconds_per_step)),
            result.entry.claim or "–",
        ]
        for result in results
    ]


def write_report(folder: Path, results: Sequence[Result], scale: str) -> Path:
    """Draw ``figure4.png``, write ``results.json`` and ``index.html`` into a folder; returns the page."""
    page = folder / "index.html"
    picture = draw_figure(folder, results)
    found = {
        result.entry.folder: {"title": result.entry.title, **summary(result.record)} for result in results
    }
    content = json_bytes(found)
    write_atomically(folder / "results.json", content)
    lead = (
        f"Alanine dipeptide moves on the energies -log p of flows, at the scale {scale!r}: "
        f"{protocol(results)}. The paper's claim: RQ-spline flows break all ten molecules, smooth and "
        "B-spline flows with force matching keep all ten."
    )
    sections = [
        Section(
            "Who breaks",
            [
                "The potential energy is what the paper shows. The total energy must stay where it is as "
                "soon as the thermostat is off; a thermostat hides what is wrong with a force."
            ],
            Table(COLUMNS, rows(results), f"Scale {scale}.", NOTES),
            downloads=[Download("results.json", content)],
        ),
        Section("Figure 4", pictures=[picture]),
    ]
    write_page(Page("Dynamics on learned energies", lead, sections), page)
    return page


def protocol(results: Sequence[Result]) -> str:
    """How molecules were moved, in words."""
    config = results[0].record.about["config"]
    return (
        f"{config['replicas']} frames, velocities at {results[0].record.about['temperature']:g} K, "
        f"{config['equilibration']:g} ps of Langevin dynamics at {config['friction']:g}/ps, then "
        f"{config['production']:g} ps without a thermostat, in steps of {1000 * config['dt']:g} fs"
    )


def draw_figure(folder: Path, results: Sequence[Result]) -> Picture:
    """Figure 4, saved in the folder."""
    path = folder / "figure4.png"
    panels = [EnergyPanel.of(result.entry.title, result.record) for result in results]
    save(draw_energies(panels, ("total", "potential")), path)
    caption = (
        "Figure 4: total energy (above) and potential energy (below) of every replica, less the median "
        "potential at the start. Grey: with a thermostat. Broken replicas are orange; a cross marks where "
        "one stopped. The range is that of the replicas that stay whole."
    )
    replicas = results[0].record.about["config"]["replicas"]
    return Picture(path, f"Energies over time of {replicas} molecules on {len(results)} energies", caption)
