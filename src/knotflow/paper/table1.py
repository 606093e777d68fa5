"""Table 1: five flows of alanine dipeptide, each trained with several seeds, and evaluated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from knotflow.analysis.evaluation import evaluation_inputs, is_evaluation_of, noted_evaluation
from knotflow.energies import force_field
from knotflow.errors import TrainingError
from knotflow.files import read_json, write_json
from knotflow.flows.io import notes
from knotflow.inputs import refuse_others, same
from knotflow.log_file import read_log
from knotflow.progress import Progress, silent, titled
from knotflow.storage import trajectory
from knotflow.storage.split import Split
from knotflow.training.checkpoint import read_checkpoint
from knotflow.training.molecules import MoleculeTraining, train_generator
from knotflow.workflows.evaluation import evaluate
from knotflow.workflows.steps import Say
from knotflow.workflows.training import noted_training, training_inputs

MEASURES: Final = {
    "nll": "nll_paper",
    "fme": "force_error_1e4",
    "kld": "kld_paper",
    "excess": "forward_kl",
    "ess": "ess",
}
"""Columns of the table, and what `knotflow.analysis.evaluate` calls them; the first three are the paper's."""
MODEL, METRICS, DIVERGED = "model.safetensors", "metrics.json", "diverged.json"
SEED = 0
"""Of the samples and error bars of all evaluations."""


@dataclass(frozen=True)
class Row:
    """A model of the table."""

    title: str
    family: str
    """A name in `knotflow.transforms.FAMILIES`."""
    forces: bool
    """Whether forces are matched."""


ROWS: Final = {
    "rq": Row("RQ-spline", "rq", False),
    "smooth": Row("Smooth", "bump", False),
    "smooth+fm": Row("Smooth+FM", "bump", True),
    "bspline": Row("B-spline", "bspline", False),
    "bspline+fm": Row("B-spline+FM", "bspline", True),
}


def paper_name(row: str) -> str:
    """The name of a row's transform in the paper's tables and in names of run folders."""
    return row.removesuffix("+fm")


@dataclass(frozen=True)
class Scale:
    """How much work to do."""

    frames: int = 0
    """Training frames that the data must have."""
    epochs: float = 10.0
    samples: int = 10_000
    """Samples of each evaluation."""
    bins: int | None = None
    """Bins or components; None: those of the paper."""


SCALES: Final = {
    "smoke": Scale(epochs=2.0, samples=100, bins=4),
    "small": Scale(),
    "paper": Scale(frames=900_000),
}


@dataclass(frozen=True)
class Task:
    """One training of the table."""

    row: str
    """A key of `ROWS`."""
    seed: int
    published: bool = False
    """Bins as narrow as 1e-6, no start from the marginals, no clipping, no average and no warm-up, instead of
    our recipe."""

    @property
    def folder(self) -> str:
        """Name of the run folder."""
        row = ROWS[self.row]
        kind, recipe = "fm" if row.forces else "nll", "pub" if self.published else "rec"
        return f"{paper_name(self.row)}-{kind}-{self.seed}-{recipe}"

    @classmethod
    def of(cls, folder: str) -> Task | None:
        """The task that a run folder belongs to by its name; None if to none."""
        match = re.fullmatch(r"([a-z]+)-(fm|nll)-(0|[1-9][0-9]*)-(rec|pub)", folder)
        for name, row in ROWS.items():
            if match and (match[1], match[2] == "fm") == (paper_name(name), row.forces):
                return cls(name, int(match[3]), match[4] == "pub")
        return None

    def choice(self, scale: Scale) -> MoleculeTraining:
        """How it is trained."""
        row = ROWS[self.row]
        return MoleculeTraining(
            preset="paper",
            transform=row.family,
            bins=scale.bins,
            forces=row.forces,
            epochs=scale.epochs,
            published=self.published,
            seed=self.seed,
        )

    def __str__(self) -> str:
        return f"{ROWS[self.row].title}, seed {self.seed}{', as published' if self.published else ''}"


@dataclass(frozen=True)
class Result:
    """What became of a task."""

    task: Task
    measures: dict[str, float] = field(default_factory=dict)
    """Values of `MEASURES`, NaN for what could not be told; empty if training diverged."""
    parameters: int | None = None
    seconds: float | None = None
    """Time of all steps."""
    refused: int | None = None
    """Steps that the guard refused, if it is known."""
    diverged: int | None = None
    """The step at which training was given up, to the precision of the log; None: it was not."""


def tasks(rows: Sequence[str], seeds: int, *, published: bool = False) -> list[Task]:
    """All rows with the first seed, then all with the second, and so on: early on there is a whole table."""
    return [Task(row, seed, published) for seed in range(seeds) for row in ROWS if row in rows]


def run(
    data: Path,
    folder: Path,
    scale: Scale,
    todo: Sequence[Task],
    *,
    say: Say = print,
    progress: Progress = silent,
) -> list[Result]:
    """Train and evaluate what is missing in a folder; return all that is finished in it.

    Every task has a run folder of its own, with ``metrics.json`` beside the model, or ``diverged.json`` if
    its training could not be kept stable. What is finished is not done again; what was stopped goes on.

    Args:
        data: Trajectory of alanine dipeptide.
        folder: For the run folders.
        scale: How much work to do.
        todo: What the folder must have.
        say: Called with a line as each run begins.
        progress: Called with the progress of each run.

    Raises:
        ValueError: if the data do not suit, or the folder holds runs on other data or of another scale.
        OSError: if the data are missing or damaged.
    """
    check_data(data, scale)
    _check_folder(folder, data, scale)
    for number, task in enumerate(todo, 1):
        about, place = f"run {number} of {len(todo)}: {task}", folder / task.folder
        if _is_evaluated(place, data, scale):
            say(f"{about}: finished before")
        elif (place / DIVERGED).exists() and not (place / MODEL).exists():
            say(f"{about}: diverged before")
        else:
            say(about)
            _do(task, data, place, scale, say=say, progress=titled(about, progress))
    return read_results(folder, scale)


