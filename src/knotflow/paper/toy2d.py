"""The rings of section "Illustrative toy example": figures 1, 2 and 5, and a table of exact errors."""

from __future__ import annotations

import copy
import csv
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from knotflow.analysis import compare, force_jump, log_normaliser
from knotflow.energies import Rings, metropolis
from knotflow.files import json_bytes, read_json, write_atomically, write_json
from knotflow.flows import Flow, FlowConfig, default_config, load
from knotflow.flows.io import notes
from knotflow.inputs import file_fingerprint, fingerprint, made_of
from knotflow.progress import Progress, silent, titled
from knotflow.report.curve_plots import Curve, draw_curves
from knotflow.report.field_plots import FieldPanel, draw_fields
from knotflow.report.figures import save
from knotflow.report.map_plots import MapPanel, draw_accumulation
from knotflow.report.page import Cell, Download, Page, Picture, Section, Table, write_page
from knotflow.storage.arrays import read_arrays, write_arrays
from knotflow.training import Batch, TrainingConfig, fit
from knotflow.version import __version__
from knotflow.workflows.report import read_curves
from knotflow.workflows.steps import Say

DOMAINS: Final = {"interval": 1, "circle": 5}
"""Domains, and the numbers of their figures."""
MODELS: Final = {"bspline": "B-spline", "rq": "RQ-spline", "smooth": "Smooth", "best": "B-spline, best"}
MODEL, RESULT = "model.safetensors", "result.json"
SEED: Final = 0
SAMPLES: Final = 10_000
"""Points drawn to time the sampling."""
CHUNK: Final = 5_000
"""Points whose errors are computed at a time: with 20,000, smooth flows on the circle took 6 GB."""
SMOOTHED: Final = 50
"""Logged losses that are averaged in a curve."""

PUBLISHED: Final = {
    ("bspline", "interval"): (0.086, 85.0),
    ("bspline", "circle"): (0.093, 80.0),
    ("rq", "interval"): (0.093, 167.0),
    ("rq", "circle"): (0.097, 144.0),
    ("smooth", "interval"): (0.053, 51.0),
    ("smooth", "circle"): (0.046, 49.0),
}
"""KL and RMS force error of the weights published with the paper, by the same quadrature, for comparison."""
NOTES: Final = (
    "KL: exact divergence from the truth to the model. Mass: integral of the model's density, which should "
    "be 1. Both by the midpoint rule in float64.",
    "Force errors: Euclidean length of the difference of forces, weighted by the true density, in units of "
    "the unit square.",
    "Force jump: what remains of the largest step of the force on random lines after 30 bisections; 0 for a "
    "continuous force. The seam of the circle is left out: there the true force itself jumps.",
)


@dataclass(frozen=True)
class Scale:
    """Amount of work."""

    chains: int
    """Metropolis chains."""
    burn_in: int
    keep: int
    """States kept per chain after the burn-in."""
    steps: int
    """Training steps."""
    batch: int
    bins: int
    hidden: int
    grid: int
    """Cells of the quadrature along each axis."""
    lines: int
    """Random lines that are searched for jumps of the force."""
    picture: int = 400
    """Pixels of a picture along each axis."""
    repeats: int = 5
    """Timings of the sampling."""


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
    """Median time to draw `SAMPLES` points."""


CELLS: Final[dict[str, Callable[[Result], Cell]]] = {
    "model": lambda r: MODELS[r.model],
    "domain": lambda r: r.domain,
    "parameters": lambda r: r.parameters,
    "KL (nats)": lambda r: f"{r.kl:.4f}",
    "mass": lambda r: f"{r.mass:.5f}",
    "force error, RMS": lambda r: f"{r.force_rms:.1f}",
    "force error, median": lambda r: f"{r.force_median:.1f}",
    "largest force": lambda r: f"{r.largest_force:,.0f}",
    "force jump": lambda r: f"{r.force_jump:.1e}",
    "training (s)": lambda r: f"{r.training_seconds:.0f}",
    f"drawing {SAMPLES:,} (s)": lambda r: f"{r.sampling_seconds:.3f}",
}
"""Columns of the table, and their text."""
COLUMNS: Final = tuple(CELLS)
BRIEF: Final = (0, 1, 3, 5, 8, 9, 10)
"""Columns that fit on a terminal."""


def flow_config(model: str, domain: str, scale: Scale) -> FlowConfig:
    """Four couplings as in the paper for its three transforms; `best` departs from the paper."""
    energy = Rings(periodic=domain == "circle")
    floor = 1e-4
    # Bins at least a third as wide as uniform ones keep forces smooth. On the circle the true force jumps at
    # the seam, which narrower bins (the default) follow better.
    slopes = {"kind": "slopes", "min_width": 0.32 / scale.bins if domain == "interval" else None}
    transforms: dict[str, dict[str, Any]] = {
        "bspline": {"family": "bspline", "bins": scale.bins, "phase": False, "parametrisation": slopes},
        "rq": {"family": "rq", "bins": scale.bins}
        | dict.fromkeys(("min_width", "min_height", "min_slope"), floor),
        "smooth": {"family": "bump", "components": scale.bins, "min_slope": floor},
        "best": {"family": "bspline", "bins": scale.bins},
    }
    conditioner = {"hidden": [scale.hidden] * 2, "frequencies": 4 if model == "best" else 1}
    return default_config(energy.domains, rounds=2, transform=transforms[model], conditioner=conditioner)


