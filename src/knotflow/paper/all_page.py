"""The page of `knotflow reproduce all`: sections in the order of the paper, its numbers beside ours."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from knotflow.dynamics.score import summary
from knotflow.files import json_bytes, write_atomically
from knotflow.paper import figure4, table1, table1_report, table2, toy2d
from knotflow.paper.all_results import Found
from knotflow.paper.molecule_figures import ShownFrames, frame_errors, shifted_flow_energy
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
SHOWN: Final = {7: "bspline+fm", 8: "smooth+fm", 9: "rq"}
"""Models of figures 7 to 9."""
CLAIMED: Final = (
    "The paper claims that B-spline flows have continuous forces, like Smooth flows and unlike RQ-spline "
    "flows. So they learn forces as well as Smooth flows do and molecules can move on them, while samples "
    "are drawn faster.",
)
RINGS: Final = {
    "interval": (
        "Three kinds of flow learn a density of four rings on the unit square. The density is above, the "
        "force below. The paper shows that the forces of RQ-splines are torn, and that those of Smooth and "
        "B-splines are not.",
        "Why it differs: all three flows have the paper's four couplings and networks, but we trained them "
        "with our own recipe (a higher learning rate that rises and falls, weight decay, an average over "
        "steps). It was tuned on B-splines, so their small leads mean little. The paper's text says 8,000 "
        "epochs and its code 8,000 steps. The scale paper has 8,000 steps, the scale small 1,500.",
    ),
    "circle": (
        "The same rings on the torus, from the paper's appendix.",
        "Why it differs: as in figure 1. The true force of this density jumps at the seam. No flow on the "
        "circle can follow that jump, so the search for jumps leaves the seam out.",
    ),
}
MAPS: Final = (
    "All B-splines that the trained flows of figures 1 and 5 apply to 25 of their samples. They are smooth "
    "and increasing, and on the circle their slopes are periodic. There are no numbers to compare.",
)
TABLE1: Final = (
    "Five flows of alanine dipeptide with the paper's couplings, networks and numbers of parameters, "
    "evaluated on held-out frames. No model can have an NLL below -213.42 in the paper's measure. The column "
    "NLL above its limit says how far a model is from the best possible one; the paper does not give it.",
    "Why it differs: the paper has 900,000 training frames and so takes more steps. It drew its test frames "
    "at random, and drew them again for the evaluation, so most of them had been trained on; here whole "
    "stretches of the simulation are held out. Its density lacks a factor of the rigid frame. NLL and KLD "
    "are given in its measure, for comparison; the other columns use the correct density. Our recipe has "
    "wider smallest bins for B-splines, a start from the marginals, clipped gradients, a warm-up and an "
    "average over steps; as published means none of these. KLD is a mean of energies that includes clashes, "
    "so it depends on the worst samples; the paper takes 1,000 samples.",
    "± are two standard errors over seeds, where there are several. The paper's large ± of B-spline+FM come "
    "from one outlier in ten. The paper suspects the formula for the roots of cubics, but training never "
    "uses that formula.",
)
FORCES: Final = (
    "Components of the force on every atom: the flow's against the force field's, on test frames above, on "
    "samples of the flow below. All pictures share axes and colours.",
    "Why it differs: see Table 1. The paper's error of RQ-splines, 80 ± 93 over ten repeats, must come from "
    "a few outliers; a single run with our recipe at the scale small had 2.0.",
)
DYNAMICS: Final = (
    "The paper shows the potential energy of ten molecules that move on each flow. On the RQ-spline they "
    "escape at once; on Smooth and B-spline, both with force matching, they stay. The total energy tells "
    "more, since without a thermostat it must be constant. The true force field shows how well the "
    "integrator can do.",
    "Why it differs: the molecules start from other frames, none of them trained on; the weights are others, "
    "see Table 1; all numbers are in float64; and the definition of broken is ours, as the paper gives "
    "none. Where there are no data, RQ-splines have a higher floor of density than the other two, so "
    "molecules escape more easily. So the effect of jumps of a force shows in the drift of the total energy, "
    "not in the number of broken molecules.",
)
TABLE2: Final = (
    "The time that a flow takes in both directions. The claim is about ratios: the forward direction takes "
    "about as long for all flows, and only Smooth has to search for its inverse.",
    "Why it differs: the machine and the batch size are not the paper's, whose text does not give the batch "
    "size. So compare rows, not columns. We invert Smooth with a bracketed Halley's method, which needs "
    "fewer steps than bisection.",
)
ARCHITECTURE: Final = (
    "The paper has a drawing. In words: a coupling passes some coordinates to a network, which returns the "
    "parameters of the maps of the others. 19 torsions on circles are split into 9 and 10, and each part is "
    "mapped given the other, twice. Then 20 angles on [0.15π, π] are mapped given the torsions, and 21 "
    "bonds on [0.05, 0.3] nm given both. The networks have two hidden layers of 64 units with sines; angles "
    "on circles enter as sine and cosine. The base distribution is uniform.",
    "Why it differs: it does not. The paper's text mentions eight and four layers, but only these six "
    "couplings have its numbers of parameters, which Table 2 compares. B-splines have 32 bins, RQ-splines "
    "16, and Smooth has 8 components.",
)
LOOKS: Final = (
    "Test frames above, samples of the flow below: how often pairs of backbone torsions occur, forces as in "
    "figure 3, and histograms of the energies of the flow and the force field. The flow's energies are "
    "shifted to the same minimum, as in the paper. The legend gives the fraction outside the picture.",
    "Why it differs: other data and training, see Table 1; the paper gives no numbers here.",
)
CAPTION_OF_RQ: Final = (
    " The paper's caption says that forces were matched, but its Table 1 has no such RQ-spline. This one is "
    "that of Table 1, trained by likelihood."
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
    title = "Neural diffeomorphic non-uniform B-spline flows, reproduced"
    write_atomically(page, render_page(Page(title, _lead(found), sections), "gallery.html.j2").encode())
    return page


def numbers(found: Found) -> dict[str, Any]:
    """All numbers of the page."""
    return {
        "scale": found.job.scale_name,
        "data": {"file": found.data.name, "frames": _n_frames(found)},
        "claims": [dict(zip(CLAIMS, row, strict=True)) for row in claims(found)],
        "rings": found.rings,
        "table1": table1_report.table(found.table1),
        "force_errors": {row: _force_errors(looks) for row, looks in found.looks.items()},
        "dynamics": {result.entry.folder: summary(result.record) for result in found.dynamics},
        "table2": found.table2,
    }


def claims(found: Found) -> list[list[str]]:
    """The paper's claims, in its numbers and in ours: cells under `CLAIMS`."""
    jumps = {r.model: max(o.force_jump for o in found.rings if o.model == r.model) for r in found.rings}
    errors = {line.row: line.measures["fme"] for line in _our_lines(found)}
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
            f"Scale {name}: only a test that everything works. The flows were hardly trained, on next to no "
            "data, so no number and no picture on this page means anything."
        )
    return (
        f"Every figure and table of Hong & Chun (AAAI 2023), reproduced at the scale {name!r} with "
        f"{_n_frames(found):,} frames of alanine dipeptide. The paper's numbers stand beside ours; where "
        "they differ, the page says why."
    )


