"""Figure 4 and its table: which energies keep molecules whole, as a picture, a page and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from knotflow.dynamics.score import summary
from knotflow.files import write_atomically
from knotflow.paper.figure4 import Result
from knotflow.report.dynamics_plots import EnergyPanel, draw_energies, reasons
from knotflow.report.figures import save
from knotflow.report.page import Download, Page, Picture, Section, Table, write_page
from knotflow.statistics.estimates import Estimate

COLUMNS: Final = (
    "energy",
    "broken",
    "why",
    "slope, kT/ps",
    "deviation, kT",
    "temperature, K",
    "ms a step",
    "paper",
)
NOTES: Final = (
    "Slope and standard deviation of the total energy without a thermostat, per degree of freedom; "
    "temperature of the motion. ±: standard errors over the replicas that stay whole.",
    "Broken: a number is not finite, the molecule left the flow's support, a bond became 1.5 times as long "
    "as it should be, or as short, or the total energy moved by more than half a kT per degree of freedom.",
    "Time of a step of all replicas at once, compilation left out, on the machine that ran it.",
)


def rows(results: Sequence[Result]) -> list[list[str]]:
    """Cells under `COLUMNS`, a row for each energy."""
    return [
        [
            result.entry.title,
            f"{result.drift.broken} of {len(result.drift.reasons)}",
            reasons(result.drift.plain()["reasons"]),
            str(result.drift.mean(result.drift.slope)),
            str(result.drift.mean(result.drift.deviation)),
            str(result.drift.mean(result.drift.temperature)),
            str(Estimate(result.record.milliseconds_per_step)),
            result.entry.claim or "–",
        ]
        for result in results
    ]


def write_report(folder: Path, results: Sequence[Result], scale: str) -> Path:
    """Draw ``figure4.png``, write ``results.json`` and ``index.html`` into a folder; returns the page."""
    page = folder / "index.html"
    picture = draw_figure(folder, results)
    found = {
        result.entry.folder: {"title": result.entry.title, **summary(result.record)} for result in results
    }
    content = (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode()
    write_atomically(folder / "results.json", content)
    lead = (
        f"Alanine dipeptide moves on the energies -log p of flows, at the scale {scale!r}: "
        f"{protocol(results)}. The paper's claim: RQ-spline flows break all ten molecules, smooth and "
        "B-spline flows with force matching keep all ten."
    )
    sections = [
        Section(
            "Who breaks",
            [
                "The potential energy is what the paper shows. The total energy must stay where it is as "
                "soon as the thermostat is off; a thermostat hides what is wrong with a force."
            ],
            Table(COLUMNS, rows(results), f"Scale {scale}.", NOTES),
            downloads=[Download("results.json", content)],
        ),
        Section("Figure 4", pictures=[picture]),
    ]
    write_page(Page("Dynamics on learned energies", lead, sections), page)
    return page


def protocol(results: Sequence[Result]) -> str:
    """How molecules were moved, in words."""
    config = results[0].record.about["config"]
    return (
        f"{config['replicas']} frames, velocities at {results[0].record.about['temperature']:g} K, "
        f"{config['equilibration']:g} ps of Langevin dynamics at {config['friction']:g}/ps, then "
        f"{config['production']:g} ps without a thermostat, in steps of {1000 * config['dt']:g} fs"
    )


def draw_figure(folder: Path, results: Sequence[Result]) -> Picture:
    """Figure 4, saved in the folder."""
    path = folder / "figure4.png"
    panels = [EnergyPanel.of(result.entry.title, result.record) for result in results]
    save(draw_energies(panels, ("total", "potential")), path)
    caption = (
        "Figure 4: total energy (above) and potential energy (below) of every replica, less the median "
        "potential at the start. Grey: with a thermostat. Broken replicas are orange; a cross marks where "
        "one stopped. The range is that of the replicas that stay whole."
    )
    replicas = results[0].record.about["config"]["replicas"]
    return Picture(path, f"Energies over time of {replicas} molecules on {len(results)} energies", caption)
