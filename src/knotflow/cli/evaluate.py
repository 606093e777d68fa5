"""``knotflow evaluate``: how good is a Boltzmann generator?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from knotflow.cli import dynamics as protocol
from knotflow.cli.model import ModelArgument, force_field, model_file, results_folder
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.stages import Stages

if TYPE_CHECKING:
    from knotflow.analysis import Evaluation


def evaluate(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="Trajectory of the same molecule, a .h5 file.")],
    samples: Annotated[int, typer.Option(min=2, help="How many samples to draw.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples and of the error bars.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for all numbers; by default metrics.json beside the model.", show_default=False
        ),
    ] = None,
    all_frames: Annotated[
        bool,
        typer.Option("--all-frames", help="Use all frames of DATA, also those the model was trained on."),
    ] = False,
    float64: Annotated[
        bool, typer.Option("--float64", help="Compute densities and forces of the flow in double precision.")
    ] = False,
    dynamics: Annotated[
        bool,
        typer.Option(
            "--dynamics",
            help="First run `knotflow dynamics` with its defaults, unless its results are in the folder: "
            "minutes to hours.",
        ),
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare a Boltzmann generator with data and with its force field; every estimate has an error bar.

    If DATA is the file the model was trained on, only frames that training did not see are used. NLL and the
    lowest possible one, errors of forces, log Z, effective sample size, distances of energies and torsions
    are printed and written to metrics.json. Errors are standard errors: of data over replicas, of samples
    over samples.

    If the folder of the model has results of `knotflow dynamics`, its drift score is shown and written, too.

    Examples:
        knotflow evaluate runs/ala2 data/ala2.h5

        knotflow evaluate ala2.safetensors data/other.h5 --samples 100000 --out other.json

        knotflow evaluate ala2 data/ala2.h5 --json --quiet
    """
    from knotflow.analysis.evaluation import evaluate as measure
    from knotflow.flows.boltzmann import BoltzmannGenerator
    from knotflow.flows.io import notes
    from knotflow.molecules.system import MolecularSystem

    path = model_file(model)
    target = results_folder(path) / "metrics.json" if out is None else out
    if target.is_dir():
        raise IsADirectoryError(f"--out must be a file for the numbers, but {target} is a folder.")
    generator = BoltzmannGenerator.load(path)
    if float64:
        generator.double()
    split = None if all_frames else notes(path).get("split")
    output = Output(as_json=as_json, quiet=quiet)
    drift = _drift(path, data, output.progress, wanted=dynamics, all_frames=all_frames)
    system = MolecularSystem.parse(generator.molecule)
    with force_field(system, samples) as energy, Stages(output.progress) as shown:
        found = measure(generator, data, energy, split=split, samples=samples, seed=seed, progress=shown)
    output.document(found.write(target, path, **({} if drift is None else {"dynamics": drift})))
    output.show(table(found))
    if drift is not None:
        output.show(protocol.table(drift))
    for note in _notes(found):
        output.say(note)
    output.say(f"All numbers: {target}")


def _drift(
    model: Path, data: Path, console: Console, *, wanted: bool, all_frames: bool
) -> dict[str, Any] | None:
    """The drift score of a model, from the folder beside it; if it is wanted and not there, it is made."""
    from knotflow.inputs import file_fingerprint

    folder = results_folder(model) / protocol.FOLDER
    found = protocol.read_drift(folder) if (folder / "drift.json").exists() else None
    if found is not None and found["about"].get("model") == file_fingerprint(model):
        return found
    if not wanted:
        if found is not None:
            said = f"{folder} is about another model and left out."
            console.print(said, highlight=False, soft_wrap=True, markup=False)
        return None
    from knotflow.dynamics import DynamicsConfig

    protocol.run_protocol(model, data, folder, DynamicsConfig(), all_frames=all_frames, console=console)
    return protocol.read_drift(folder)


def table(evaluation: Evaluation) -> Group:
    """All measures, and below them those of the torsions of each residue."""
    about = evaluation.about
    data = about["data"]
    rows = "all" if data["rows"] == "all" else "held back in training, of"
    main = Table(
        "measure", "value", "unit",
        title=f"{about['molecule']} at {about['temperature']:g} K: {about['samples']:,} samples, "
        f"{data['frames']:,} frames ({rows} {data['frames_in_file']:,} in {data['file']})",
        caption=f"± standard errors: of data over {data['blocks']} {_unit_of(data)}, of samples over samples",
    )  # fmt: skip
    main.columns[1].justify = "right"
    for measure in evaluation.measures.values():
        main.add_row(escape(measure.text), str(measure), escape(measure.unit))
    parts = [main]
    if evaluation.residues:
        parts.append(_torsion_table(evaluation))
    return Group(*parts)


def _torsion_table(evaluation: Evaluation) -> Table:
    torsions = Table(
        "", "data", "samples", "reweighted", "unit",
        title="Torsions (phi, psi) compared with those of the data",
        caption="data: one half against the other, but for free energies",
    )  # fmt: skip
    for column in torsions.columns[1:4]:
        column.justify = "right"
    for residue, found in evaluation.residues.items():
        torsions.add_section()
        torsions.add_row(f"[bold]{escape(residue)}[/]")
        for key in [key for key in found if f"{key}_data" in found]:
            row = [found[f"{key}_data"], found[key], found[f"{key}_reweighted"]]
            torsions.add_row(escape(row[0].text), *map(str, row), row[0].unit)
    return torsions


def _unit_of(data: dict[str, int]) -> str:
    if data["blocks"] == data["replicas"]:
        return "replicas"
    return "pieces of its replica" if data["replicas"] == 1 else f"pieces of its {data['replicas']} replicas"


def _notes(evaluation: Evaluation) -> Iterator[str]:
    for measure in evaluation.measures.values():
        if measure.note:
            yield f"{measure.text}: {measure.note}"
    for residue, found in evaluation.residues.items():
        for key, measure in found.items():
            if measure.note:
                kind = (
                    "data"
                    if key.endswith("_data")
                    else "reweighted"
                    if key.endswith("_reweighted")
                    else "samples"
                )
                yield f"{residue}, {measure.text}, {kind}: {measure.note}"
    if not evaluation.residues:
        yield "No residue has both phi and psi, so nothing is said of torsions."
    spent = ", ".join(f"{work} {seconds:.1f} s" for work, seconds in evaluation.seconds.items())
    yield f"Time: {spent}."