def training_config(model: str, scale: Scale, seed: int) -> TrainingConfig:
    """One recipe for all three transforms; `best` also matches forces.

    Without weight decay the networks learn the noise of the 100,000 points: the likelihood gains a little,
    but where a network turns sharply the force is wrong by hundreds. Forces in the loss prevent this even
    better.
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
    """Training data from Metropolis steps of standard deviation 0.1, shape (chains * keep, 2)."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.rand(scale.chains, 2, generator=generator)
    return metropolis(
        energy, start, steps=scale.burn_in, keep=scale.keep, step_size=0.1, generator=generator
    )[0]


def run_scenario(
    model: str,
    domain: str,
    scale: Scale,
    folder: Path,
    *,
    seed: int = SEED,
    say: Say = print,
    progress: Progress = silent,
) -> Result:
    """Data, training and evaluation of one model on one domain; finished parts are not repeated."""
    energy = Rings(periodic=domain == "circle")
    say(f"{MODELS[model]} on the {domain}: sampling the rings")
    x = sample_rings(energy, scale, seed)
    torch.manual_seed(seed)
    flow = flow_config(model, domain, scale).build()
    config = training_config(model, scale, seed)
    force = energy.force(x.double()).to(x.dtype) if config.loss.force_matching else None
    flow = fit(flow, Batch(x, force), config, folder, progress=titled(f"{MODELS[model]}, {domain}", progress))
    file, made = folder / RESULT, folder / MODEL
    inputs = {
        "model": file_fingerprint(made),
        "grid": scale.grid,
        "lines": scale.lines,
        "repeats": scale.repeats,
        "knotflow": __version__,
    }
    if file.exists() and made_of(read_json(file).get("inputs"), inputs):
        return _read(file)
    say(f"{MODELS[model]} on the {domain}: exact errors on a grid of {scale.grid} x {scale.grid}")
    result = evaluate(model, domain, flow, energy, scale, float(notes(made)["seconds"]))
    write_json(file, {**asdict(result), "inputs": inputs})
    return result


def evaluate(
    model: str, domain: str, flow: Flow, energy: Rings, scale: Scale, training_seconds: float
) -> Result:
    """Exact errors of a trained flow, and the time to draw from it."""
    times = []
    for _ in range(scale.repeats):
        start = time.perf_counter()
        flow.sample(SAMPLES)
        times.append(time.perf_counter() - start)
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
        sampling_seconds=float(np.median(times)),
    )


def read_results(folder: Path) -> list[Result]:
    """All finished scenarios of a folder, in the order of the table."""
    files = (folder / f"{model}-{domain}" / RESULT for model in MODELS for domain in DOMAINS)
    return [_read(file) for file in files if file.exists()]


def _read(file: Path) -> Result:
    kept: dict[str, Any] = {key: np.nan if value is None else value for key, value in read_json(file).items()}
    kept.pop("inputs", None)
    return Result(**kept)


def read_flow(folder: Path, model: str, domain: str) -> Flow:
    """The trained flow of a finished scenario."""
    return load(folder / f"{model}-{domain}" / MODEL)


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
    place = folder / f"{model}-{domain}"
    path, inputs = place / "field.npz", fingerprint({"model": file_fingerprint(place / MODEL), "n": n})
    kept = read_arrays(path) if path.exists() else {}
    if str(kept.get("inputs")) != inputs:
        flow = read_flow(folder, model, domain).double()
        density, force = (part.astype(np.float32) for part in field(flow.log_prob, flow.score, n))
        kept = {"inputs": np.array(inputs), "density": density, "force": force}
        write_arrays(path, kept, compressed=True)
    return kept["density"].astype(np.float64), kept["force"].astype(np.float64)


