"""Make all figures and tables of the paper, one after another, each in its own folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from knotflow.flows.io import notes
from knotflow.paper import figure4, molecule_figures, table1, table2, toy2d
from knotflow.progress import Progress, silent, titled
from knotflow.workflows.steps import Say
from knotflow.workflows.training import described, noted_training

PARTS: Final = {
    "toy2d": "rings (figures 1, 2 and 5)",
    "table1": "flows of alanine dipeptide (Table 1)",
    "looks": "their forces, torsions and energies (figures 3 and 7 to 9)",
    "dynamics": "dynamics on them (figure 4)",
    "table2": "their speed (Table 2)",
}
"""The parts by the names of their folders, in the order in which they are made."""


@dataclass(frozen=True)
class Scale:
    """Amount of work."""

    toy2d: toy2d.Scale
    table1: table1.Scale
    dynamics: figure4.Scale
    samples: int = 10_000
    """Samples in figures 3 and 7 to 9, and in each repeat of Table 2."""
    repeats: int = 10
    """Repeats of Table 2."""
    simulates: bool = False
    """Whether missing data are simulated on the spot."""


SCALES: Final = {
    name: Scale(toy2d.SCALES[name], table1.SCALES[name], figure4.SCALES[name])
    for name in ("smoke", "small", "paper")
}
SCALES["smoke"] = replace(SCALES["smoke"], samples=100, repeats=2, simulates=True)


@dataclass(frozen=True)
class Job:
    """What to make and where."""

    out: Path
    """Folder for the folders of all parts."""
    scale_name: str
    """A key of `SCALES`."""
    data: Path | None = None
    """Trajectory of alanine dipeptide; None if the scale simulates its own."""
    given: Mapping[str, Path] = field(default_factory=dict)
    """Finished folders of `toy2d`, `table1` and `dynamics`, shown as they are."""
    seeds: int = 1
    """Trainings per row of Table 1."""

    @property
    def scale(self) -> Scale:
        """Amount of work."""
        return SCALES[self.scale_name]

    def folder(self, part: str) -> Path:
        """The folder of a part."""
        return self.given.get(part, self.out / part)


@dataclass(frozen=True, eq=False)
class Found:
    """Everything that the page shows."""

    job: Job
    data: Path
    rings: list[toy2d.Result]
    table1: list[table1.Result]
    looks: dict[str, molecule_figures.ShownFrames]
    """By row of Table 1."""
    dynamics: list[figure4.Result]
    table2: list[table2.Runtime]


def run(job: Job, *, say: Say = print, progress: Progress = silent) -> Found:
    """Make what is missing in a folder, part by part; finished work is not repeated.

    Args:
        job: What to make.
        say: Called with a line as each part begins.
        progress: Called with the progress of each part.

    Raises:
        ValueError: if there are no data, or they and given folders do not belong together.
        OSError: if a file is missing or damaged.
    """
    check(job)
    scale, folder = job.scale, job.folder
    tell: Any = {"say": say, "progress": progress}
    parts = iter(enumerate(PARTS.items(), 1))

    def begin() -> bool:
        """Announce the next part; whether it has to be made."""
        number, (part, title) = next(parts)
        where = f", as it is in {job.given[part]}" if part in job.given else ""
        say(f"part {number} of {len(PARTS)}: {title}{where}")
        return part not in job.given

    if begin():
        for domain in toy2d.DOMAINS:
            for name in (name for name in toy2d.MODELS if name != "best"):
                place = folder("toy2d") / f"{name}-{domain}"
                toy2d.run_scenario(name, domain, scale.toy2d, place, **tell)
    trains = begin()
    data = job.data or job.out / "ala2.h5"
    if job.data is None:
        figure4.make_data(data, say=say)
    if trains:
        todo = table1.tasks(list(table1.ROWS), job.seeds)
        table1.run(data, folder("table1"), scale.table1, todo, **tell)
    begin()
    models, looks = _models(folder("table1"), data), {}
    for row, model in models.items():
        title, file = table1.ROWS[row].title, folder("looks") / f"{row}.npz"
        looks[row] = molecule_figures.run(model, data, file, scale.samples, progress=titled(title, progress))
    if begin():
        rows = [row for row in figure4.FIGURE if row in models]  # others have diverged
        entries = figure4.entries(folder("table1"), rows)
        figure4.run(folder("dynamics"), scale.dynamics, entries, data, **tell)
    begin()
    # The flow is the same whether it was trained with forces or without.
    flows = {table1.paper_name(row): model for row, model in models.items()}
    times = table2.run(flows, folder("table2"), scale.samples, scale.repeats, say=say)
    rings, trained, moved = (_finished(part, job) for part in ("toy2d", "table1", "dynamics"))
    return Found(job, data, rings, trained, looks, moved, times)


def check(job: Job) -> None:
    """Refuse impossible jobs at once, not after hours.

    Raises:
        ValueError: if data are missing or unsuitable, or a given folder holds nothing to show.
    """
    if job.data is None and not job.scale.simulates:
        raise ValueError(
            "Table 1 and the figures of alanine dipeptide need a trajectory: give --data FILE.h5, made with "
            "`knotflow simulate --out FILE.h5 --engine torch --ns 100` or with `knotflow import`."
        )
    if job.data is not None:
        table1.check_data(job.data, job.scale.table1)
    for part, folder in job.given.items():
        if not _finished(part, job):
            raise ValueError(
                f"{folder} holds no finished results of this scale; finish them with `knotflow reproduce "
                f"{part} --out {folder}`, or leave --{part} out."
            )
    if job.data is not None and "table1" in job.given:
        _models(job.given["table1"], job.data)


def _finished(part: str, job: Job) -> list[Any]:
    """The finished results of the rings, of Table 1 or of the dynamics."""
    folder = job.folder(part)
    if part == "table1":
        return table1.read_results(folder, job.scale.table1)
    return toy2d.read_results(folder) if part == "toy2d" else figure4.read_results(folder)


def _models(folder: Path, data: Path) -> dict[str, Path]:
    """The model of each row that has one; all must have been trained on the data.

    Raises:
        ValueError: if one was trained on something else.
    """
    found, here = {}, described(data)
    for row in table1.ROWS:
        shown = table1.model_of(folder, row)
        if shown is not None:
            _, found[row] = shown
            there = noted_training(notes(found[row])).get("data", "unknown data")
            if there != here:
                raise ValueError(
                    f"{found[row]} was trained on {there}, not on {here}; give its training data as --data."
                )
    return found
