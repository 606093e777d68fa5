"""``knotflow reproduce engines``: OpenMM, torch and tempering compared on one molecule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from knotflow.cli.options import ShortScale, results_option
from knotflow.cli.output import JsonOption, Output, QuietOption, deviation
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, kept


def engines(
    ctx: typer.Context,
    scale: Annotated[
        ShortScale, typer.Option(help="smoke: a minute or two, to see that it works; small: most of an hour.")
    ] = "small",
    reference: Annotated[
        Path | None,
        typer.Option(help="Another trajectory of ala2 at 300 K to compare with, from `knotflow import`."),
    ] = None,
    out: Annotated[Path | None, results_option("engines")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Sample alanine dipeptide with OpenMM, with torch and with tempering, and compare the distributions.

    A stopped run is continued by the same command.

    Example: knotflow reproduce engines --scale smoke
    """
    from knotflow.paper import engines as experiment

    folder = out or Path("runs") / f"engines-{scale}"
    output = Output(as_json=as_json, quiet=quiet)
    with working(output) as progress, kept(ctx, folder / "engines.toml"):
        runs, pairs = experiment.run(folder, scale, reference=reference, progress=progress)
    table = Table("run", "frames", "replicas", "energy, kT", "temperature, K", "phi > 0")
    for run in runs:
        cells = (run.n_replicas, run.energy, run.temperature or "", run.left)
        table.add_row(run.name, f"{run.n_frames:,}", *map(str, cells))
        if run.exchange_rates:
            rates = ", ".join(f"{100 * rate:.0f}" for rate in run.exchange_rates)
            table.caption = f"tempering: exchange rates {rates} %, {run.round_trips:,} round trips"
    output.document({"folder": folder, "runs": runs, "pairs": pairs})
    output.show(table)
    deviations = Table(
        "pair", "energy", "phi > 0", "(phi, psi)", "phi < 0: energy", "(phi, psi)", "bonds",
        title="deviations in error bars; for several observables, their root mean square",
    )  # fmt: skip
    for pair in pairs:
        z = pair.agreement
        values = (z.energy, z.left, z.histogram, z.right_energy, z.right_histogram, z.bonds)
        deviations.add_row(" - ".join(pair.names), *map(deviation, values))
    output.show(deviations)
    output.say(f"Trajectories and numbers: {folder}")
