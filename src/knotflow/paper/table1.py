"""Table 1: train five flows of alanine dipeptide with several seeds, and evaluate them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from knotflow.analysis.evaluation import evaluation_inputs, is_evaluation_of, noted_evaluation
from knotflow.energies import force_field
from knotflow.errors import TrainingError
from knotflow.files import read_json, write_json
from knotflow.flows.io import notes
from knotflow.inputs import made_of, refuse_others
from knotflow.log_file import read_log
from knotflow.progress import Progress, silent, titled
from knotflow.statistics.estimates import Estimate
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
"""Columns of the table, and their names in `knotflow.analysis.evaluate`; the first three are the paper's."""
MODEL, METRICS, DIVERGED = "model.safetensors", "metrics.json", "diverged.json"
SEED = 0
"""Seed of the samples and error bars of all evaluations."""


@dataclass(frozen=True)
class Row:
    """A model of the table."""

    title: str
    family: str
    """A name in `knotflow.transforms.FAMILIES`."""
    forces: bool
    """Whether training matches forces."""


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
    """Amount of work."""

    frames: int = 0
    """Number of training frames that the data must have."""
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
    """Whether to train as published instead of by our recipe: bins as narrow as 1e-6, no start from the
    marginals, no clipping, no averaging and no warm-up."""

    @property
    def folder(self) -> str:
        """Name of the run folder."""
        row = ROWS[self.row]
        kind, recipe = "fm" if row.forces else "nll", "pub" if self.published else "rec"
        return f"{paper_name(self.row)}-{kind}-{self.seed}-{recipe}"

    @classmethod
    def of(cls, folder: str) -> Task | None:
        """The task of a run folder, by its name; None for other folders."""
        match = re.fullmatch(r"([a-z]+)-(fm|nll)-(0|[1-9][0-9]*)-(rec|pub)", folder)
        for name, row in ROWS.items():
            if match and (match[1], match[2] == "fm") == (paper_name(name), row.forces):
                return cls(name, int(match[3]), match[4] == "pub")
        return None

    def choice(self, scale: Scale) -> MoleculeTraining:
        """The settings of the training."""
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
    """The outcome of a task."""

    task: Task
    measures: dict[str, float] = field(default_factory=dict)
    """Values of `MEASURES`, NaN where unknown; empty if training diverged."""
    parameters: int | None = None
    seconds: float | None = None
    """Duration of the training steps."""
    refused: int | None = None
    """Number of steps that the guard refused; None if unknown."""
    diverged: int | None = None
    """The step at which training was abandoned, as precisely as the log tells; None if it finished."""


def tasks(rows: Sequence[str], seeds: int, *, published: bool = False) -> list[Task]:
    """All rows with the first seed, then all with the second, and so on, so that a full table comes early."""
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
    """Train and evaluate what is missing in a folder, and return everything that is finished in it.

    Every task has its own run folder, with ``metrics.json`` beside the model, or ``diverged.json`` if its
    training became unstable. Finished tasks are not repeated; interrupted ones are resumed.

    Args:
        data: Trajectory of alanine dipeptide.
        folder: For the run folders.
        scale: Amount of work.
        todo: The tasks.
        say: Called with a line as each run begins.
        progress: Called with the progress of each run.

    Raises:
        ValueError: if the data are unsuitable, or the folder holds runs on other data or of another scale.
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
    """Refuse data that are unsuitable for Table 1.

    Raises:
        ValueError: if they are of another molecule, or have too few frames.
    """
    info = trajectory.open_info(data)
    if info.system.name != "ala2":
        raise ValueError(
            f"Table 1 is about alanine dipeptide (ala2), {data} holds {info.system.name}; train that with "
            f"`knotflow train {data} --preset paper`."
        )
    if not scale.frames:
        return
    (replica,) = trajectory.numbers(data, "replica")
    n_train = int((~Split.of(data.name, replica).mask()).sum())
    if n_train < scale.frames:
        raise ValueError(
            f"the scale paper needs {scale.frames:,} training frames, {data} has {n_train:,}; make them with "
            "`knotflow simulate --out data/ala2-paper.h5 --engine torch --ns 1000`, or use --scale small."
        )


def model_of(folder: Path, row: str) -> tuple[Task, Path] | None:
    """The model that represents a row, with seed 0, preferably by our recipe; None if there is none."""
    for task in (Task(row, 0), Task(row, 0, True)):
        file = folder / task.folder / MODEL
        if file.is_file():
            return task, file
    return None


def read_results(folder: Path, scale: Scale) -> list[Result]:
    """All finished runs of a folder, in the order of the table, then by recipe and seed."""
    found = (read_result(folder, task, scale) for task in _present(folder))
    return [result for result in found if result is not None]


def read_result(folder: Path, task: Task, scale: Scale) -> Result | None:
    """The outcome of a task; None if it is not finished, or was evaluated in another way."""
    run = folder / task.folder
    if not (run / MODEL).exists():
        if not (run / DIVERGED).exists():
            return None
        return Result(task, refused=_refused(run), diverged=int(read_json(run / DIVERGED)["step"]))
    if not _is_comparable(noted_evaluation(run / METRICS), scale):
        return None
    evaluation = read_json(run / METRICS)
    return Result(
        task,
        {name: Estimate.read(evaluation["measures"][key]).value for name, key in MEASURES.items()},
        evaluation["about"]["parameters"],
        float(notes(run / MODEL)["seconds"]),
        _refused(run),
    )


def _do(task: Task, data: Path, folder: Path, scale: Scale, *, say: Say, progress: Progress) -> None:
    """Train, then evaluate on the held-out frames."""
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
    """Whether an evaluation, perhaps by another version, is comparable with others of the scale."""
    wanted = {"rows": "validation", "samples": scale.samples, "seed": SEED, "dtype": "float32"}
    return found is not None and made_of(found | found["data"], wanted)


def _refused(folder: Path) -> int | None:
    last = folder / "last.ckpt"
    return int(read_checkpoint(last)["state"]["guard"]["refused"]) if last.exists() else None


def _present(folder: Path) -> list[Task]:
    """Tasks that have a run folder."""
    found = map(Task.of, (path.name for path in folder.iterdir()) if folder.is_dir() else ())
    order = list(ROWS)
    return sorted(
        filter(None, found), key=lambda task: (order.index(task.row), not task.published, task.seed)
    )


def _check_folder(folder: Path, data: Path, scale: Scale) -> None:
    """Refuse a folder with finished runs that are not comparable with those to come.

    Raises:
        ValueError: if one is on other data, or was not trained as its name says.
    """
    for task in _present(folder):
        run, noted = folder / task.folder, None
        if (run / MODEL).exists():
            noted = notes(run / MODEL)
        elif (run / DIVERGED).exists():
            noted = read_json(run / DIVERGED)
        if noted is not None:
            wanted = training_inputs(task.choice(scale), data)
            refuse_others(run, "a run", {**wanted, **noted_training(noted)}, wanted)
