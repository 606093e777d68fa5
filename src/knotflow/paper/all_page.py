"""The page of `knotflow reproduce all`: sections in the order of the paper, its numbers beside ours."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from knotflow.analysis.frame_table import FrameTable
from knotflow.dynamics.score import summary
from knotflow.files import write_atomically
from knotflow.json_values import plain
from knotflow.paper import (
    all_words as everything_words,
)
from knotflow.paper import (
    figure4_report as dynamics_report,
)
from knotflow.paper import (
    table1,
    table1_report,
    table2,
    toy2d,
    toy2d_report,
)
from knotflow.paper.all_results import SHOWN, Found
from knotflow.paper.molecule_figures import frame_errors, shifted_flow_energy
from knotflow.paper.table1_report import number
from knotflow.report.figures import FLOW, TRUTH, png
from knotflow.report.force_plots import ForceColumn, draw_force_columns, draw_forces
from knotflow.report.histogram_plots import draw_energy_histograms, energy_span
from knotflow.report.page import Cell, Download, Page, Picture, Section, Table, render_page
from knotflow.report.torsion_plots import draw_ramachandran
from knotflow.storage import trajectory
from knotflow.version import __version__

PAGE: Final = "index.html"
NUMBERS: Final = "all.json"
CLAIMS: Final = ("claim", "flow", "paper", "here")
"""Columns of the summary."""
SIDES: Final = {"data": "test frames", "samples": "samples"}


def write_report(found: Found) -> Path:
    """Write ``index.html`` and ``all.json`` into the folder of a job; returns the page."""
    content = (json.dumps(plain(numbers(found)), indent=1, ensure_ascii=False) + "\n").encode()
    write_atomically(found.job.out / NUMBERS, content)
    page = found.job.out / PAGE
    sections = [
        _claims(found),
        _rings(found, "interval"),
        _maps(found),
        _table1(found),
        _forces(found),
        _dynamics(found),
        _table2(found),
        _rings(found, "circle"),
        Section("Figure 6: architecture", everything_words.ARCHITECTURE),
        *(_looks(found, figure) for figure in SHOWN),
        _about(found, content),
    ]
    title = "Neural diffeomorphic non-uniform B-spline flows, made again"
    write_atomically(page, render_page(Page(title, _lead(found), sections), "gallery.html.j2").encode())
    return page


def numbers(found: Found) -> dict[str, Any]:
    """All numbers of the page."""
    return {
        "scale": found.job.scale_name,
        "data": {"file": found.data.name, "frames": trajectory.open_info(found.data).n_frames},
        "claims": [dict(zip(CLAIMS, row, strict=True)) for row in claims(found)],
        "rings": [asdict(result) for result in found.rings],
        "table1": [asdict(line) for line in table1_report.table(found.table1)],
        "force_errors": {
            row: {
                "data": float(np.mean(frame_errors(looks.data))),
                "data_median": float(np.median(frame_errors(looks.data))),
                "samples_median": float(np.median(frame_errors(looks.samples))),
            }
            for row, looks in found.looks.items()
        },
        "dynamics": {result.entry.folder: summary(result.record) for result in found.dynamics},
        "table2": [asdict(runtime) for runtime in found.table2],
    }


def claims(found: Found) -> list[list[str]]:
    """What the paper claims, in its numbers and in ours: cells under `CLAIMS`."""
    jumps = {r.model: max(o.force_jump for o in found.rings if o.model == r.model) for r in found.rings}
    lines = [line for line in table1_report.table(found.table1) if line.trained != "paper"]
    errors = {line.row: line.measures["fme"] for line in lines}
    tasks = [(table1.Task.of(result.entry.folder), result.drift) for result in found.dynamics]
    broken = {task.row: drift for task, drift in tasks if task is not None}
    reverse = {runtime.family: runtime.reverse[0] for runtime in found.table2}
    rows = []
    for model, said in (("bspline", "none"), ("smooth", "none"), ("rq", "seen in pictures")):
        here = _jump(jumps[model]) if model in jumps else "–"
        rows.append(["largest jump of the force, figures 1 and 5", toy2d.MODELS[model], said, here])
    for row in ("bspline+fm", "smooth+fm", "rq"):
        paper, here = (number(*x) for x in (table1_report.PAPER[row]["fme"], errors.get(row, (math.nan,))))
        rows.append(["error of forces, FME / 10⁴, Table 1", table1.ROWS[row].title, paper, here])
    for row, said in (("bspline+fm", "0 of 10"), ("smooth+fm", "0 of 10"), ("rq", "10 of 10")):
        here = f"{broken[row].broken} of {len(broken[row].reasons)}" if row in broken else "–"
        rows.append(["broken molecules, figure 4", table1.ROWS[row].title, said, here])
    times = {family: paper[0] for family, (paper, _) in table2.PAPER.items()}, reverse
    factors = [f"{t['smooth'] / t['bspline']:.1f}" if {"smooth", "bspline"} <= set(t) else "–" for t in times]
    rows.append(["sampling, times as fast as from Smooth, Table 2", "B-spline", *factors])
    return rows


def _lead(found: Found) -> str:
    name = found.job.scale_name
    if found.job.scale.simulates:
        return (
            f"Scale {name}: only a test that everything works. Flows were trained for moments on next to no "
            "data, so no number and no picture on this page means anything."
        )
    frames = trajectory.open_info(found.data).n_frames
    return (
        f"Every figure and table of Hong & Chun (AAAI 2023), made again at the scale {name!r}, with "
        f"{frames:,} frames of alanine dipeptide. Beside each number of ours stands the paper's; where they "
        "differ, the page says what is different."
    )


def _claims(found: Found) -> Section:
    rows = claims(found)
    ours = [i for i, row in enumerate(rows) if row[1].startswith("B-spline")]
    return Section("In short", everything_words.CLAIMS, Table(CLAIMS, rows, _scale(found), highlight=ours))


def _rings(found: Found, domain: str) -> Section:
    results = [r for r in found.rings if r.domain == domain]
    figure = toy2d_report.NUMBERS[domain]
    heading = f"Figure {figure}: rings on the {domain}"
    if not results:
        return Section(heading, ["The folder of the rings has no finished flow on this domain."])
    rows: list[list[Cell]] = []
    for r in results:
        published = toy2d_report.PUBLISHED.get((r.model, domain))
        kl, force = (f"{published[0]:.3f}", f"{published[1]:.0f}") if published else (None, None)
        here = f"{r.kl:.3f}", f"{r.force_rms:.0f}", _jump(r.force_jump)
        rows.append([toy2d.MODELS[r.model], kl, here[0], force, here[1], here[2]])
    columns = ("flow", "KL, paper", "KL, here", "force error, paper", "force error, here", "force jump, here")
    notes = (
        "Paper: the weights published with it, measured in the same way; it has no such numbers itself.",
        f"KL in nats. Root mean square of the true force: {results[0].true_force_rms:.1f}.",
        *toy2d_report.NOTES[1:],
    )
    picture = toy2d_report.draw_domain(
        found.job.folder("toy2d"), found.rings, domain, found.job.scale.toy2d.picture
    )
    return Section(
        heading,
        everything_words.RINGS[domain],
        Table(columns, rows, _scale(found, "toy2d"), notes),
        [] if picture is None else [picture],
    )


def _maps(found: Found) -> Section:
    picture = toy2d_report.draw_learned_maps(found.job.folder("toy2d"), found.rings)
    pictures = [] if picture is None else [picture]
    return Section("Figure 2: learned transformations", everything_words.MAPS, pictures=pictures)


def _table1(found: Found) -> Section:
    lines = table1_report.table(found.table1)
    table = Table(
        [table1_report.COLUMNS[i] for i in table1_report.BRIEF],
        [[_gap(line.cells()[i]) for i in table1_report.BRIEF] for line in lines],
        _scale(found, "table1"),
        table1_report.NOTES,
        highlight=[i for i, line in enumerate(lines) if line.trained != "paper"],
    )
    return Section("Table 1: alanine dipeptide", everything_words.TABLE1, table)


def _forces(found: Found) -> Section:
    heading = "Figure 3: forces"
    shown = {table1.ROWS[row].title: (row, looks) for row, looks in found.looks.items()}
    if not shown:
        return Section(heading, ["No model of Table 1 is there: all trainings diverged."])
    columns = [
        ForceColumn(
            title,
            {text: getattr(looks, side).forces for side, text in SIDES.items()},
        )
        for title, (_, looks) in shown.items()
    ]
    pictures = [
        Picture(png(figure), f"Forces of {column.title} over true ones, on test frames and samples")
        for column, figure in zip(columns, draw_force_columns(columns), strict=True)
    ]
    rows = [
        [
            title,
            number(*table1_report.PAPER[row]["fme"]),
            number(float(np.mean(frame_errors(looks.data))) / 1e4),
            number(float(np.median(frame_errors(looks.data))) / 1e4),
            number(float(np.median(frame_errors(looks.samples))) / 1e4),
        ]
        for title, (row, looks) in shown.items()
    ]
    some = next(iter(found.looks.values()))
    notes = (
        "FME / 10⁴ in (kT/nm)²: of the frames and samples that the pictures show; the paper's is that of its "
        "Table 1. Medians are over frames: the mean over samples is that of the worst clash.",
        f"Pictures: forces on {len(some.data.forces[0]):,} test frames and {len(some.samples.forces[0]):,} "
        "samples; darker is more often. The dashed line is where both forces are equal.",
    )
    names = ("model", "test frames, paper", "test frames, here", "median, test frames", "median, samples")
    table = Table(names, rows, _scale(found), notes)
    return Section(heading, everything_words.FORCES, table, pictures)


def _dynamics(found: Found) -> Section:
    results = found.dynamics
    table = Table(
        dynamics_report.COLUMNS,
        dynamics_report.rows(results),
        _scale(found, "dynamics"),
        dynamics_report.NOTES,
    )
    picture = dynamics_report.draw_figure(found.job.folder("dynamics"), results)
    protocol = f"Here: {dynamics_report.protocol(results)}."
    return Section("Figure 4: dynamics", [protocol, *everything_words.DYNAMICS], table, [picture])


def _table2(found: Found) -> Section:
    rows = []
    for runtime in found.table2:
        reverse, forward = table2.PAPER[runtime.family]
        rows.append(
            [
                table2.FAMILIES[runtime.family],
                f"{table1_report.PAPER_PARAMETERS[runtime.family]:,}",
                f"{runtime.parameters:,}",
                number(*reverse),
                number(*runtime.reverse),
                number(*forward),
                number(*runtime.forward),
            ]
        )
    notes: list[str] = []
    for runtime in found.table2[:1]:
        notes.append(
            f"Here: {runtime.samples:,} samples in batches of {min(table2.BATCH, runtime.samples):,}, mean "
            f"and two standard errors over {runtime.repeats} repeats, on the processor of this machine with "
            f"{runtime.threads} thread{'s' if runtime.threads > 1 else ''}. The paper's: an "
            "RTX 3090, ten repeats of 10,000 samples."
        )
        notes.append(
            "Reverse: from the base to a sample with its log-density; forward: from a sample to its "
            "log-density. Both of the flow alone, without the step to Cartesian coordinates."
        )
    columns = (
        "flow",
        "parameters, paper",
        "parameters, here",
        "reverse, paper",
        "reverse, here",
        "forward, paper",
        "forward, here",
    )
    table = Table(columns, rows, f"Milliseconds per sample. {_scale(found)}", notes)
    return Section("Table 2: time per sample", everything_words.TABLE2, table)


def _looks(found: Found, figure: int) -> Section:
    row = SHOWN[figure]
    title = table1.ROWS[row].title
    heading, looks = f"Figure {figure}: {title}", found.looks.get(row)
    if looks is None:
        return Section(heading, ["There is no model of this row: its training diverged."])
    pictures = []
    span = energy_span(looks.data.energy, looks.samples.energy)
    for side, text in SIDES.items():
        look: FrameTable = getattr(looks, side)
        energies: Any = {TRUTH: (look.energy, None), FLOW: (shifted_flow_energy(look), None)}
        torsions = next(iter(look.torsions.values()))
        for drawn, alt in (
            (draw_ramachandran(f"{text}: torsions", torsions), "How often torsions phi, psi are"),
            (draw_forces(f"{text}: forces", *look.forces), "Forces over true ones"),
            (
                draw_energy_histograms(f"{text}: energies", energies, "energy, kT", span),
                "Energies, histograms",
            ),
        ):
            pictures.append(Picture(png(drawn), f"{alt}, {title}, {text}"))
    medians = [
        f"{np.nanmedian(look.energy):,.1f} kT on {len(look.energy):,} {text}"
        for look, text in zip((looks.data, looks.samples), SIDES.values(), strict=True)
    ]
    words = [*everything_words.LOOKS[figure], f"Median energy of the force field: {', '.join(medians)}."]
    return Section(heading, words, pictures=pictures)


def _about(found: Found, content: bytes) -> Section:
    scale, frames = found.job.scale, trajectory.open_info(found.data).n_frames
    rows = [
        ["frames of alanine dipeptide", "1,000,000", f"{frames:,}, {found.data.name}"],
        ["training steps of rings", "8,000", _given(found, "toy2d", f"{scale.toy2d.steps:,}")],
        ["epochs of Table 1", "10", _given(found, "table1", f"{scale.table1.epochs:g}")],
        ["seeds of Table 1", "10", _seeds(found)],
        ["samples of an evaluation", "1,000", f"{scale.table1.samples:,}"],
        ["knotflow", "–", __version__],
    ]  # fmt: skip
    table = Table(("", "paper", "here"), rows, _scale(found))
    return Section("How it was made", [], table, downloads=[Download(NUMBERS, content, "all numbers (JSON)")])


def _given(found: Found, part: str, otherwise: str) -> str:
    return f"as in {found.job.given[part]}" if part in found.job.given else otherwise


def _seeds(found: Found) -> str:
    counts = sorted({line.seeds for line in table1_report.table(found.table1) if line.trained != "paper"})
    return " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1]))) if counts else "–"


def _gap(cell: str) -> str | None:
    return None if cell == "–" else cell


def _jump(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1e}"


def _scale(found: Found, part: str = "") -> str:
    """Where numbers come from, and whether they mean something."""
    if part in found.job.given:
        return f"As it is in {found.job.given[part]}."
    worth = "; numbers mean nothing" if found.job.scale.simulates else ""
    return f"Scale {found.job.scale_name}{worth}."
