"""Has knotflow become slower? A few times now, against those of a saved baseline.

Times are kept as ratios to a *reference* in PyTorch alone (a product of matrices and exponentials), which is
timed just before each of them in the same run: a slower or busier machine slows down both. ``python -m
benchmarks baseline`` saves the ratios to ``benchmarks/baseline.json``; ``python -m benchmarks compare``
measures again and judges. The fastest of many rounds counts, which other programs have disturbed least. Rows
that are slower by more than `TOLERANCE` are measured up to `PATIENCE` times more, and the best ratio counts:
slow spells end, regressions do not.

Ratios depend on the processor and on the number of threads: compare on the kind of machine that made the
baseline, which the table names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.flow import FORCE_STEP, NLL_STEP, training
from benchmarks.kernels import kernel_calls
from benchmarks.models import frames, paper_generator, paper_loss, scores
from benchmarks.report import Table, environment, progress
from knotflow.flows.sampling import Sampler
from knotflow.molecules import ala2

BASELINE = Path(__file__).parent / "baseline.json"
PATIENCE = 3
TOLERANCE = 0.15
WARM_UPS = 3
Ratios = dict[str, float]
Calls = Mapping[str, Callable[[], Any]]


@dataclass(frozen=True)
class Settings:
    """Sizes of a run; a baseline holds for one set of them."""

    bins: int = 32
    elements: int = 100_000
    batch: int = 128
    samples: int = 1_000
    matrix: int = 512
    exponentials: int = 1_000_000
    rounds: int = 31
    seed: int = 0

    @classmethod
    def quick(cls) -> Settings:
        return cls(elements=2_000, batch=8, samples=10, matrix=64, exponentials=10_000, rounds=5)


@dataclass(frozen=True)
class Change:
    """A ratio then and now."""

    name: str
    old: float
    new: float

    @property
    def change(self) -> float:
        return self.new / self.old - 1

    @property
    def slower(self) -> bool:
        """Whether it is so by more than the tolerance; what is not a number counts as slower."""
        return not self.change <= TOLERANCE


class BaselineError(ValueError):
    """There is nothing to compare with."""


# ---- judging


def changes(old: Ratios, new: Ratios) -> list[Change]:
    """Row by row; the same rows must be in both."""
    check_rows(old, new)
    return [Change(name, old[name], ratio) for name, ratio in new.items()]


def check_rows(old: Iterable[str], new: Iterable[str]) -> None:
    """Refuse a baseline of other rows."""
    if set(old) != set(new):
        raise BaselineError(
            f"the baseline has the rows {', '.join(sorted(old))}, this run {', '.join(sorted(new))}; "
            "save a new one: python -m benchmarks baseline."
        )


def judged(old: Ratios, measured: Callable[[Iterable[str]], Ratios]) -> list[Change]:
    """Measure all rows, and those that seem slower again, as long as they do.

    Args:
        old: ratios of the baseline.
        measured: gives the ratios of the rows named.
    """
    new = dict(measured(old))
    for _ in range(PATIENCE):
        suspects = [row.name for row in changes(old, new) if row.slower]
        if not suspects:
            break
        new |= {name: min(new[name], ratio) for name, ratio in measured(suspects).items()}
    return changes(old, new)


# ---- measuring


def calls(settings: Settings) -> Calls:
    """What is watched: kernels, training steps of the preset ``paper``, and sampling."""
    model = paper_generator(settings.seed)
    batch = frames(ala2(), "paper", settings.batch, settings.seed)
    steps = {
        f"{what} step": training(model.flow, paper_loss(model, what), batch.x, scores(batch))
        for what in (NLL_STEP, FORCE_STEP)
    }
    drawn = paper_generator(settings.seed)
    return {
        **kernel_calls(settings.bins, settings.elements, settings.seed),
        **steps,
        "sample": lambda: Sampler(drawn, settings.seed, keep_mirrored=True).take(settings.samples),
    }


def reference(settings: Settings) -> Callable[[], Any]:
    """A product of matrices and exponentials: arithmetic and memory, nothing of ours."""
    generator = torch.Generator().manual_seed(settings.seed)
    a, b = (torch.randn(settings.matrix, settings.matrix, generator=generator) for _ in range(2))
    x = torch.randn(settings.exponentials, generator=generator)
    return lambda: (torch.mm(a, b), torch.exp(x))


def measure(named: Calls, against: Callable[[], Any], rounds: int, bar: Progress) -> Ratios:
    """The fastest round of each call, over the fastest of the reference before it."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in named}
    for i in bar.track(range(WARM_UPS + rounds), description="compare: time"):
        for name, call in named.items():
            pair = _seconds(against), _seconds(call)
            if i >= WARM_UPS:
                times[name].append(pair)
    return {
        name: min(own for _, own in pairs) / min(base for base, _ in pairs) for name, pairs in times.items()
    }


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# ---- the two commands


def save(settings: Settings, path: Path, console: Console) -> None:
    """Measure, and write the baseline."""
    facts = environment()
    with progress(console) as bar:
        ratios = measure(calls(settings), reference(settings), settings.rounds, bar)
    document = {"environment": facts, "sizes": asdict(settings), "ratios": ratios}
    path.write_text(json.dumps(document, indent=1) + "\n")
    console.print(f"written: {path}")


def compare(settings: Settings, path: Path, console: Console) -> bool:
    """Measure, print the table, and say whether no row is slower than the baseline allows."""
    baseline = load(path, settings)
    everything, against = calls(settings), reference(settings)
    check_rows(baseline["ratios"], everything)
    with progress(console) as bar:

        def measured(names: Iterable[str]) -> Ratios:
            chosen = {name: everything[name] for name in names}
            return measure(chosen, against, settings.rounds, bar)

        rows = judged(baseline["ratios"], measured)
    console.print(change_table(rows, baseline["environment"]).rich())
    return not any(row.slower for row in rows)


def load(path: Path, settings: Settings) -> dict[str, Any]:
    """A baseline of these sizes and so many threads."""
    if not path.exists():
        raise BaselineError(
            f"there is no baseline at {path}; save one before your change: python -m benchmarks baseline."
        )
    baseline: dict[str, Any] = json.loads(path.read_text())
    threads = baseline["environment"]["threads"]
    if baseline["sizes"] != asdict(settings) or threads != torch.get_num_threads():
        raise BaselineError(
            f"the baseline at {path} was made with other sizes or threads ({threads}); use the same options, "
            "or save a new one: python -m benchmarks baseline."
        )
    return baseline


def change_table(rows: list[Change], made: dict[str, Any]) -> Table:
    lines = [
        [row.name, f"{row.old:.3f}", f"{row.new:.3f}", f"{row.change:+.0%}", "SLOWER" if row.slower else "ok"]
        for row in rows
    ]
    title = f"times as multiples of the reference; more than {TOLERANCE:.0%} is slower"
    noted = [f"baseline: {made['date']}, {made['cpu']}, torch {made['torch']}"]
    if made["cpu"] != environment()["cpu"]:
        noted.append("it was made on another processor: differences may be those of the machines")
    return Table(title, ["row", "baseline", "now", "change", ""], lines, noted)
