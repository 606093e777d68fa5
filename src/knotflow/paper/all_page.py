"""The page of `knotflow reproduce all`: sections in the order of the paper, its numbers beside ours."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from knotflow.analysis.frame_table import FrameTable
from knotflow.dynamics.score import summary
from knotflow.files import json_bytes, write_atomically
from knotflow.paper import figure4, table1, table1_report, table2, toy2d
from knotflow.paper.all_results import SHOWN, Found
from knotflow.paper.molecule_figures import frame_errors, shifted_flow_energy
from knotflow.paper.numbers import number
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
CLAIMED: Final = (
    "The paper claims that forces of B-spline flows are continuous, like those of Smooth flows and unlike "
    "those of RQ-spline flows. So B-splines learn forces as well as Smooth does, molecules can move on "
    "them, and samples are drawn faster.",
)
RINGS: Final = {
    "interval": (
        "Three kinds of flow learn a density of four rings on the unit square. Density above, force below. "
        "The paper shows that forces of RQ-splines are torn, and those of Smooth and B-splines are not.",
        "Why it differs: all three flows have the paper's four couplings and networks, but we trained them "
        "by one recipe of our own (a higher learning rate that rises and falls, weight decay, an average "
        "over steps). It was tuned on B-splines, so their small leads mean little. The paper's text says "
        "8,000 epochs and its code 8,000 steps, as at the scale paper; the scale small has 1,500.",
    ),
    "circle": (
        "The same rings on the torus, from the paper's appendix.",
        "Why it differs: as in figure 1. The true force of this density jumps at the seam, which no flow on "
        "the circle can follow, so the search for jumps leaves the seam out.",
    ),
}
MAPS: Final = (
    "All B-splines that the trained flows of figures 1 and 5 apply to 25 of their samples. They are smooth "
    "and increasing, and on the circle their slopes are periodic. There are no numbers to compare.",
)
TABLE1: Final = (
    "Five flows of alanine dipeptide with the paper's couplings, networks and numbers of parameters, "
    "evaluated on frames that were held back. No model can have an NLL below -213.42 in the paper's "
    "measure. The column NLL above its limit says how far a model is from the best possible one; the paper "
    "does not have it.",
    "Why it differs: the paper has 900,000 training frames and so takes more steps. It drew its test frames "
    "at random, and anew for the evaluation, so that most of them had been trained on; here whole stretches "
    "of the simulation are held back. Its density lacks a factor of the rigid frame: NLL and KLD are given "
    "in its measure, for comparison, and the other columns with the correct density. The recipe has wider "
    "smallest bins of B-splines, a start from the marginals, clipped gradients, a warm-up and an average "
    "over steps; as published means none of these. KLD is a mean of energies, those of clashes included, so "
    "it depends on the worst samples; the paper takes 1,000 samples.",
    "± are two standard errors over seeds, where there are several. The paper's large ± of B-spline+FM come "
    "from one outlier in ten. It suspects the formula for roots of cubics, but training never uses that "
    "formula.",
)
FORCES: Final = (
    "Components of the force on every atom: the flow's over the force field's, on test frames above, on "
    "samples of the flow below. All pictures share axes and colours.",
    "Why it differs: see Table 1. The paper's error of RQ-splines, 80 ± 93 over ten repeats, must come from "
    "a few outliers; a single run with our recipe at the scale small had 2.0.",
)
DYNAMICS: Final = (
    "The paper shows the potential energy of ten molecules that move on each flow. On the RQ-spline they "
    "escape at once; on Smooth and B-spline, both with force matching, they stay. The total energy tells "
    "more, since it must be constant without a thermostat. The true force field shows how well the "
    "integrator can do.",
    "Why it differs: molecules start from other frames, none of them trained on; the weights are others, "
    "see Table 1; all numbers are in float64; and the definition of broken is ours, as the paper gives "
    "none. Where there are no data, RQ-splines have a higher floor of density than the other two, so "
    "molecules escape more easily. It is therefore the drift of the total energy, not the number of broken "
    "molecules, that shows what jumps of a force do.",
)
TABLE2: Final = (
    "How long a flow takes in both directions. The claim is about proportions: the forward direction takes "
    "about as long for all, and only Smooth has to search for its inverse.",
    "Why it differs: machine and batch size are not the paper's, whose text does not give the batch size, "
    "so compare rows, not columns. We invert Smooth by a bracketed Halley's method, which needs fewer steps "
    "than bisection.",
)
ARCHITECTURE: Final = (
    "A drawing in the paper. In words: a coupling passes some coordinates to a network, which returns the "
    "parameters of the maps of the others. 19 torsions on circles are split into 9 and 10, and each part is "
    "mapped given the other, twice. Then 20 angles on [0.15π, π] are mapped given the torsions, and 21 "
    "bonds on [0.05, 0.3] nm given both. Networks have two hidden layers of 64 with sines; angles on "
    "circles enter as sine and cosine. The base distribution is uniform.",
    "Why it differs: it does not. The paper's text speaks of eight and four layers, but only these six "
    "couplings have its numbers of parameters, which Table 2 compares. B-splines have 32 bins, RQ-splines "
    "16, Smooth 8 components.",
)
LOOKS: Final = (
    "Test frames above, samples of the flow below: how often pairs of backbone torsions occur, forces as in "
    "figure 3, and histograms of the energies of flow and force field. The flow's energies are shifted to "
    "the same minimum, as in the paper. The legend gives the share beyond the picture.",
    "Why it differs: other data and training, see Table 1; the paper has no numbers here.",
)
CAPTION_OF_RQ: Final = (
    " Its caption says that forces were matched, but its Table 1 has no such RQ-spline; this is the one of "
    "Table 1, trained by likelihood."
)


def write_report(found: Found) -> Path:
    """Write ``index.html`` and ``all.json`` into the folder of a job; returns the page."""
    content = json_bytes(numbers(found))
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
        Section("Figure 6: architecture", ARCHITECTURE),
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
        "rings": found.rings,
        "table1": table1_report.table(found.table1),
        "force_errors": {
            row: {
                "data": float(np.mean(frame_errors(looks.data))),
                "data_median": float(np.median(frame_errors(looks.data))),
                "samples_median": float(np.median(frame_errors(looks.samples))),
            }
            for row, looks in found.looks.items()
        },
        "dynamics": {result.entry.folder: summary(result.record) for result in found.dynamics},
        "table2": found.table2,
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
    return Section("In short", CLAIMED, Table(CLAIMS, rows, _scale(found), highlight=ours))


def _rings(found: Found, domain: str) -> Section:
    results = [r for r in found.rings if r.domain == domain]
    figure = toy2d.NUMBERS[domain]
    heading = f"Figure {figure}: rings on the {domain}"
    if not results:
        return Section(heading, ["The folder of the rings has no finished flow on this domain."])
    rows: list[list[Cell]] = []
    for r in results:
        published = toy2d.PUBLISHED.get((r.model, domain))
        kl, force = (f"{published[0]:.3f}", f"{published[1]:.0f}") if published else (None, None)
        here = f"{r.kl:.3f}", f"{r.force_rms:.0f}", _jump(r.force_jump)
        rows.append([toy2d.MODELS[r.model], kl, here[0], force, here[1], here[2]])
    columns = ("flow", "KL, paper", "KL, here", "force error, paper", "force error, here", "force jump, here")
    notes = (
        "Paper: the weights published with it, measured in the same way; it has no such numbers itself.",
        f"KL in nats. Root mean square of the true force: {results[0].true_force_rms:.1f}.",
        *toy2d.NOTES[1:],
    )
    picture = toy2d.draw_domain(found.job.folder("toy2d"), found.rings, domain, found.job.scale.toy2d.picture)
    return Section(
        heading,
        RINGS[domain],
        Table(columns, rows, _scale(found, "toy2d"), notes),
        [] if picture is None else [picture],
    )


def _maps(found: Found) -> Section:
    picture = toy2d.draw_learned_maps(found.job.folder("toy2d"), found.rings)
    pictures = [] if picture is None else [picture]
    return Section("Figure 2: learned transformations", MAPS, pictures=pictures)


def _table1(found: Found) -> Section:
    lines = table1_report.table(found.table1)
    table = Table(
        [table1_report.COLUMNS[i] for i in table1_report.BRIEF],
        [[_gap(line.cells()[i]) for i in table1_report.BRIEF] for line in lines],
        _scale(found, "table1"),
        table1_report.NOTES,
        highlight=[i for i, line in enumerate(lines) if line.trained != "paper"],
    )
    return Section("Table 1: alanine dipeptide", TABLE1, table)


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
    return Section(heading, FORCES, table, pictures)


def _dynamics(found: Found) -> Section:
    results = found.dynamics
    table = Table(
        figure4.COLUMNS,
        figure4.rows(results),
        _scale(found, "dynamics"),
        figure4.NOTES,
    )
    picture = figure4.draw_figure(found.job.folder("dynamics"), results)
    protocol = f"Here: {figure4.protocol(results)}."
    return Section("Figure 4: dynamics", [protocol, *DYNAMICS], table, [picture])


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
    return Section("Table 2: time per sample", TABLE2, table)


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
    what, why = LOOKS
    why = why + CAPTION_OF_RQ if row == "rq" else why
    words = [what, why, f"Median energy of the force field: {', '.join(medians)}."]
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
