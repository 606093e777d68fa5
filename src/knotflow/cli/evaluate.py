"""``knotflow evaluate``: a Boltzmann generator compared with data and its force field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from knotflow.cli import dynamics as protocol
from knotflow.cli.model import ModelArgument, results_file
from knotflow.cli.options import AllFramesOption, DrawnOption, Float64Option, SeedOption
from knotflow.cli.output import JsonOption, Output, QuietOption, align_right
from knotflow.cli.progress import working
from knotflow.cli.state_table import state_table

if TYPE_CHECKING:
    from knotflow.analysis import Evaluation


StateOption = Annotated[
    list[str] | None,
    typer.Option(
        help='A state to compare, such as "anti: torsion 0 1 2 3 in 120..240": atoms by number from 0 or '
        'by name (ALA2:CA), degrees, several conditions joined by "and"; repeatable. By default the '
        "wells of all turning torsions and of rings.",
    ),
]


def evaluate(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="Trajectory of the same molecule, a .h5 file.")],
    samples: DrawnOption = 10_000,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="File for all numbers; by default metrics.json beside the model.")
    ] = None,
    all_frames: AllFramesOption = False,
    float64: Float64Option = False,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            min=0.0,
            help="In K: also free energy, mean energy and heat capacity at this temperature; repeatable. "
            "For models of `knotflow train --temperatures`.",
        ),
    ] = None,
    state: StateOption = None,
    chains: Annotated[
        Path | None,
        typer.Option(
            help="Chains of `knotflow exact`, whose states are shown beside; by default exact.h5 beside the "
            "model or here, if it is of this model."
        ),
    ] = None,
    dynamics: Annotated[
        bool,
        typer.Option(
            "--dynamics",
            help="First run `knotflow dynamics` with its defaults, unless its results exist already; takes "
            "minutes to hours.",
        ),
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare a Boltzmann generator with data and with its force field; every estimate has an error bar.

    If DATA is the file the model was trained on, only frames that were held out are used. The command prints
    the negative log-likelihood and its lowest possible value, force errors, log Z, the effective sample size,
    and how much energies and torsions differ, and writes all of it to metrics.json. Errors are standard
    errors: over replicas for data, over samples for samples. Hydrogens on the same atom are labelled as in
    the model, and mirror images are set aside; a line says in how many frames.

    States are compared in data, samples, reweighted samples and exact chains: their populations, and the free
    energies between all pairs. A number without ± is not known, as a state is visited too rarely.

    The drift score is included if the model's folder has results of `knotflow dynamics`.

    Examples:
        knotflow evaluate runs/ala2 data/ala2.h5

        knotflow evaluate ala2.safetensors data/other.h5 --samples 100000 --out other.json

        knotflow evaluate ala2 data/ala2.h5 --json --quiet

        knotflow evaluate runs/butane data/butane.h5 --state "anti: torsion 0 1 2 3 in 120..240"

        knotflow evaluate runs/warm data/warm.h5 --temperature 300 --temperature 400
    """
    from knotflow.files import read_json
    from knotflow.workflows.evaluation import evaluate as measure
    from knotflow.workflows.models import model_file

    path = model_file(model)
    target = results_file(path, out, "metrics.json")
    output = Output(as_json=as_json, quiet=quiet)
    drift = _drift(path, data, output, wanted=dynamics, all_frames=all_frames)
    with working(output, f"{target} was not written.") as progress:
        found = measure(
            path,
            data,
            target,
            samples=samples,
            seed=seed,
            all_frames=all_frames,
            float64=float64,
            temperatures=temperature or (),
            states=state or (),
            chains=chains,
            more=None if drift is None else {"dynamics": drift},
            progress=progress,
        )
    output.document(read_json(target))
    output.show(table(found))
    if found.states:
        output.show(state_table([group.plain() for group in found.states]))
    if found.temperatures:
        output.show(temperature_table(found))
    if drift is not None:
        output.show(protocol.table(drift))
    for note in _notes(found):
        output.say(note)
    output.say(f"All numbers: {target}")


