"""Five coordinates on circles, intervals and a line: the default flow recovers density and score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from knotflow.energies import Mixed
from knotflow.files import write_json
from knotflow.flows import Flow
from knotflow.flows.io import notes
from knotflow.progress import Progress, silent
from knotflow.statistics.weights import effective_share
from knotflow.training import Batch, TrainingConfig, fit

SCALES = {"smoke": (2_000, 40, 100), "small": (100_000, 3000, 500)}
"""Points, training steps and batch size."""
FORCE_WEIGHT = 0.05


@dataclass(frozen=True)
class Result:
    """Errors of the trained flow."""

    kl: float
    """Mean of log p - log q over test points, in nats."""
    kl_error: float
    """Its standard error."""
    score_error: float
    """Root mean square error of the score over its root mean square, over test points."""
    score_errors: tuple[float, ...]
    """The same per coordinate."""
    ess: float
    """Effective sample size of samples of the flow, weighted by p / q, as a fraction."""
    training_seconds: float


def run(folder: Path, scale: str, *, seed: int = 0, progress: Progress = silent) -> Result:
    """Train ``Flow.on(domains)`` with likelihood and force matching, and compare it with the truth."""
    points, steps, batch = SCALES[scale]
    target = Mixed()
    x = target.sample(points, torch.Generator().manual_seed(seed))
    config = TrainingConfig.parse(
        {
            "steps": steps,
            "batch_size": batch,
            "warm_up": max(1, steps // 20),
            "learning_rate": 5e-3,
            "loss": {"nll": 1.0, "force_matching": FORCE_WEIGHT},
            "seed": seed,
        }
    )
    torch.manual_seed(seed)
    flow = fit(Flow.on(target.domains), Batch(x, target.force(x)), config, folder, progress=progress)
    result = evaluate(flow, target, 20_000, float(notes(folder / "model.safetensors")["seconds"]))
    write_json(folder / "metrics.json", result)
    return result


@torch.no_grad()
def evaluate(flow: Flow, target: Mixed, n: int, seconds: float) -> Result:
    """Errors of a flow on n fresh points of the target, and on n points of its own."""
    x = target.sample(n, torch.Generator().manual_seed(12345))
    gap = -target.energy(x) - flow.log_prob(x)
    true, model = target.force(x), flow.score(x)
    square, size = (model - true).square().mean(0), true.square().mean(0)
    drawn, log_q = flow.sample_and_log_prob(n, generator=torch.Generator().manual_seed(54321))
    log_w = (-target.energy(drawn) - log_q).double().numpy()
    return Result(
        kl=float(gap.mean()),
        kl_error=float(gap.std() / math.sqrt(n)),
        score_error=float((square.sum() / size.sum()).sqrt()),
        score_errors=tuple((square / size).sqrt().tolist()),
        ess=effective_share(log_w),
        training_seconds=seconds,
    )
