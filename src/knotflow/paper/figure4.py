"""Figure 4: dynamics on flows of Table 1 and on the force field, and the page about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
from knotflow.simulation import Simulation, SimulationPlan
from knotflow.statistics.estimates import Estimate
from knotflow.training.molecules import train_generator
from knotflow.workflows.dynamics import Compile, DynamicsRun
from knotflow.workflows.steps import Say

FIGURE: Final = ("rq", "smooth+fm", "bspline+fm")
"""Models of Table 1 that figure 4 shows."""
CLAIMS: Final = {"rq": "all ten fail", "smooth+fm": "all ten stay", "bspline+fm": "all ten stay"}
"""What Hong & Chun (AAAI 2023) say about them."""
NOTES: Final = (
    "Slope and standard deviation of the total energy without a thermostat, per degree of freedom; kinetic "
    "temperature. ±: standard errors over the replicas that stay whole.",
    "Broken: a number is not finite, the molecule left the flow's support, a bond became 1.5 times longer "
    "or shorter than it should be, or the total energy moved by more than half a kT per degree of freedom.",
    "Time per step of all replicas together, without compilation, on the machine that ran it.",
)


@dataclass(frozen=True)
class Scale:
    """Amount of work."""

    config: DynamicsConfig = field(default_factory=DynamicsConfig)
    frames: int = 0
    """Number of frames that the models must have been trained on."""
    training: table1.Scale | None = None
    """How to train missing models; None: all models must exist."""


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
    """Name of its run folder."""
    title: str
    model: Path | None
    """None: the force field."""
    claim: str = ""
    """What the paper says."""


TRUE: Final = Entry("force-field", "true force field", None)
BEST: Final = Entry("best", "best", None)


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of an entry."""

    entry: Entry
    record: Record

    @cached_property
    def drift(self) -> Drift:
        """The drift score of the record."""
        return drift(self.record)


CELLS: Final[dict[str, Callable[[Result], str]]] = {
    "energy": lambda r: r.entry.title,
    "broken": lambda r: f"{r.drift.broken} of {len(r.drift.reasons)}",
    "why": lambda r: reasons(r.drift.plain()["reasons"]),
    "slope, kT/ps": lambda r: str(r.drift.mean(r.drift.slope)),
    "deviation, kT": lambda r: str(r.drift.mean(r.drift.deviation)),
    "temperature, K": lambda r: str(r.drift.mean(r.drift.temperature)),
    "ms per step": lambda r: str(Estimate(r.record.milliseconds_per_step)),
    "paper": lambda r: r.entry.claim or "–",
}
"""Columns of the table, and their text."""
COLUMNS: Final = tuple(CELLS)


def entries(models: Path, rows: Sequence[str] = FIGURE, best: Path | None = None) -> list[Entry]:
    """The force field, models of Table 1 (with seed 0, preferably by our recipe), and one more.

    Raises:
        FileNotFoundError: if a model is missing; the message says how to train it.
    """
    shown = {row: table1.model_of(models, row) for row in ROWS if row in rows}
    missing = [row for row, model in shown.items() if model is None]
    if missing:
        options = " ".join(f"--rows {row}" for row in missing)
        raise FileNotFoundError(
            f"{models} has no model of {', '.join(ROWS[row].title for row in missing)}; train with: knotflow "
            f"reproduce table1 --data DATA.h5 {options} --out {models}"
        )
    found = [TRUE, *(_entry(*model) for model in shown.values() if model is not None)]
    return found if best is None else [*found, replace(BEST, model=best)]


def _entry(task: Task, model: Path | None = None) -> Entry:
    how = ", as published" if task.published else ""
    return Entry(task.folder, ROWS[task.row].title + how, model, CLAIMS.get(task.row, ""))