def _claims(found: Found) -> Section:
    rows = claims(found)
    ours = [i for i, row in enumerate(rows) if row[1].startswith("B-spline")]
    return Section("In short", CLAIMED, Table(CLAIMS, rows, _scale(found), highlight=ours))


def _rings(found: Found, domain: str) -> Section:
    results = [r for r in found.rings if r.domain == domain]
    heading = f"Figure {toy2d.DOMAINS[domain]}: rings on the {domain}"
    if not results:
        return Section(heading, ["The folder of the rings has no finished flow on this domain."])
    rows: list[list[Cell]] = []
    for r in results:
        published = toy2d.PUBLISHED.get((r.model, domain))
        kl, force = (f"{published[0]:.3f}", f"{published[1]:.0f}") if published else (None, None)
        cells = kl, f"{r.kl:.3f}", force, f"{r.force_rms:.0f}", _jump(r.force_jump)
        rows.append([toy2d.MODELS[r.model], *cells])
    columns = ("flow", "KL, paper", "KL, here", "force error, paper", "force error, here", "force jump, here")
    notes = (
        "Paper: the weights published with it, measured in the same way; the paper has no such numbers.",
        f"KL in nats. Root mean square of the true force: {results[0].true_force_rms:.1f}.",
        *toy2d.NOTES[1:],
    )
    table = Table(columns, rows, _scale(found, "toy2d"), notes)
    folder, pixels = found.job.folder("toy2d"), found.job.scale.toy2d.picture
    return Section(heading, RINGS[domain], table, toy2d.draw_domain(folder, found.rings, domain, pixels))