def accumulated_maps(
    flow: Flow, points: int = 25, grid: int = 401
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """All maps that a flow applies to some of its own samples, on a grid of [0, 1]: x, y and slopes."""
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


def rows(results: Sequence[Result]) -> list[list[Cell]]:
    """Cells of the table, one row per result."""
    return [[cell(result) for cell in CELLS.values()] for result in results]


def write_report(folder: Path, scale: str) -> Path:
    """Draw the figures and write ``index.html``, ``results.json`` and ``results.csv`` into a folder.

    The page shows everything that is finished in the folder, whichever command made it.
    """
    results = read_results(folder)
    if not results:
        raise ValueError(f"{folder} holds no finished scenario; run: knotflow reproduce toy2d --out {folder}")
    sections = [_table(results, scale)]
    for domain, number in DOMAINS.items():
        if pictures := draw_domain(folder, results, domain, SCALES[scale].picture):
            sections.append(Section(f"Figure {number}: {domain}", pictures=pictures))
    if pictures := draw_learned_maps(folder, results):
        sections.append(Section("Figure 2: learned transformations", pictures=pictures))
    sections.append(_curves(folder, results))
    write_json(folder / "results.json", results)
    write_atomically(folder / "results.csv", _csv(results))
    page = folder / "index.html"
    lead = (
        f"Flows trained on samples of two-dimensional rings, at the scale {scale!r}. The paper claims that "
        "B-spline flows have continuous forces, like smooth flows, and can be sampled as fast as "
        "rational-quadratic ones."
    )
    write_page(Page("Rings: densities and forces of three kinds of flow", lead, sections), page)
    return page


def _table(results: Sequence[Result], scale: str) -> Section:
    compared = "; ".join(
        f"{MODELS[model]}, {domain}: KL {kl}, force error {force:.0f}"
        for (model, domain), (kl, force) in PUBLISHED.items()
    )
    true = {r.domain: f"{r.true_force_rms:.1f} on the {r.domain}" for r in results}
    return Section(
        "Exact errors",
        [
            f"Root mean square of the true force: {', '.join(true.values())}.",
            f"For comparison, the weights published with the paper, measured in the same way: {compared}.",
        ],
        Table(
            COLUMNS,
            rows(results),
            f"Scale {scale}.",
            NOTES,
            highlight=[i for i, r in enumerate(results) if r.model in ("bspline", "best")],
        ),
        downloads=[Download("results.json", json_bytes(results)), Download("results.csv", _csv(results))],
    )


def draw_domain(folder: Path, results: Sequence[Result], domain: str, grid: int) -> list[Picture]:
    """Figure 1 or 5, saved in the folder; empty if there are no results on the domain."""
    models = [r.model for r in results if r.domain == domain]
    if not models:
        return []
    energy = Rings(periodic=domain == "circle")
    log_z = log_normaliser(energy, points=1000)
    truth = field(lambda x: -energy.energy(x) - log_z, energy.force, grid)
    panels = [FieldPanel("truth", *truth)]
    panels += [FieldPanel(MODELS[model], *learned_field(folder, model, domain, grid)) for model in models]
    path = folder / f"figure{DOMAINS[domain]}.png"
    save(draw_fields(panels), path)
    caption = (
        f"Figure {DOMAINS[domain]}: density (above) and force field (below) on the {domain}. Colours share "
        "one scale; discontinuous forces show as sharp lines."
    )
    alt = f"Densities and force fields of the truth and of {len(models)} flows on the {domain}"
    return [Picture(path, alt, caption)]


def draw_learned_maps(folder: Path, results: Sequence[Result]) -> list[Picture]:
    """Figure 2, saved in the folder; empty if there is no B-spline among the results."""
    panels = [
        MapPanel(domain, *accumulated_maps(read_flow(folder, "bspline", domain)))
        for domain in DOMAINS
        if any((r.model, r.domain) == ("bspline", domain) for r in results)
    ]
    if not panels:
        return []
    path = folder / "figure2.png"
    save(draw_accumulation(panels), path)
    caption = (
        "Figure 2: all B-spline transformations (above) and their slopes (below) that the trained flows "
        "apply to 25 samples. On the circle the slopes at both ends agree."
    )
    return [Picture(path, "Learned spline maps of the unit interval and of the circle", caption)]


def _curves(folder: Path, results: Sequence[Result]) -> Section:
    pictures = []
    for domain in DOMAINS:
        models = [r.model for r in results if r.domain == domain]
        logs = {model: read_curves(folder / f"{model}-{domain}" / "log.csv") for model in models}
        curves = {MODELS[model]: _smooth(*log["nll"]) for model, log in logs.items() if "nll" in log}
        if curves:
            path = folder / f"training-{domain}.png"
            save(draw_curves(curves), path)
            pictures.append(Picture(path, f"Training losses on the {domain}", f"Training on the {domain}."))
    return Section("Training", ["Negative log-likelihood of the batches, running means."], pictures=pictures)


def _smooth(steps: NDArray[Any], values: NDArray[Any]) -> Curve:
    """Running means of the logged losses, over at most a tenth of them."""
    width = max(1, min(SMOOTHED, len(steps) // 10))
    kernel = np.full(width, 1 / width)
    return np.convolve(steps, kernel, "valid"), np.convolve(values, kernel, "valid")


def _csv(results: Sequence[Result]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(asdict(results[0])))
    writer.writeheader()
    writer.writerows(asdict(r) for r in results)
    return text.getvalue().encode()
