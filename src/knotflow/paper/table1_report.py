"""Table 1 beside the paper's: text, Markdown and JSON, and a picture of the seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np

from knotflow.files import write_atomically, write_json
from knotflow.paper.numbers import number, spread
from knotflow.paper.table1 import MEASURES, ROWS, Result, paper_name
from knotflow.report.figures import save
from knotflow.report.seed_plots import SeedGroup, draw_seeds

PAPER: Final[dict[str, dict[str, tuple[float, float]]]] = {
    "rq": {"nll": (-210.28, 0.05), "fme": (79.95, 92.80), "kld": (385.22, 8.05)},
    "smooth": {"nll": (-210.87, 0.05), "fme": (1.34, 0.07), "kld": (192.57, 0.22)},
    "smooth+fm": {"nll": (-210.25, 0.09), "fme": (0.909, 0.002), "kld": (196.85, 1.02)},
    "bspline": {"nll": (-211.03, 0.03), "fme": (4.59, 5.11), "kld": (192.62, 0.31)},
    "bspline+fm": {"nll": (-209.45, 1.78), "fme": (0.812, 0.345), "kld": (228.09, 54.6)},
}
"""Table 1 of Hong & Chun (AAAI 2023): means and two standard errors over ten repeats, for comparison."""
PAPER_PARAMETERS: Final = {"rq": 285_497, "smooth": 314_456, "bspline": 380_982}
"""Table 2 of the paper, by family."""

TITLES: Final = {
    "nll": "NLL",
    "fme": "FME / 10⁴",
    "kld": "KLD",
    "excess": "NLL above its limit",
    "ess": "ESS, %",
}
UNITS: Final = {"ess": 100.0}
"""Factors by which measures are multiplied in tables."""
COLUMNS: Final = ("model", "trained", *TITLES.values(), "parameters", "training, s")
BRIEF: Final = tuple(range(7))
"""Columns that fit on a terminal."""
NOTES: Final = (
    "NLL (nats) and KLD (kT, without log Z) are in the paper's measure. FME is the mean squared error of "
    "forces, in 10⁴ (kT/nm)². NLL above its limit is the divergence from the Boltzmann distribution to the "
    "flow, in nats. ESS is the effective sample size of reweighted samples, in percent.",
    "±: two standard errors over seeds; the paper's are over ten repeats, on other data.",
)


@dataclass(frozen=True)
class Line:
    """A line of the table: all seeds of a model trained in one way, or the paper's numbers."""

    row: str
    """A key of `ROWS`."""
    trained: str
    """"recipe", "as published" or "paper"."""
    seeds: int
    diverged: tuple[int, ...]
    """Steps at which trainings were abandoned."""
    measures: dict[str, tuple[float, float]]
    """Mean and two standard errors over seeds; the errors are NaN with a single seed."""
    parameters: int | None
    seconds: float | None
    """Mean over seeds."""

    def cells(self) -> list[str]:
        """Cells under `COLUMNS`."""
        how, lost = self.trained, len(self.diverged)
        if how != "paper":
            how += f", {self.seeds} seed{'s' if self.seeds > 1 else ''}"
            how += f", {lost} diverged" if 0 < lost < self.seeds else ""
        return [
            ROWS[self.row].title,
            how,
            *_values(self.measures, self.diverged if lost == self.seeds else ()),
            "–" if self.parameters is None else f"{self.parameters:,}",
            "–" if self.seconds is None else f"{self.seconds:,.0f}",
        ]


def table(results: Sequence[Result]) -> list[Line]:
    """For every model with results: our lines, as published and by our recipe, and the paper's."""
    lines = []
    for row, own in groupby((line for line, _ in _groups(results)), key=lambda line: line.row):
        parameters = PAPER_PARAMETERS[paper_name(row)]
        lines += [*own, Line(row, "paper", 10, (), PAPER[row], parameters, None)]
    return lines


def write_report(folder: Path, results: Sequence[Result], about: Mapping[str, str | float]) -> list[Path]:
    """Write ``table1.md``, ``table1.json`` and, with several seeds, ``seeds.png``; return the files.

    Args:
        folder: For the files.
        results: The results to report.
        about: What all results have in common, such as the data; both files note it.

    Raises:
        ValueError: if there are no results.
    """
    if not results:
        raise ValueError(
            f"{folder} holds no finished run; run: knotflow reproduce table1 --data DATA.h5 --out {folder}"
        )
    lines = table(results)
    caption = ", ".join(f"{key}: {value}" for key, value in about.items())
    written = [folder / "table1.md", folder / "table1.json"]
    write_atomically(written[0], markdown(lines, results, caption).encode())
    write_json(written[1], {**about, "table": lines, "runs": results})
    if any(line.seeds > 1 for line in lines if line.trained != "paper"):
        save(draw_seeds(seed_groups(results), expected="paper, ± two standard errors"), folder / "seeds.png")
        written.append(folder / "seeds.png")
    return written


def markdown(lines: Sequence[Line], results: Sequence[Result], caption: str) -> str:
    """The table, the meaning of its columns, and a table of all runs."""
    runs = []
    for result in results:
        values = _values(
            {name: (value,) for name, value in result.measures.items()},
            () if result.diverged is None else (result.diverged,),
        )
        refused = "–" if result.refused is None else f"{result.refused:,}"
        runs.append([result.task.folder, *values, refused])
    return "\n\n".join(
        [
            "# Table 1: alanine dipeptide",
            caption,
            pipes(COLUMNS, [line.cells() for line in lines], left=2),
            *NOTES,
            "## Runs",
            pipes(("run", *TITLES.values(), "steps refused"), runs, left=1),
        ]
    ) + "\n"  # fmt: skip


def seed_groups(results: Sequence[Result]) -> list[SeedGroup]:
    """The paper's three measures for all seeds, as published above our recipe."""
    return [
        SeedGroup(
            ROWS[line.row].title,
            line.trained,
            {
                TITLES[name]: np.array([result.measures.get(name, math.nan) for result in members])
                for name in PAPER[line.row]
            },
            {TITLES[name]: value for name, value in PAPER[line.row].items()},
        )
        for line, members in _groups(results)
    ]


def _groups(results: Sequence[Result]) -> Iterator[tuple[Line, list[Result]]]:
    """Results that differ only in the seed, with their line of the table."""
    for row in ROWS:
        for published in (True, False):
            members = [
                result for result in results if (result.task.row, result.task.published) == (row, published)
            ]
            if not members:
                continue
            finished = [result for result in members if result.diverged is None]
            seconds = [result.seconds for result in finished if result.seconds is not None]
            yield (
                Line(
                    row,
                    "as published" if published else "recipe",
                    len(members),
                    tuple(result.diverged for result in members if result.diverged is not None),
                    {name: spread([result.measures[name] for result in finished]) for name in MEASURES},
                    next((result.parameters for result in finished), None),
                    float(np.mean(seconds)) if seconds else None,
                ),
                members,
            )


def _values(measures: Mapping[str, tuple[float, ...]], diverged: Sequence[int]) -> list[str]:
    """Cells under `TITLES`; the first names the steps at which trainings diverged, if any."""
    values = [number(*(UNITS.get(name, 1.0) * x for x in measures.get(name, (math.nan,)))) for name in TITLES]
    if diverged:
        values[0] = f"diverged at step {', '.join(f'{step:,}' for step in diverged)}"
    return values


def pipes(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A Markdown table; all but the first ``left`` columns are aligned to the right."""
    rule = [*["---"] * left, *["--:"] * (len(columns) - left)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows))
