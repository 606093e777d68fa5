"""The rings of section "Illustrative toy example": figures 1, 2 and 5, and a table of exact errors."""

from __future__ import annotations

import copy
import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from knotflow.analysis import compare, force_jump
from knotflow.energies import Rings, metropolis
from knotflow.files import write_atomically
from knotflow.flows import Flow, FlowConfig, default_config, load
from knotflow.flows.io import notes
from knotflow.training import Batch, TrainingConfig, fit

DOMAINS = ("interval", "circle")
MODELS = {"bspline": "B-spline", "rq": "RQ-spline", "smooth": "Smooth", "best": "B-spline, best"}
SEED = 0
SAMPLES = 10_000
"""Points drawn to time the sampling."""
CHUNK = 5_000
"""Points whose errors are computed at a time: with 20,000, smooth flows on the circle took 6 GB."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scale:
    """How much work to do."""

    chains: int
    """Metropolis chains."""
    burn_in: int
    keep: int
    """States kept of every chain, after the burn-in."""
    steps: int
    """Training steps."""
    batch: int
    bins: int
    hidden: int
    grid: int
    """Cells of the quadrature along each axis."""
    lines: int
    """Lines along which jumps of the force are looked for."""
    picture: int = 400
    """Pixels of a field's picture along each axis."""
    repeats: int = 5
    """How often the sampling is timed."""


SCALES = {
    "smoke": Scale(500, 100, 4, 30, 200, 8, 16, 100, 4, picture=60, repeats=1),
    "small": Scale(10_000, 1000, 10, 1500, 1000, 32, 100, 1000, 200),
    "paper": Scale(10_000, 1000, 10, 8000, 1000, 32, 100, 1000, 200),
}


@dataclass(frozen=True)
class Result:
    """A row of the table."""

    model: str
    domain: str
    parameters: int
    kl: float
    mass: float
    force_rms: float
    force_median: float
    true_force_rms: float
    largest_force: float
    force_jump: float
    training_seconds: float
    sampling_seconds: float
    """Time to draw `SAMPLES` points."""


def flow_config(model: str, domain: str, scale: Scale) -> FlowConfig:
    """Four couplings as in the paper for its three transforms; `best` has a free hand."""
    energy = Rings(periodic=domain == "circle")
    floor = 1e-4
    # Bins of at least a third of a uniform one keep forces calm. On the circle the true force jumps at the
    # seam, and narrower ones (the default) follow it better.
    slopes = {"kind": "slopes", "min_width": 0.32 / scale.bins if domain == "interval" else None}
    transforms: dict[str, dict[str, Any]] = {
        "bspline": {"family": "bspline", "bins": scale.bins, "phase": False, "parametrisation": slopes},
        "rq": {
            "family": "rq",
            "bins": scale.bins,
            "min_width": floor,
            "min_height": floor,
            "min_slope": floor,
        },
        "smooth": {"family": "bump", "components": scale.bins, "min_slope": floor},
        "best": {"family": "bspline", "bins": scale.bins},
    }
    conditioner = {"hidden": [scale.hidden] * 2, "frequencies": 4 if model == "best" else 1}
    return default_config(energy.domains, rounds=2, transform=transforms[model], conditioner=conditioner)


