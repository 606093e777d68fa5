"""``knotflow reproduce engines``: three ways to sample a molecule, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from knotflow.cli.options import ShortScale, results_option
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, kept


def engines(
    ctx: typer.Context,
    scale: Annotated[
        ShortScale,
        typer.Option(help="smoke: a minute or two, to see that it works; small: most of an hour."),
    ] = ShortScale.small,
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

    If it is stopped, the same command continues.

    Example: knotflow reproduce engines --scale smoke
    """
    from knotflow.paper import engines as experiment

    folder = out or Path("runs") / f"engines-{scale.value}"
    output = Output(as_json=as_json, quiet=quiet)
    with working(output) as progress, kept(ctx, folder / "engines.toml"):
        runs, pairs = experiment.run(folder, scale.value, reference=reference, progress=progress)
    table = Table("run", "frames", "replicas", "energy, kT", "temperature, K", "phi > 0")
    for run in runs:
        table.add_row(
            run.name,
            f"{run.n_frames:,}",
            str(run.n_replicas),
            str(run.energy),
            str(run.temperature or ""),
            str(run.left),
        )
        if run.exchange_rates:
            rates = ", ".join(f"{100 * rate:.0f}" for rate in run.exchange_rates)
            table.caption = f"tempering: exchange rates {rates} %, {run.round_trips:,} round trips"
    output.document({"folder": folder, "runs": runs, "pairs": pairs})
    output.show(table)
    columns = ("pair", "energy", "phi > 0", "(phi, psi)", "phi < 0: energy", "(phi, psi)", "bonds")
    deviations = Table(
        *columns, title="deviations in error bars; for several observables, their root mean square"
    )
    for pair in pairs:
        z = pair.agreement
        values = (z.energy, z.left, z.histogram, z.right_energy, z.right_histogram, z.bonds)
        deviations.add_row(" - ".join(pair.names), *(f"{value:.2f}" for value in values))
    output.show(deviations)
    output.say(f"Trajectories and numbers: {folder}")
