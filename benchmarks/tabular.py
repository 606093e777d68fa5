"""Test log-likelihoods on tables of scikit-learn: the default `Flow.on` and zuko's NSF, in equal time.

Both flows get the same splits (60 % training, 20 % validation, 20 % test; one a seed), the same standardised
data, batches, AdamW with the same rate and weight decay, a cosine over the same seconds of processor time,
and both are taken at their best validation. Columns hold rounded numbers, which a density could exploit by
spikes: every value gets uniform noise as wide as the smallest step of its column. Log-likelihoods are in nats
a row, of standardised data; larger is better.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import zuko
from rich.console import Console
from torch import Tensor, nn

import knotflow as kf
from benchmarks.flow import n_parameters
from benchmarks.report import Table, progress

SETS = ("breast_cancer", "wine", "diabetes", "digits")
LogProb = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    sets: tuple[str, ...] = SETS
    seeds: int = 3
    seconds: float = 4.0
    """Processor time of each training, with its validations."""
    batch: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    check_every: int = 10
    """Steps between validations."""

    @classmethod
    def quick(cls) -> Settings:
        return cls(sets=("wine",), seeds=2, seconds=1.0)


@dataclass(frozen=True)
class Splits:
    """Rows (n, d) in float32, standardised by the mean and the deviation of the training rows."""

    train: Tensor
    validation: Tensor
    test: Tensor


@dataclass(frozen=True)
class Result:
    """One training: test log-likelihood at the best validation."""

    candidate: str
    name: str
    seed: int
    log_likelihood: float
    best_step: int
    steps: int
    parameters: int


def ours(dim: int) -> nn.Module:
    """The default flow on lines of ±5 standard deviations."""
    return kf.Flow.on([kf.Line()] * dim)


def nsf(dim: int) -> nn.Module:
    """zuko's default: three autoregressive transforms of eight bins, ReLU networks of 64 and 64."""
    return zuko.flows.NSF(dim)


CANDIDATES: dict[str, tuple[Callable[[int], nn.Module], LogProb]] = {
    "knotflow Flow.on": (ours, lambda flow, x: flow.log_prob(x)),
    "zuko NSF": (nsf, lambda flow, x: flow().log_prob(x)),
}


def table_of(name: str) -> Tensor:
    """The rows (n, d) of a set that comes with scikit-learn, as they are stored."""
    try:
        datasets = import_module("sklearn.datasets")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "the benchmark tabular needs the tables of scikit-learn; run: pip install scikit-learn."
        ) from None
    options = {"scaled": False} if name == "diabetes" else {}
    return torch.as_tensor(getattr(datasets, f"load_{name}")(**options).data, dtype=torch.float64)


def splits(rows: Tensor, seed: int) -> Splits:
    """Rows with noise, at random in three parts, standardised."""
    random = torch.Generator().manual_seed(seed)
    rows = with_noise(rows, random)[torch.randperm(len(rows), generator=random)]
    held = len(rows) // 5
    train, validation, test = rows.split([len(rows) - 2 * held, held, held])
    mean, deviation = train.mean(0), train.std(0)
    return Splits(*(((part - mean) / deviation).float() for part in (train, validation, test)))


def with_noise(rows: Tensor, random: torch.Generator) -> Tensor:
    """Rows, each value raised by a random part of the smallest step of its column."""
    steps = torch.stack([smallest_step(column) for column in rows.T])
    return rows + steps * torch.rand(rows.shape, generator=random, dtype=rows.dtype)


def smallest_step(column: Tensor) -> Tensor:
    """The smallest difference of two values of a column; 1 where all are equal."""
    steps = column.unique().diff()
    return steps.min() if len(steps) else column.new_ones(())


def trained(
    flow: nn.Module,
    log_prob: LogProb,
    data: Splits,
    settings: Settings,
    seed: int,
    clock: Callable[[], float] = time.process_time,
) -> tuple[float, int, int]:
    """Train for the given time; the test log-likelihood at the best validation, its step and all steps."""
    random = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(flow.parameters(), weight_decay=settings.weight_decay)
    best, best_step, step, started = -math.inf, 0, 0, clock()
    weights = copy.deepcopy(flow.state_dict())
    while (gone := (clock() - started) / settings.seconds) < 1:
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * gone))
        rows = torch.randint(len(data.train), (settings.batch,), generator=random)
        loss = -log_prob(flow, data.train[rows]).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 20.0)
        optimiser.step()
        step += 1
        if step % settings.check_every == 0:
            found = _mean(flow, log_prob, data.validation)
            if found > best:
                best, best_step, weights = found, step, copy.deepcopy(flow.state_dict())
    flow.load_state_dict(weights)
    return _mean(flow, log_prob, data.test), best_step, step


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """The table of log-likelihoods, and a record of every training."""
    results = []
    with progress(console) as bar:
        task = bar.add_task("tabular", total=len(settings.sets) * settings.seeds * len(CANDIDATES))
        for name in settings.sets:
            rows = table_of(name)
            for seed in range(settings.seeds):
                data = splits(rows, seed)
                for candidate, (build, log_prob) in CANDIDATES.items():
                    torch.manual_seed(seed)
                    flow = build(rows.shape[1])
                    found = trained(flow, log_prob, data, settings, seed)
                    results.append(Result(candidate, name, seed, *found, n_parameters(flow)))
                    bar.advance(task)
    return [_table(results, settings)], [vars(result) for result in results]


def _table(results: list[Result], settings: Settings) -> Table:
    rows = []
    for name in settings.sets:
        by = {c: [r for r in results if (r.name, r.candidate) == (name, c)] for c in CANDIDATES}
        first, second = ([r.log_likelihood for r in by[c]] for c in CANDIDATES)
        gains = [a - b for a, b in zip(first, second, strict=True)]
        for candidate, own in by.items():
            likelihood = with_error([r.log_likelihood for r in own])
            gain = with_error(gains) if candidate == next(iter(CANDIDATES)) else ""
            best = sum(r.best_step for r in own) / len(own)
            steps = sum(r.steps for r in own) / len(own)
            sizes = [f"{own[0].parameters:,}", f"{best:,.0f}", f"{steps:,.0f}"]
            rows.append([name, candidate, likelihood, gain, *sizes])
    return Table(
        f"Test log-likelihood, nats a row, {settings.seconds:g} s each",
        ["set", "flow", "log-likelihood", "gain", "parameters", "best step", "steps"],
        rows,
        [
            f"means and standard errors over {settings.seeds} splits; the gain is knotflow's over zuko, "
            "split by split"
        ],
        n_labels=2,
    )


def with_error(values: list[float]) -> str:
    """Mean and standard error."""
    x = torch.tensor(values, dtype=torch.float64)
    return f"{float(x.mean()):.2f} ± {float(x.std() / math.sqrt(len(x))):.2f}"


@torch.no_grad()
def _mean(flow: nn.Module, log_prob: LogProb, x: Tensor) -> float:
    return float(log_prob(flow, x).mean())