def check_data(data: Path, scale: Scale) -> None:
    """Refuse data that Table 1 cannot be made of.

    Raises:
        ValueError: if they are of another molecule, or too few.
    """
    info = trajectory.open_info(data)
    if info.system.name != "ala2":
        raise ValueError(
            f"Table 1 is about alanine dipeptide (ala2), {data} holds {info.system.name}; train that with "
            f"`knotflow train {data} --preset paper`."
        )
    if not scale.frames:
        return
    replica = np.concatenate([np.empty(0, np.int32), *(frames.replica for frames in trajectory.pieces(data))])
    n_train = int((~Split.of(data.name, replica).mask()).sum())
    if n_train < scale.frames:
        raise ValueError(
            f"the scale paper needs {scale.frames:,} training frames, {data} has {n_train:,}; make them with "
            "`knotflow simulate --out data/ala2-paper.h5 --engine torch --ns 1000`, or use --scale small."
        )


def model_of(folder: Path, row: str) -> tuple[Task, Path] | None:
    """The model that stands for a row: of seed 0, our recipe before others; None if there is none."""
    for task in (Task(row, 0), Task(row, 0, True)):
        file = folder / task.folder / MODEL
        if file.is_file():
            return task, file
    return None


def read_results(folder: Path, scale: Scale) -> list[Result]:
    """All finished runs of a folder, in the order of the table, then of recipe and seed."""
    found = (read_result(folder, task, scale) for task in _present(folder))
    return [result for result in found if result is not None]


def read_result(folder: Path, task: Task, scale: Scale) -> Result | None:
    """What became of a task; None if it is not finished, or evaluated in another way."""
    run = folder / task.folder
    if not (run / MODEL).exists():
        if not (run / DIVERGED).exists():
            return None
        return Result(task, refused=_refused(run), diverged=int(read_json(run / DIVERGED)["step"]))
    if not _is_comparable(noted_evaluation(run / METRICS), scale):
        return None
    evaluation = read_json(run / METRICS)
    values = {name: evaluation["measures"][key]["value"] for name, key in MEASURES.items()}
    return Result(
        task,
        {name: math.nan if value is None else float(value) for name, value in values.items()},
        evaluation["about"]["parameters"],
        float(notes(run / MODEL)["seconds"]),
        _refused(run),
    )


def _do(task: Task, data: Path, folder: Path, scale: Scale, *, say: Say, progress: Progress) -> None:
    """Train, then evaluate on the frames that were held back."""
    choice = task.choice(scale)
    try:
        train_generator(data, folder, choice, energy=force_field, progress=progress)
    except TrainingError as error:
        step = max((step for step, _, _ in read_log(folder / "log.csv")), default=0)
        split = {"file": data.name, "frames": trajectory.open_info(data).n_frames}
        record = {"step": step, "reason": str(error), "choice": choice.plain(), "split": split}
        write_json(folder / DIVERGED, record)
        say(f"{task} diverged at step {step:,}: {error}")
        return
    metrics = folder / METRICS
    evaluate(folder / MODEL, data, metrics, samples=scale.samples, seed=SEED, progress=progress)


def _is_evaluated(run: Path, data: Path, scale: Scale) -> bool:
    """Whether a run has the evaluation that `_do` would give it."""
    if not ((run / MODEL).exists() and (run / METRICS).exists()):
        return False
    inputs = evaluation_inputs(run / MODEL, data, samples=scale.samples, seed=SEED)
    return is_evaluation_of(run / METRICS, inputs)


def _is_comparable(found: dict[str, Any] | None, scale: Scale) -> bool:
    """Whether an evaluation, maybe by another version, can stand in one table with others of the scale."""
    wanted = {"rows": "validation", "samples": scale.samples, "seed": SEED, "dtype": "float32"}
    return found is not None and same({key: (found | found["data"])[key] for key in wanted}, wanted)


def _refused(folder: Path) -> int | None:
    last = folder / "last.ckpt"
    return int(read_checkpoint(last)["state"]["guard"]["refused"]) if last.exists() else None


def _present(folder: Path) -> list[Task]:
    """Tasks of which there is a run folder."""
    found = (Task.of(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    order = list(ROWS)
    return sorted(
        (task for task in found if task is not None),
        key=lambda task: (order.index(task.row), not task.published, task.seed),
    )


def _check_folder(folder: Path, data: Path, scale: Scale) -> None:
    """Refuse a folder with finished runs that are not comparable with those to come.

    Raises:
        ValueError: if one is on other data, or was trained otherwise than its name says.
    """
    for task, noted in _noted(folder):
        wanted = training_inputs(task.choice(scale), data)
        refuse_others(folder / task.folder, "a run", {**wanted, **noted_training(noted)}, wanted)


def _noted(folder: Path) -> Iterator[tuple[Task, dict[str, Any]]]:
    """What the finished runs of a folder note of how they were made."""
    for task in _present(folder):
        model, diverged = (folder / task.folder / name for name in (MODEL, DIVERGED))
        if model.exists():
            yield task, notes(model)
        elif diverged.exists():
            yield task, read_json(diverged)
