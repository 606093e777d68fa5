"""The benchmark beside the field: published figures beside ours, as text, Markdown, a page and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from knotflow.files import json_bytes, write_atomically, write_json
from knotflow.paper.field import SYSTEMS
from knotflow.paper.field_results import Result
from knotflow.paper.table1_report import pipes
from knotflow.report.page import Download, Page, Section, Table, write_page
from knotflow.statistics.estimates import Estimate
from knotflow.version import __version__

NUMBERS, TEXT, PAGE = "field.json", "field.md", "index.html"
MISSING: Final = "not yet measured"


@dataclass(frozen=True)
class Published:
    """Effective sample sizes in percent that others have published, the top 1e-4 of weights clipped."""

    likelihood: float
    """Trained by likelihood on molecular dynamics."""
    fab: float
    ta_bg: float
    cmt: float
    total_variation: float
    """Of Ramachandran histograms, for CMT."""
    evaluations: float
    """Energy evaluations of CMT."""


PUBLISHED: Final = {
    "ala2": Published(82.1, 94.8, 95.8, 97.7, 0.94e-2, 1e8),
    "ala2-ff96": Published(82.1, 94.8, 95.8, 97.7, 0.94e-2, 1e8),
    "AAA": Published(45.3, 63.6, 65.8, 68.6, 1.43e-2, 1e8),
    "AAAAA": Published(11.0, 14.6, 18.2, 29.6, 2.48e-2, 4e8),
}
"""All from the tables of CMT, which ran all methods on one architecture. For comparison only."""
SOURCES: Final = (
    "CMT: constrained mass transport, ICLR 2026, arXiv 2510.18460. It compares all methods on one "
    "architecture: likelihood on molecular dynamics, FAB (flow annealed importance sampling bootstrap), "
    "TA-BG (temperature-annealed Boltzmann generators, arXiv 2501.19077) and CMT itself.",
)
DIFFERENCES: Final = (
    "Force field: the published alanine dipeptide is ff96 with OBC water, as openmmtools' "
    "AlanineDipeptideImplicit without constraints. ala2-ff96 comes closest to it: OpenMM's amber96.xml and "
    "amber96_obc.xml, no constraints, no cutoff. These files give OBC II (GBSAOBCForce; dielectric constants "
    "1 and 78.3; surface term 2.26 kJ/mol/nm²). openmmtools takes OBC I and an Amber prmtop. So the energies "
    "differ, and with them the distributions. Our ala2, AAA and AAAAA are in ff99SB-ILDN with OBC II.",
    "Clipping: the published figures clip the top 1e-4 of the weights, which raises them. Ours are given raw "
    "and clipped.",
    "N: the published figures are from up to 1e7 samples. If weights have a long tail, fewer samples show a "
    "larger effective sample size, as the largest weights are yet to come. Pareto k above 0.7 warns of it.",
    "Data: TA-BG and CMT learn from energies alone. Ours learns from a simulation that it makes itself.",
    "Costs: ours include the simulation that the model learns from, and count from the bare molecule. A "
    "simulation evaluates the energy once a step for each walker. Core-minutes are those of all processes, "
    "measures included. CMT took about 400,000 gradient steps for alanine dipeptide.",
    "Hardware: one GPU or more for the published figures; CPU cores for ours.",
    "Histograms: total variation and KL are of (phi, psi) in 16 × 16 bins, between samples and all frames of "
    "the simulation, as means over residues. Frames are few and correlated, so a perfect model has a total "
    "variation, too, about half of that between two halves of the frames. The published ones have bins, "
    "frames and samples of their own.",
)
COORDINATES: Final = {"ala2": 60, "ala2-ff96": 60, "AAA": 120, "AAAAA": 180}
"""Internal coordinates."""
COLUMNS: Final = (
    "molecule", "coordinates", "likelihood on MD", "FAB", "TA-BG", "CMT", "ours, clipped", "ours, raw", "N",
)  # fmt: skip


def beside(results: Sequence[Result]) -> list[list[str]]:
    """Effective sample sizes in percent, the published ones and ours, under `COLUMNS`."""
    ours, rows = {result.name: result for result in results}, []
    for name, known in PUBLISHED.items():
        result = ours.get(name)
        mine = (
            [
                _percent(result.measures["ess_clipped"]),
                _percent(result.measures["ess"]),
                f"{result.samples:,}",
            ]
            if result
            else [MISSING] * 2 + ["–"]
        )
        published = (known.likelihood, known.fab, known.ta_bg, known.cmt)
        rows.append([name, f"{COORDINATES[name]}", *(f"{value:.1f}" for value in published), *mine])
    return rows


def measured(results: Sequence[Result], *, brief: bool = False) -> tuple[list[str], list[list[str]]]:
    """All measures, or those that fit on a terminal: columns, one for each molecule, and rows."""

    def cells(cell: Callable[[Result], str]) -> list[str]:
        return [cell(result) for result in results]

    def measure(key: str, *, percent: bool = False) -> list[str]:
        return cells(lambda result: (_percent if percent else str)(result.measures[key]))

    rows = {
        "weighted samples, N": cells(lambda result: f"{result.samples:,}"),
        "frames of the simulation": cells(lambda result: f"{result.frames:,}"),
        "effective sample size, %": measure("ess", percent=True),
        "weights clipped, %": measure("ess_clipped", percent=True),
        "inside phi > 0, worst residue, clipped, %": cells(lambda result: _percent(result.worst_left)),
        "Pareto k": measure("pareto_k"),
        "NLL above the limit, nats": measure("forward_kl"),
        "squared force error, 1e4 (kT/nm)²": measure("force_error_1e4"),
    }
    for key, text in (
        ("histogram_tv", "Ramachandran total variation"),
        ("histogram_kl", "Ramachandran KL, nats"),
        ("torus_w2", "W2 of (phi, psi), rad"),
        ("energy_w2", "W2 of energies, kT"),
    ):
        if not brief:
            rows[f"{text}, raw"] = measure(key)
        rows[f"{text}, reweighted"] = measure(f"{key}_reweighted")
        if not brief:
            rows[f"{text}, halves of the data"] = measure(f"{key}_data")
    for way, text in (("weights", "weights"), ("data", "simulation"), ("chains", "exact chains")):
        rows[f"F(phi>0) - F(phi<0), kT: {text}"] = [_side(result, way) for result in results]
    rows["energy evaluations"] = cells(lambda result: f"{sum(result.evaluations.values()):.2g}")
    rows["gradient steps"] = cells(lambda result: f"{result.gradient_steps:,}")
    rows["core-minutes from nothing"] = cells(lambda result: f"{sum(result.core_minutes.values()):.3g}")
    return ["measure", *(result.name for result in results)], [[text, *row] for text, row in rows.items()]


def states(results: Sequence[Result]) -> list[list[str]]:
    """Effective sample sizes inside each state of each residue, under `STATE_COLUMNS`."""
    return [
        [
            result.name,
            residue,
            state,
            f"{found['samples']:,}",
            *(_percent(Estimate.read(found[key])) for key in ("ess", "ess_clipped")),
        ]
        for result in results
        for residue, of in result.states.items()
        for state, found in of.items()
    ]


STATE_COLUMNS: Final = ("molecule", "residue", "state", "samples", "effective, %", "clipped, %")


def numbers(results: Sequence[Result], scale: str) -> dict[str, Any]:
    """Everything, for ``field.json``; published figures are under a key of their own."""
    return {
        "scale": scale,
        "knotflow": __version__,
        "results": {
            result.name: {**asdict(result), "force_field": SYSTEMS[result.name].force_field}
            for result in results
        },
        "published": {name: asdict(known) for name, known in PUBLISHED.items()},
        "sources": SOURCES,
        "differences": DIFFERENCES,
    }


def write_report(folder: Path, results: Sequence[Result], scale: str) -> list[Path]:
    """Write ``index.html``, ``field.md`` and ``field.json``; returns these files."""
    page, text, file = (folder / name for name in (PAGE, TEXT, NUMBERS))
    write_json(file, numbers(results, scale))
    columns, rows = measured(results)
    doubt = ["At the scale smoke the numbers mean nothing."] if scale == "smoke" else []
    about = [
        f"{name}: {system.title}, {system.force_field}, {COORDINATES[name]} coordinates."
        for name, system in SYSTEMS.items()
    ]
    parts = [
        "# Beside the field",
        *doubt,
        f"Scale {scale}. Effective sample sizes in percent; all but the last three columns are published.",
        pipes(COLUMNS, beside(results), 1),
        pipes(columns, rows, 1) if results else MISSING,
        pipes(STATE_COLUMNS, states(results), 3) if results else "",
        *SOURCES,
        *DIFFERENCES,
    ]
    write_atomically(text, ("\n\n".join(filter(None, parts)) + "\n").encode())
    sections = [
        Section("Effective sample size", SOURCES, Table(COLUMNS, beside(results), "in percent")),
        Section("What differs", DIFFERENCES),
        Section("Molecules", about),
        Section("All measures", table=Table(columns, rows, "mean ± standard error")),
        Section("Inside each state", table=Table(STATE_COLUMNS, states(results))),
        Section("Numbers to save", downloads=[Download(NUMBERS, json_bytes(numbers(results, scale)))]),
    ]
    lead = "Boltzmann generators of alanine peptides, made from the bare molecule, beside published figures."
    write_page(Page("Beside the field", " ".join([lead, *doubt]), sections), page)
    return [page, text, file]


def _percent(share: Estimate) -> str:
    return str(share * 100)


def _side(result: Result, way: str) -> str:
    """F(phi > 0) - F(phi < 0) of the first residue."""
    first = next(iter(result.free_energies.values()), {})
    found = first.get(way, Estimate(math.nan))
    if math.isinf(found.value):
        return "one side not visited"
    return str(found) if math.isnan(found.value) or found.error > 0 else f"{found.value:.2g}, no error bar"