def _maps(found: Found) -> Section:
    pictures = toy2d.draw_learned_maps(found.job.folder("toy2d"), found.rings)
    return Section("Figure 2: learned transformations", MAPS, pictures=pictures)


def _table1(found: Found) -> Section:
    lines = table1_report.table(found.table1)
    cells = [[None if cell == "–" else cell for cell in line.cells()] for line in lines]
    table = Table(
        [table1_report.COLUMNS[i] for i in table1_report.BRIEF],
        [[row[i] for i in table1_report.BRIEF] for row in cells],
        _scale(found, "table1"),
        table1_report.NOTES,
        highlight=[i for i, line in enumerate(lines) if line.trained != "paper"],
    )
    return Section("Table 1: alanine dipeptide", TABLE1, table)


def _forces(found: Found) -> Section:
    heading = "Figure 3: forces"
    if not found.looks:
        return Section(heading, ["There is no model of Table 1: all trainings diverged."])
    columns = [
        ForceColumn(table1.ROWS[row].title, {text: table.forces for text, table in looks.rows.items()})
        for row, looks in found.looks.items()
    ]
    pictures = [
        Picture(png(figure), f"Forces of {column.title} against true ones, on test frames and samples")
        for column, figure in zip(columns, draw_force_columns(columns), strict=True)
    ]
    rows = []
    for row, looks in found.looks.items():
        errors = [number(error / 1e4) for error in _force_errors(looks).values()]
        rows.append([table1.ROWS[row].title, number(*table1_report.PAPER[row]["fme"]), *errors])
    some = next(iter(found.looks.values()))
    notes = (
        "FME / 10⁴ in (kT/nm)², for the frames and samples in the pictures; the paper's is from its Table 1. "
        "Medians are over frames: the mean over samples would be that of the worst clash.",
        f"Pictures: forces on {len(some.data.forces[0]):,} test frames and {len(some.samples.forces[0]):,} "
        "samples; darker means more often. On the dashed line both forces are equal.",
    )
    names = ("model", "test frames, paper", "test frames, here", "median, test frames", "median, samples")
    return Section(heading, FORCES, Table(names, rows, _scale(found), notes), pictures)


def _force_errors(looks: ShownFrames) -> dict[str, float]:
    """Errors of forces in (kT/nm)²: mean and median on test frames, median on samples."""
    data, samples = frame_errors(looks.data), frame_errors(looks.samples)
    return {
        "data": float(np.mean(data)),
        "data_median": float(np.median(data)),
        "samples_median": float(np.median(samples)),
    }


def _dynamics(found: Found) -> Section:
    results = found.dynamics
    table = Table(figure4.COLUMNS, figure4.rows(results), _scale(found, "dynamics"), figure4.NOTES)
    picture = figure4.draw_figure(found.job.folder("dynamics"), results)
    protocol = f"Here: {figure4.protocol(results)}."
    return Section("Figure 4: dynamics", [protocol, *DYNAMICS], table, [picture])