def read_results(folder: Path) -> list[Result]:
    """All finished runs of a folder, in the order of the table; where the models are is unknown."""
    tasks = [Task(row, 0, published) for row in ROWS for published in (False, True)]
    found = [(entry, folder / entry.folder / RECORD) for entry in (TRUE, *map(_entry, tasks), BEST)]
    return [Result(entry, Record.load(file)) for entry, file in found if file.is_file()]


def make_data(path: Path, *, say: Say) -> None:
    """A short simulation with 120 frames in all; an interrupted one is resumed, a finished one kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    say("a short simulation of alanine dipeptide")
    plan = SimulationPlan.parse({"replicas": 2, "frames": 60, "interval": 20, "equilibration": 1000})
    Simulation(path, ala2(), plan).run()


def make_models(folder: Path, rows: Sequence[str], scale: Scale, *, say: Say) -> tuple[Path, Path]:
    """A short simulation and hardly trained models; returns the data file and the folder of models."""
    data, models = folder / "ala2.h5", folder / "models"
    make_data(data, say=say)
    for task in (Task(row, 0) for row in rows):
        say(f"a short training: {ROWS[task.row].title}")
        train_generator(data, models / task.folder, task.choice(scale.training or table1.Scale()))
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
    """Do the runs that are missing in a folder; all start from the same frames.

    Args:
        folder: For the run folders.
        scale: Amount of work.
        todo: The energies to move on.
        data: Frames to start from, preferably held-out ones.
        compile: Whether to compile the force field.
        say: Called with a line as each run begins.
        progress: Called with the progress of each run.

    Raises:
        ValueError: if models, data and the runs in the folder do not belong together.
        OSError: if a file is missing or damaged.
    """
    splits = [_checked_split(entry.model, scale) for entry in todo if entry.model is not None]
    split = next(filter(None, splits), None)
    results = []
    for i, entry in enumerate(todo, 1):
        place = folder / entry.folder
        moved = DynamicsRun(entry.model, data, place, scale.config, split=split, compile=compile)
        state = ": finished before" if moved.finished else ", compiled first" if moved.compiles else ""
        say(f"run {i} of {len(todo)}: {entry.title}{state}")
        results.append(Result(entry, moved.run(titled(entry.title, progress))))
    return results


def _checked_split(model: Path, scale: Scale) -> dict[str, Any] | None:
    """The split of a model; refuses a model that was trained on too few frames."""
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
    """Cells under `COLUMNS`, one row per energy."""
    return [[cell(result) for cell in CELLS.values()] for result in results]


def write_report(folder: Path, results: Sequence[Result], scale: str) -> Path:
    """Draw ``figure4.png``, write ``results.json`` and ``index.html`` into a folder; returns the page."""
    page = folder / "index.html"
    picture = draw_figure(folder, results)
    content = json_bytes({r.entry.folder: {"title": r.entry.title, **summary(r.record)} for r in results})
    write_atomically(folder / "results.json", content)
    lead = (
        f"Alanine dipeptide moves on the energies -log p of flows, at the scale {scale!r}: "
        f"{protocol(results)}. The paper claims that on RQ-spline flows all ten molecules break, and that on "
        "smooth and B-spline flows with force matching all ten stay whole."
    )
    sections = [
        Section(
            "Which molecules break",
            [
                "The paper shows the potential energy. The total energy tells more: without a thermostat it "
                "must stay constant, whereas a thermostat hides errors of the force."
            ],
            Table(COLUMNS, rows(results), f"Scale {scale}.", NOTES),
            downloads=[Download("results.json", content)],
        ),
        Section("Figure 4", pictures=[picture]),
    ]
    write_page(Page("Dynamics on learned energies", lead, sections), page)
    return page


def protocol(results: Sequence[Result]) -> str:
    """The protocol of the dynamics in words."""
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
        "potential energy at the start. Grey: with a thermostat. Broken replicas are orange; a cross marks "
        "where one stopped. The axes cover the range of the replicas that stay whole."
    )
    replicas = results[0].record.about["config"]["replicas"]
    return Picture(path, f"Energies over time of {replicas} molecules on {len(results)} energies", caption)