def _drift(
    model: Path, data: Path, output: Output, *, wanted: bool, all_frames: bool
) -> dict[str, Any] | None:
    """The drift score of a model from the folder beside it; if it is missing but wanted, it is computed."""
    from knotflow.inputs import file_fingerprint
    from knotflow.workflows.models import results_folder

    folder = results_folder(model) / protocol.FOLDER
    found = protocol.read_drift(folder) if (folder / "drift.json").exists() else None
    if found is not None and found["about"].get("model") == file_fingerprint(model):
        return found
    if not wanted:
        if found is not None:
            output.tell(f"{folder} is about another model, so it is left out.")
        return None
    from knotflow.dynamics import DynamicsConfig

    protocol.run_protocol(model, data, folder, DynamicsConfig(), all_frames=all_frames, output=output)
    return protocol.read_drift(folder)


def table(evaluation: Evaluation) -> Group:
    """All measures, and below them those for the torsions of each residue."""
    about = evaluation.about
    data = about["data"]
    rows = "all" if data["rows"] == "all" else "held out, of"
    main = Table(
        "measure", "value", "unit",
        title=f"{about['molecule']} at {about['temperature']:g} K: {about['samples']:,} samples, "
        f"{data['frames']:,} frames ({rows} {data['frames_in_file']:,} in {data['file']})",
        caption=f"± standard errors: of data over {data['blocks']} {_unit_of(data)}, of samples over samples",
    )  # fmt: skip
    align_right(main, slice(1, 2))
    for measure in evaluation.measures.values():
        main.add_row(measure.text, str(measure), measure.unit)
    return Group(main, _torsion_table(evaluation)) if evaluation.residues else Group(main)


def _torsion_table(evaluation: Evaluation) -> Table:
    torsions = Table(
        "", "data", "samples", "reweighted", "unit",
        title="Torsions (phi, psi) compared with those of the data",
        caption="data: one half against the other, except for free energies",
    )  # fmt: skip
    align_right(torsions, slice(1, 4))
    for residue, found in evaluation.residues.items():
        torsions.add_section()
        torsions.add_row(Text(residue, "bold"))
        for key in [key for key in found if f"{key}_data" in found]:
            row = [found[f"{key}_data"], found[key], found[f"{key}_reweighted"]]
            torsions.add_row(row[0].text, *map(str, row), row[0].unit)
        for key in ("ess_left", "ess_right"):
            if key in found:
                torsions.add_row(found[key].text, "", str(found[key]), "", "")
    return torsions


def temperature_table(evaluation: Evaluation) -> Table:
    """Measures at each temperature, beside those of the tempering run if there is one."""
    table = Table(
        "", "model", "simulation", "unit",
        title="Temperatures: weighted samples of the model; frames of the tempering run by MBAR",
        caption=f"The kinetic energy would add 3Nk/2 = {_kinetic(evaluation):.1f} J/mol/K to heat capacities",
    )  # fmt: skip
    align_right(table, slice(1, 3))
    for result in evaluation.temperatures:
        table.add_section()
        table.add_row(Text(f"{result.temperature:g} K", "bold"))
        for key, measure in result.measures.items():
            reference = result.reference.get(key)
            table.add_row(
                measure.text, str(measure), "" if reference is None else str(reference), measure.unit
            )
    return table


def _kinetic(evaluation: Evaluation) -> float:
    from knotflow.molecules.units import BOLTZMANN

    return float(1.5e3 * BOLTZMANN * evaluation.about["atoms"])


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
                kind = next((kind for kind in ("data", "reweighted") if key.endswith(f"_{kind}")), "samples")
                yield f"{residue}, {measure.text}, {kind}: {measure.note}"
    for result in evaluation.temperatures:
        for measure in result.measures.values():
            if measure.note:
                yield f"{result.temperature:g} K, {measure.text}: {measure.note}"
    if not evaluation.states:
        yield "No torsion or ring has more than one well, so there are no states; name your own with --state."
    spent = ", ".join(f"{work} {seconds:.1f} s" for work, seconds in evaluation.seconds.items())
    yield f"Time: {spent}."