def _table2(found: Found) -> Section:
    rows = []
    for runtime in found.table2:
        reverse, forward = table2.PAPER[runtime.family]
        parameters = table1_report.PAPER_PARAMETERS[runtime.family], runtime.parameters
        times = reverse, runtime.reverse, forward, runtime.forward
        cells = [*(f"{n:,}" for n in parameters), *(number(*time) for time in times)]
        rows.append([table2.FAMILIES[runtime.family], *cells])
    notes = [
        f"Here: {runtime.samples:,} samples in batches of {min(table2.BATCH, runtime.samples):,}, mean "
        f"and two standard errors over {runtime.repeats} repeats, on the processor of this machine with "
        f"{runtime.threads} thread{'s' if runtime.threads > 1 else ''}. Paper: an RTX 3090, ten repeats of "
        "10,000 samples."
        for runtime in found.table2[:1]
    ]
    notes.append(
        "Reverse: from the base distribution to a sample with its log-density. Forward: from a sample to its "
        "log-density. Both for the flow alone, without the step to Cartesian coordinates."
    )
    pairs = [f"{what}, {whose}" for what in ("parameters", "reverse", "forward") for whose in CLAIMS[2:]]
    table = Table(("flow", *pairs), rows, f"Milliseconds per sample. {_scale(found)}", notes)
    return Section("Table 2: time per sample", TABLE2, table)


def _looks(found: Found, figure: int) -> Section:
    row = SHOWN[figure]
    title = table1.ROWS[row].title
    heading, looks = f"Figure {figure}: {title}", found.looks.get(row)
    if looks is None:
        return Section(heading, ["There is no model of this row: its training diverged."])
    pictures, medians = [], []
    span = energy_span(looks.data.energy, looks.samples.energy)
    for text, look in looks.rows.items():
        energies: Any = {TRUTH: (look.energy, None), FLOW: (shifted_flow_energy(look), None)}
        torsions = next(iter(look.torsions.values()))
        histograms = draw_energy_histograms(f"{text}: energies", energies, "energy, kT", span)
        for drawn, alt in (
            (draw_ramachandran(f"{text}: torsions", torsions), "Frequencies of the torsions phi and psi"),
            (draw_forces(f"{text}: forces", *look.forces), "Forces against true ones"),
            (histograms, "Histograms of energies"),
        ):
            pictures.append(Picture(png(drawn), f"{alt}, {title}, {text}"))
        medians.append(f"{np.nanmedian(look.energy):,.1f} kT on {len(look.energy):,} {text}")
    what, why = LOOKS
    why = why + CAPTION_OF_RQ if row == "rq" else why
    words = [what, why, f"Median energy of the force field: {', '.join(medians)}."]
    return Section(heading, words, pictures=pictures)


def _about(found: Found, content: bytes) -> Section:
    scale, given = found.job.scale, found.job.given
    counts = sorted({line.seeds for line in _our_lines(found)})
    seeds = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1]))) if counts else "–"
    steps, epochs = (
        f"as in {given[part]}" if part in given else here
        for part, here in (("toy2d", f"{scale.toy2d.steps:,}"), ("table1", f"{scale.table1.epochs:g}"))
    )
    rows = [
        ["frames of alanine dipeptide", "1,000,000", f"{_n_frames(found):,}, {found.data.name}"],
        ["training steps of rings", "8,000", steps],
        ["epochs of Table 1", "10", epochs],
        ["seeds of Table 1", "10", seeds],
        ["samples of an evaluation", "1,000", f"{scale.table1.samples:,}"],
        ["knotflow", "–", __version__],
    ]
    table = Table(("", *CLAIMS[2:]), rows, _scale(found))
    return Section("How it was made", [], table, downloads=[Download(NUMBERS, content, "all numbers (JSON)")])


def _n_frames(found: Found) -> int:
    return trajectory.open_info(found.data).n_frames


def _our_lines(found: Found) -> list[table1_report.Line]:
    """Lines of Table 1, without the paper's."""
    return [line for line in table1_report.table(found.table1) if line.trained != "paper"]


def _jump(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1e}"


def _scale(found: Found, part: str = "") -> str:
    """Caption of a table: the origin of its numbers, and whether they mean something."""
    if part in found.job.given:
        return f"As it is in {found.job.given[part]}."
    worth = "; the numbers mean nothing" if found.job.scale.simulates else ""
    return f"Scale {found.job.scale_name}{worth}."
