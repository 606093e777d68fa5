"""``knotflow reproduce field``: peptides from nothing but the molecule, beside published figures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from knotflow.cli.options import SeedOption, results_option
from knotflow.cli.output import JsonOption, Output, QuietOption, align_right
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, kept
from knotflow.extras import MODULES, need

Molecule = StrEnum("Molecule", {"ala2": "ala2", "ala2-ff96": "ala2-ff96", "AAA": "AAA", "AAAAA": "AAAAA"})
"""Molecules of the benchmark. An enumeration, because Typer reads no lists of literals."""


def field(
    ctx: typer.Context,
    scale: Annotated[
        Literal["smoke", "small", "full"],
        typer.Option(
            help="smoke: less than a minute per molecule, to see that it works; small: minutes; full: hours "
            "(on two cores about 3 for ala2, 6 for AAA, 12 for AAAAA)."
        ),
    ] = "small",
    molecules: Annotated[
        list[Molecule] | None,
        typer.Option("--molecule", help="Only this molecule; may be repeated. By default all of them."),
    ] = None,
    out: Annotated[Path | None, results_option("field")] = None,
    seed: SeedOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Learn alanine peptides from nothing but the molecule, and put the results beside published figures.

    Each molecule is simulated by tempering; a generator is trained on the frames; its weighted samples are
    measured, and their free energies compared with those of the simulation and of exact chains. Energy
    evaluations, gradient steps and core-minutes are counted from the bare molecule on. You can stop with
    Ctrl-C; the same command continues and repeats nothing.

    ala2 is alanine dipeptide in the force field of this package, ala2-ff96 the same in ff96, closest to that
    of the published figures. AAA and AAAAA are ACE-AAA-NME and ACE-AAAAA-NME.

    Examples:
        knotflow reproduce field --scale smoke

        knotflow reproduce field --scale full --molecule ala2 --molecule AAA
    """
    need("the benchmark", *MODULES)
    from knotflow.paper import field as experiment
    from knotflow.paper import field_report as report
    from knotflow.paper.field_results import read_result

    output = Output(as_json=as_json, quiet=quiet)
    folder = out or Path("runs") / f"field-{scale}"
    names = list(dict.fromkeys(molecule.value for molecule in molecules or Molecule))
    with working(output) as progress, kept(ctx, folder / "field.toml"):
        done = experiment.run(folder, scale, names, seed=seed, say=output.tell, progress=progress)
        results = [read_result(task) for task in done]
        page, *others = report.write_report(folder, results, scale)
    output.document({"page": page, **report.numbers(results, scale)})
    table = Table(
        *report.COLUMNS, title="effective sample size, %; published, but for the last three columns"
    )
    align_right(table)
    for row in report.beside(results):
        table.add_row(*row)
    output.show(table)
    columns, rows = report.measured(results, brief=True)
    table = Table(*columns, title=f"scale {scale}")
    align_right(table)
    for row in rows:
        table.add_row(*row)
    output.show(table)
    if scale == "smoke":
        output.say("At --scale smoke the numbers mean nothing; it only shows that everything works.")
    output.say(f"Results: {', '.join(map(str, (page, *others)))}")
