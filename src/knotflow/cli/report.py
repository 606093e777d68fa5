"""``knotflow report``: a web page about a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from knotflow.cli.model import ModelArgument, results_file
from knotflow.cli.options import DrawnOption, SeedOption
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working


def report(
    model: ModelArgument,
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Trajectory of the same molecule, a .h5 file; by default the training data, if found."
        ),
    ] = None,
    samples: DrawnOption = 10_000,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="The page to write; by default report.html beside the model.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a web page about a Boltzmann generator: verdicts, pictures, structures to rotate, all numbers.

    The page is a single file that works offline. Its numbers come from metrics.json beside the model, if that
    file has the same model, DATA, --samples and --seed; otherwise the model is evaluated first, as by
    `knotflow evaluate`. States that were named there with --state stay, and exact chains are found as there.

    Without DATA, the command looks for the training data in the working folder, near the model, and in
    subfolders called data. If it finds none, the page shows what can be learned from samples alone.

    Examples:
        knotflow report runs/ala2 data/ala2.h5

        knotflow report ala2.safetensors --samples 2000 --out ala2.html
    """
    from knotflow.workflows.models import model_file
    from knotflow.workflows.report import write_report

    path = model_file(model)
    target = results_file(path, out, "report.html")
    output = Output(as_json=as_json, quiet=quiet)
    with working(output, f"{target} was not written.") as progress:
        written = write_report(path, data, target, samples=samples, seed=seed, progress=progress)
    output.document(
        {"page": written.page, "data": written.data, "metrics": written.metrics, "verdicts": written.verdicts}
    )
    say = output.say
    for verdict in written.verdicts:
        say(f"{verdict.subject}: {verdict}.")
    if written.data is None:
        say(f"No data: give a trajectory to compare with, as in `knotflow report {model} DATA.h5`.")
    elif data is None:
        say(f"Training data: {written.data}")
    if written.metrics is not None:
        say(f"All numbers: {written.metrics}")
    say(f"Page: {written.page}")