def training_config(model: str, scale: Scale, seed: int) -> TrainingConfig:
    """One recipe for all three transforms; `best` matches forces, too.

    Without the decay of the weights the networks learn the noise of the 100,000 points: the likelihood gains
    a little, but where a network turns sharply the force is wrong by hundreds. Forces in the loss do the same
    job better.
    """
    return TrainingConfig.parse(
        {
            "steps": scale.steps,
            "batch_size": scale.batch,
            "learning_rate": 5e-3,
            "warm_up": max(1, scale.steps // 20),
            "weight_decay": 0.0 if model == "best" else 0.1,
            "loss": {"nll": 1.0, "force_matching": 1e-4 if model == "best" else 0.0},
            "checkpoint_every": 500,
            "log_every": min(50, max(1, scale.steps // 10)),
            "seed": seed,
        }
    )


def sample_rings(energy: Rings, scale: Scale, seed: int) -> Tensor:
    """Training data by Metropolis steps of standard deviation 0.1, shape (chains * keep, 2)."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.rand(scale.chains, 2, generator=generator)
    points, _ = metropolis(
        energy,
        start,
        steps=scale.burn_in,
        keep=scale.keep,
        step_size=0.1,
        generator=generator,
    )
    return points


def run_scenario(
    model: str,
    domain: str,
    scale: Scale,
    folder: Path,
    *,
    seed: int = SEED,
    say: Say = print,
    progress: bool = True,
) -> Result:
    """Data, training and evaluation of one model on one domain; what is done already is not done again."""
    done = folder / "result.json"
    energy = Rings(periodic=domain == "circle")
    say(f"{MODELS[model]} on the {domain}: sampling the rings")
    x = sample_rings(energy, scale, seed)
    torch.manual_seed(seed)
    flow = flow_config(model, domain, scale).build()
    config = training_config(model, scale, seed)
    force = energy.force(x.double()).to(x.dtype) if config.loss.force_matching else None
    flow = fit(flow, Batch(x, force), config, folder, title=f"{MODELS[model]}, {domain}", progress=progress)
    if done.exists():
        return Result(**json.loads(done.read_text()))
    say(f"{MODELS[model]} on the {domain}: exact errors on a grid of {scale.grid} x {scale.grid}")
    result = evaluate(
        model, domain, flow, energy, scale, float(notes(folder / "model.safetensors")["seconds"])
    )
    write_atomically(done, json.dumps(asdict(result), indent=2).encode())
    return result


def evaluate(
    model: str, domain: str, flow: Flow, energy: Rings, scale: Scale, training_seconds: float
) -> Result:
    """Exact errors of a trained flow, and how long it takes to draw from it."""
    sampling = _sampling_seconds(flow, scale.repeats)
    exact = copy.deepcopy(flow).double()
    errors = compare(exact.log_prob, exact.score, energy, points=scale.grid, chunk=CHUNK)
    jump = force_jump(exact.score, energy, lines=scale.lines, generator=torch.Generator().manual_seed(0))
    return Result(
        model=model,
        domain=domain,
        parameters=sum(p.numel() for p in flow.parameters()),
        **asdict(errors),
        force_jump=jump,
        training_seconds=training_seconds,
        sampling_seconds=sampling,
    )


def read_results(folder: Path) -> list[Result]:
    """All finished scenarios of a folder, in the order of the table."""
    found = []
    for model in MODELS:
        for domain in DOMAINS:
            path = folder / f"{model}-{domain}" / "result.json"
            if path.exists():
                found.append(Result(**json.loads(path.read_text())))
    return found


def read_flow(folder: Path, model: str, domain: str) -> Flow:
    """The trained flow of a finished scenario."""
    return load(folder / f"{model}-{domain}" / "model.safetensors")


def field(
    log_prob: Callable[[Tensor], Tensor], force: Callable[[Tensor], Tensor], n: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Density (n, n) and force (n, n, 2) on the midpoints of a grid of the unit square."""
    axis = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    x = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        density = torch.cat([log_prob(part) for part in x.split(CHUNK)]).exp()
        forces = torch.cat([force(part) for part in x.split(CHUNK)])
    return density.reshape(n, n).numpy(), forces.reshape(n, n, 2).numpy()


def learned_field(folder: Path, model: str, domain: str, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The `field` of a finished scenario, computed once and kept in its folder."""
    path = folder / f"{model}-{domain}" / "field.npz"
    if not path.exists():
        flow = read_flow(folder, model, domain).double()
        density, force = field(flow.log_prob, flow.score, n)
        content = io.BytesIO()
        np.savez_compressed(content, density=density.astype(np.float32), force=force.astype(np.float32))
        write_atomically(path, content.getvalue())
    with np.load(path, allow_pickle=False) as kept:
        return kept["density"].astype(np.float64), kept["force"].astype(np.float64)


def accumulated_maps(
    flow: Flow, points: int = 25, grid: int = 401
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """All transformations a flow applies to some of its own samples, on a grid of [0, 1]: x, y and slopes."""
    x = torch.linspace(0.0, 1.0, grid, dtype=torch.float64)
    exact = copy.deepcopy(flow).double()
    torch.manual_seed(SEED)
    images, slopes = [], []
    with torch.no_grad():
        for coupling, z, _ in exact.layers(exact.sample(points)):
            for f, raw in zip(coupling.transforms, coupling.raw(z), strict=True):
                y, ladj = f.forward(x.expand(points, -1), raw.unsqueeze(-2))
                images.append(y)
                slopes.append(ladj.exp())
    return x.numpy(), torch.cat(images).numpy(), torch.cat(slopes).numpy()


def _sampling_seconds(flow: Flow, repeats: int) -> float:
    """Median time to draw `SAMPLES` points."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        flow.sample(SAMPLES)
        times.append(time.perf_counter() - start)
    return float(np.median(times))
