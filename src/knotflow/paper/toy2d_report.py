"""The page of the toy example: table, figures 1, 2 and 5, training curves."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from knotflow.analysis import log_normaliser
from knotflow.energies import Rings
from knotflow.files import write_atomically
from knotflow.log_file import read_log
from knotflow.paper.toy2d import (
    DOMAINS,
    MODELS,
    SAMPLES,
    SCALES,
    Result,
    accumulated_maps,
    field,
    learned_field,
    read_flow,
    read_results,
)
from knotflow.report.curve_plots import Curve, draw_curves
from knotflow.report.field_plots import FieldPanel, draw_fields
from knotflow.report.figures import save
from knotflow.report.map_plots import MapPanel, draw_accumulation
from knotflow.report.page import Download, Page, Picture, Section, Table, write_page

NUMBERS = {"interval": 1, "circle": 5}
"""Of the figures."""
SMOOTHED = 50
"""Logged losses that are averaged in a curve."""

PUBLISHED = {
    ("bspline", "interval"): (0.086, 85.0),
    ("bspline", "circle"): (0.093, 80.0),
    ("rq", "interval"): (0.093, 167.0),
    ("rq", "circle"): (0.097, 144.0),
    ("smooth", "interval"): (0.053, 51.0),
    ("smooth", "circle"): (0.046, 49.0),
}
"""KL and RMS force error of the weights published with the paper, by the same quadrature; to compare with."""

COLUMNS = (
    "model",
    "domain",
    "parameters",
    "KL (nats)",
    "mass",
    "force error, RMS",
    "force error, median",
    "largest force",
    "force jump",
    "training (s)",
    f"drawing {SAMPLES:,} (s)",
)
BRIEF = (0, 1, 3, 5, 8, 9, 10)
"""Columns that fit on a terminal."""
NOTES = (
    "KL: exact divergence from the truth to the model; mass: integral of the model's density, 1 if all is "
    "right. Both by the midpoint rule in float64.",
    "Force errors: Euclidean length of the difference of forces, weighted by the true density; unit-square "
    "units.",
    "Force jump: what remains of the largest step of the force on random lines after 30 bisections; 0 for a "
    "continuous force. The seam of the circle is left out: there the true force itself jumps.",
)


def rows(results: Sequence[Result]) -> list[list[str | float | int | None]]:
    """Cells of the table, one row for each result."""
    return [
        [
            MODELS[r.model],
            r.domain,
            r.parameters,
            f"{r.kl:.4f}",
            f"{r.mass:.5f}",
            f"{r.force_rms:.1f}",
            f"{r.force_median:.1f}",
            f"{r.largest_force:,.0f}",
            f"{r.force_jump:.1e}",
            f"{r.training_seconds:.0f}",
            f"{r.sampling_seconds:.3f}",
        ]
        for r in results
    ]


def write_report(folder: Path, scale: str) -> Path:
    """Draw the figures and write ``index.html``, ``results.json`` and ``results.csv`` into a folder.

    Everything that is finished in the folder is shown, whichever command made it.
    """
    results = read_results(folder)
    if not results:
        raise ValueError(f"{folder} holds no finished scenario; run: knotflow reproduce toy2d --out {folder}")
    sections = [_table(results, scale)]
    for domain in DOMAINS:
        picture = draw_domain(folder, results, domain, SCALES[scale].picture)
        if picture is not None:
            sections.append(Section(f"Figure {NUMBERS[domain]}: {domain}", pictures=[picture]))
    maps = draw_learned_maps(folder, results)
    if maps is not None:
        sections.append(Section("Figure 2: learned transformations", pictures=[maps]))
    sections.append(_curves(folder, results))
    write_atomically(folder / "results.json", _json(results))
    write_atomically(folder / "results.csv", _csv(results))
    page = folder / "index.html"
    lead = (
        f"Flows trained on samples of two-dimensional rings, at the scale {scale!r}. The paper's claim: "
        "B-spline flows have continuous forces like smooth flows, and are drawn from as fast as "
        "rational-quadratic ones."
    )
    write_page(Page("Rings: densities and forces of three kinds of flow", lead, sections), page)
    return page


def _table(results: Sequence[Result], scale: str) -> Section:
    published = [[MODELS[model], domain, kl, force] for (model, domain), (kl, force) in PUBLISHED.items()]
    compared = "; ".join(f"{m}, {d}: KL {kl}, force error {force:.0f}" for m, d, kl, force in published)
    true = {r.domain: r.true_force_rms for r in results}
    return Section(
        "Exact errors",
        [
            "Root mean square of the true force: "
            + ", ".join(f"{value:.1f} on the {domain}" for domain, value in true.items())
            + ".",
            f"For comparison, the weights published with the paper, measured in the same way: {compared}.",
        ],
        Table(
            COLUMNS,
            rows(results),
            f"Scale {scale}.",
            NOTES,
            highlight=[i for i, r in enumerate(results) if r.model in ("bspline", "best")],
        ),
        downloads=[Download("results.json", _json(results)), Download("results.csv", _csv(results))],
    )


def draw_domain(folder: Path, results: Sequence[Result], domain: str, grid: int) -> Picture | None:
    """Figure 1 or 5, saved in the folder; None if there are no results on the domain."""
    if not any(r.domain == domain for r in results):
        return None
    energy = Rings(periodic=domain == "circle")
    log_z = log_normaliser(energy, points=1000)
    truth = field(lambda x: -energy.energy(x) - log_z, energy.force, grid)
    panels = [FieldPanel("truth", *truth)]
    for r in results:
        if r.domain == domain:
            panels.append(FieldPanel(MODELS[r.model], *learned_field(folder, r.model, domain, grid)))
    path = folder / f"figure{NUMBERS[domain]}.png"
    save(draw_fields(panels), path)
    caption = (
        f"Figure {NUMBERS[domain]}: density (above) and force field (below) on the {domain}. Colours share "
        "one scale; a force that is not continuous shows as sharp lines."
    )
    alt = f"Densities and force fields of the truth and of {len(panels) - 1} flows on the {domain}"
    return Picture(path, alt, caption)


def draw_learned_maps(folder: Path, results: Sequence[Result]) -> Picture | None:
    """Figure 2, saved in the folder; None if there is no B-spline among the results."""
    panels = [
        MapPanel(domain, *accumulated_maps(read_flow(folder, "bspline", domain)))
        for domain in DOMAINS
        if any((r.model, r.domain) == ("bspline", domain) for r in results)
    ]
    if not panels:
        return None
    path = folder / "figure2.png"
    save(draw_accumulation(panels), path)
    caption = (
        "Figure 2: all B-spline transformations (above) and their slopes (below) that the trained flows "
        "apply to 25 samples. On the circle the slopes at both ends agree."
    )
    alt = "Learned spline maps of the unit interval and of the circle"
    return Picture(path, alt, caption)


def _curves(folder: Path, results: Sequence[Result]) -> Section:
    pictures = []
    for domain in DOMAINS:
        curves: dict[str, Curve] = {}
        for r in results:
            if r.domain == domain:
                log = read_log(folder / f"{r.model}-{domain}" / "log.csv")
                points = np.array([(step, value) for step, name, value in log if name == "nll"])
                if len(points):
                    curves[MODELS[r.model]] = _smooth(points)
        if curves:
            path = folder / f"training-{domain}.png"
            save(draw_curves(curves), path)
            pictures.append(Picture(path, f"Training losses on the {domain}", f"Training on the {domain}."))
    return Section("Training", ["Negative log-likelihood of the batches, running means."], pictures=pictures)


def _smooth(points: np.ndarray) -> Curve:
    """Running means of the logged losses, over a tenth of them at most."""
    width = max(1, min(SMOOTHED, len(points) // 10))
    kernel = np.full(width, 1 / width)
    steps, values = points[:, 0], points[:, 1]
    return np.convolve(steps, kernel, "valid"), np.convolve(values, kernel, "valid")


def _json(results: Sequence[Result]) -> bytes:
    return json.dumps([asdict(r) for r in results], indent=2).encode()


def _csv(results: Sequence[Result]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(asdict(results[0])))
    writer.writeheader()
    writer.writerows(asdict(r) for r in results)
    return text.getvalue().encode()
