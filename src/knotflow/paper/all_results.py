"""All figures and tables of the paper, one after another, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
"""In the order in which they are made; also the names of their folders."""
SHOWN: Final = {7: "bspline+fm", 8: "smooth+fm", 9: "rq"}
"""Models of figures 7 to 9."""


@dataclass(frozen=True)
class Scale:
    """How much work to do."""

    toy2d: toy2d.Scale
    table1: table1.Scale
    dynamics: figure4.Scale
    samples: int = 10_000
    """In figures 3 and 7 to 9, and of each repeat of Table 2."""
    repeats: int = 10
    """Of Table 2."""
    simulates: bool = False
    """Whether data are made on the spot, where there are none."""


SCALES: Final = {
    "smoke": Scale(
        toy2d.SCALES["smoke"],
        table1.SCALES["smoke"],
        figure4.SCALES["smoke"],
        samples=100,
        repeats=2,
        simulates=True,
    ),
    **{
        name: Scale(toy2d.SCALES[name], table1.SCALES[name], figure4.SCALES[name])
        for name in ("small", "paper")
    },
}


@dataclass(frozen=True)
class Job:
    """What to make, and where."""

    out: Path
    """For the folders of all parts."""
    scale_name: str
    """A key of `SCALES`."""
    data: Path | None = None
    """Trajectory of alanine dipeptide; None where the scale makes its own."""
    given: Mapping[str, Path] = field(default_factory=dict)
    """Finished folders of `toy2d`, `table1` and `dynamics`, to be shown as they are."""
    seeds: int = 1
    """Trainings of each row of Table 1."""

    @property
    def scale(self) -> Scale:
        """How much work to do."""
        return SCALES[self.scale_name]

    def folder(self, part: str) -> Path:
        """Where a part is, or will be."""
        return self.given.get(part, self.out / part)


@dataclass(frozen=True, eq=False)
class Found:
    """All that the page shows."""

    job: Job
    data: Path
    rings: list[toy2d.Result]
    table1: list[table1.Result]
    looks: dict[str, molecule_figures.ShownFrames]
    """By row of Table 1."""
    dynamics: list[figure4.Result]
    table2: list[table2.Runtime]


def run(job: Job, *, say: Say = print, progress: Progress = silent) -> Found:
    """Make what is missing in a folder, part by part; what is finished is not done again.

    Args:
        job: What to make.
        say: Called with a line on what comes next.
        progress: Called with the progress of each part.

    Raises:
        ValueError: if there are no data, or they and given folders do not belong together.
        OSError: if a file is missing or damaged.
    """
    check(job)
    parts = iter(enumerate(PARTS.items(), 1))

    def begin() -> None:
        number, (part, title) = next(parts)
        where = f", as it is in {job.given[part]}" if part in job.given else ""
        say(f"part {number} of {len(PARTS)}: {title}{where}")

    begin()
    rings = _rings(job, say, progress)
    begin()
    data = job.data or job.out / "ala2.h5"
    if job.data is None:
        figure4.make_data(data, say=say)
    results = _table1(job, data, say, progress)
    begin()
    shown = _models(job.folder("table1"), data)
    pictures = {
        row: molecule_figures.run(
            model, data, job.folder("looks") / f"{row}.npz", job.scale.samples,
            progress=titled(table1.ROWS[row].title, progress),
        )
        for row, model in shown.items()
    }  # fmt: skip
    begin()
    moves = _dynamics(job, data, say, progress)
    begin()
    # Trained with forces or without, the flow is the same.
    models: dict[str, Path] = {table1.paper_name(row): model for row, model in shown.items()}
    times = table2.run(models, job.folder("table2"), job.scale.samples, job.scale.repeats, say=say)
    return Found(job, data, rings, results, pictures, moves, times)


def check(job: Job) -> None:
    """Refuse now, not after hours, what cannot be made.

    Raises:
        ValueError: if data are missing or do not suit, or a given folder holds nothing to show.
    """
    if job.data is None and not job.scale.simulates:
        raise ValueError(
            "Table 1 and the figures of alanine dipeptide need a trajectory: give --data FILE.h5, made with "
            "`knotflow simulate --out FILE.h5 --engine torch --ns 100` or with `knotflow import`."
        )
    if job.data is not None:
        table1.check_data(job.data, job.scale.table1)
    for part, folder in job.given.items():
        if not _is_finished(part, folder, job.scale):
            raise ValueError(
                f"{folder} holds no finished results of this scale; finish them with `knotflow reproduce "
                f"{part} --out {folder}`, or leave --{part} out."
            )
    if job.data is not None and "table1" in job.given:
        _models(job.given["table1"], job.data)


def _is_finished(part: str, folder: Path, scale: Scale) -> bool:
    """Whether there is something to show."""
    if part == "table1":
        return bool(table1.read_results(folder, scale.table1))
    return bool({"toy2d": toy2d, "dynamics": figure4}[part].read_results(folder))


def _models(folder: Path, data: Path) -> dict[str, Path]:
    """The model of each row that has one; all must have been trained on the data.

    Raises:
        ValueError: if one was trained on something else.
    """
    found, here = {}, described(data)
    for row in table1.ROWS:
        shown = table1.model_of(folder, row)
        if shown is None:
            continue
        there = noted_training(notes(shown[1])).get("data", "unknown data")
        if there != here:
            raise ValueError(
                f"{shown[1]} was trained on {there}, not on {here}; give the file of the training as --data."
            )
        found[row] = shown[1]
    return found


def _rings(job: Job, say: Say, progress: Progress) -> list[toy2d.Result]:
    folder = job.folder("toy2d")
    if "toy2d" not in job.given:
        for domain in toy2d.DOMAINS:
            for model in (name for name in toy2d.MODELS if name != "best"):
                place = folder / f"{model}-{domain}"
                toy2d.run_scenario(model, domain, job.scale.toy2d, place, say=say, progress=progress)
    return toy2d.read_results(folder)


def _table1(job: Job, data: Path, say: Say, progress: Progress) -> list[table1.Result]:
    folder, scale = job.folder("table1"), job.scale.table1
    if "table1" in job.given:
        return table1.read_results(folder, scale)
    todo = table1.tasks(list(table1.ROWS), job.seeds)
    return table1.run(data, folder, scale, todo, say=say, progress=progress)


def _dynamics(job: Job, data: Path, say: Say, progress: Progress) -> list[figure4.Result]:
    folder, models = job.folder("dynamics"), job.folder("table1")
    if "dynamics" in job.given:
        return figure4.read_results(folder)
    rows = [row for row in figure4.FIGURE if table1.model_of(models, row)]  # others have diverged
    todo = figure4.entries(models, rows)
    return figure4.run(folder, job.scale.dynamics, todo, data, say=say, progress=progress)
