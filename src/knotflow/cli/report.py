"""``knotflow report``: all about a trained model on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from knotflow.cli.model import ModelArgument, force_field, model_file, results_folder
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.stages import Stages


def report(
    model: ModelArgument,
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Trajectory of the same molecule, a .h5 file; by default the one of the training, if it is "
            "found.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="How many samples to draw.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples and of the error bars.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="The page; by default report.html beside the model.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write one page on a Boltzmann generator: verdicts, pictures, structures to turn, all numbers.

    The page is a single file that needs no network. Numbers are those of metrics.json beside the model, if
    they are of this model, DATA, --samples and --seed; otherwise the model is evaluated first, as by
    `knotflow evaluate`.
    Without DATA the trajectory of the training is looked for in the working folder, near the model, and in
    folders called data there; if there is none, the page has what samples alone can tell.

    Examples:
        knotflow report runs/ala2 data/ala2.h5

        knotflow report ala2.safetensors --samples 2000 --out ala2.html
    """
    from knotflow.flows.io import notes
    from knotflow.molecules.system import MolecularSystem
    from knotflow.workflows.report import find_data, write_report

    path = model_file(model)
    target = results_folder(path) / "report.html" if out is None else out
    if target.is_dir():
        raise IsADirectoryError(f"--out must be a file for the page, but {target} is a folder.")
    molecule = notes(path).get("molecule")
    if molecule is None:
        raise ValueError(f"{path} holds a flow without a molecule; report a Boltzmann generator.")
    source = find_data(path) if data is None else data
    output = Output(as_json=as_json, quiet=quiet)
    with (
        force_field(MolecularSystem.parse(molecule), samples) as energy,
        Stages(output.progress) as shown,
    ):
        written = write_report(
            path,
            energy,
            target,
            folder=results_folder(path),
            data=source,
            samples=samples,
            seed=seed,
            progress=shown,
        )
    output.document(
        {"page": written.page, "data": source, "metrics": written.metrics, "verdicts": written.verdicts}
    )
    say = output.say
    for verdict in written.verdicts:
        say(f"{verdict.subject}: {verdict}.")
    if source is None:
        say(f"No data: give a trajectory to compare with, as in `knotflow report {model} DATA.h5`.")
    elif data is None:
        say(f"Data of the training: {source}")
    if written.metrics is not None:
        say(f"All numbers: {written.metrics}")
    say(f"Page: {written.page}")
