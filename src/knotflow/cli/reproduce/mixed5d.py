"""``knotflow reproduce mixed5d``: a flow on circles, intervals and a line together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from knotflow.cli.options import SeedOption, ShortScale, results_option
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, kept


def mixed5d(
    ctx: typer.Context,
    scale: Annotated[
        ShortScale, typer.Option(help="smoke: seconds, to see that it works; small: minutes.")
    ] = "small",
    out: Annotated[Path | None, results_option("mixed5d")] = None,
    seed: SeedOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train the default flow on two circles, two intervals and a line, with likelihood and forces.

    The density is known exactly (knotflow.energies.Mixed), so all errors are those of the flow. A
    stopped run is continued by the same command.

    Example: knotflow reproduce mixed5d --scale smoke
    """
    from knotflow.paper import mixed5d as experiment

    folder = out or Path("runs") / f"mixed5d-{scale}"
    output = Output(as_json=as_json, quiet=quiet)
    with working(output) as progress, kept(ctx, folder / "mixed5d.toml"):
        result = experiment.run(folder, scale, seed=seed, progress=progress)
    table = Table("measure", "value", title=f"five coordinates of mixed kinds, scale {scale}")
    table.add_row("KL (nats)", f"{result.kl:.4f} ± {result.kl_error:.4f}")
    table.add_row("score error, relative", f"{100 * result.score_error:.1f} %")
    table.add_row("  for each coordinate", ", ".join(f"{100 * e:.1f}" for e in result.score_errors))
    table.add_row("effective sample size", f"{100 * result.ess:.1f} %")
    table.add_row("training", f"{result.training_seconds:.0f} s")
    output.document({"folder": folder, "result": result})
    output.show(table)
    output.say(f"Model and numbers: {folder}")
