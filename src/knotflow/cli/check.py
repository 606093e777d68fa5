"""``knotflow check``: checks of a molecule or a trained model on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from knotflow.cli import molecule as options
from knotflow.cli.model import complete_model
from knotflow.cli.options import SeedOption
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.kernels.library import engine
from knotflow.resources import check_memory, check_time

if TYPE_CHECKING:
    from knotflow.analysis.check import Check
    from knotflow.molecules.system import MolecularSystem
    from knotflow.progress import Progress


def check(
    ctx: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            help="A model (.safetensors file, folder of a training run, or ala2, which comes with knotflow) "
            "or a molecule, as for --molecule; by default the molecule alanine dipeptide.",
            autocompletion=complete_model,
        ),
    ] = None,
    peptide: options.PeptideOption = None,
    force_field: options.ForceFieldOption = None,
    solvent: options.SolventOption = "obc",
    temperature: options.TemperatureOption = 300.0,
    add_hydrogens: options.AddHydrogensOption = False,
    energy: options.EnergyOption = "force-field",
    charge: options.ChargeOption = None,
    multiplicity: options.MultiplicityOption = None,
    frames: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For a molecule: frames for energies and forces, by default 10,000; coordinates are checked "
            "on ten times as many. For a model: samples, by default 2,000.",
        ),
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compiled", help="Also check the compiled force field; compiling takes most of a minute."
        ),
    ] = False,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check that a molecule or a trained model works on this machine; the exit status is 1 if it does not.

    A molecule is checked on random frames of a short hot simulation, with everything that training and
    sampling use. Energies and forces must agree with OpenMM's double-precision platform on a force field
    rebuilt from its files. Converting positions to internal coordinates and back must not change them.

    A model is checked on samples. Passing them through the flow and back must not change them, and both
    directions must give the same density. Log-determinants must agree with Jacobians, and forces with finite
    differences, without jumps. The density must integrate to one, and nothing may be infinite or NaN. OpenMM
    is not needed.

    Examples:
        knotflow check

        knotflow check ala2

        knotflow check mine.pdb --add-hydrogens --temperature 310

        knotflow check --peptide GYDPETGTWG --frames 1000

        knotflow check runs/ala2 --json
    """
    output, runs_on = Output(as_json=as_json, quiet=quiet), engine()
    with working(output, "the check is not complete.") as progress:
        if what is not None and _is_model(what):
            _refuse_options(
                peptide=peptide is not None,
                force_field=force_field is not None,
                solvent=solvent != "obc",
                temperature=temperature != 300.0,
                add_hydrogens=add_hydrogens,
                energy=energy != "force-field",
                charge=charge is not None,
                multiplicity=multiplicity is not None,
                compiled=compiled,
            )
            title, checks = _check_model(Path(what), frames or 2_000, seed, progress)
            caption = "largest error over all samples"
        else:
            _refuse(what, peptide)
            system = options.chosen_molecule(ctx, what)
            title, checks = _check_molecule(system, frames or 10_000, seed, progress, compiled)
            caption = "largest error over all frames; of max: relative to the largest force in the same frame"
    _print(output, title, caption, checks)
    output.say(f"Spline engine: {runs_on}.")
    broken = [check.name for check in checks if not check.ok]
    found = [{**asdict(check), "ok": check.ok} for check in checks]
    output.document({"what": title, "engine": runs_on, "ok": not broken, "checks": found})
    if broken:
        line = Text.assemble(("Broken promises:", "bold red"), f" {'; '.join(broken)}.")
        output.results.print(line)
        raise typer.Exit(1)
    output.say("All promises are kept.")


def _is_model(what: str) -> bool:
    from knotflow.flows.pretrained import pretrained_names

    path = Path(what)
    return path.suffix.lower() == ".safetensors" or path.is_dir() or what in pretrained_names()


def _refuse_options(**given: bool) -> None:
    """Refuse options that are for molecules only."""
    for name, is_given in given.items():
        if is_given:
            raise ValueError(
                f"--{name.replace('_', '-')} is for molecules; a model has its own, so leave it out."
            )


def _check_molecule(
    system: MolecularSystem, frames: int, seed: int, progress: Progress, compiled: bool
) -> tuple[str, list[Check]]:
    """A title, and the results."""
    from knotflow.analysis.check import check_molecule

    check_time(f"{frames:,} frames", frames * 1e-4)
    title = f"{system.name}: {system.n_atoms} atoms at {system.temperature:g} K, {frames:,} random frames"
    return title, check_molecule(system, frames, seed, progress, compiled=compiled)


def _check_model(path: Path, samples: int, seed: int, progress: Progress) -> tuple[str, list[Check]]:
    """A title, and the results. If the file holds no molecule, only the flow is checked."""
    from knotflow.analysis.check_model import check_flow, check_model
    from knotflow.flows.boltzmann import BoltzmannGenerator
    from knotflow.flows.io import load, notes
    from knotflow.workflows.models import model_file

    path = model_file(path)
    check_memory(f"{samples:,} samples", samples * 64)
    model = BoltzmannGenerator.load(path) if "molecule" in notes(path) else load(path)
    size = sum(parameter.numel() for parameter in model.parameters())
    if isinstance(model, BoltzmannGenerator):
        name = f"{model.molecule['name']}, {model.n_atoms} atoms at {model.temperature:g} K"
        checks = check_model(model, samples, seed, progress)
    else:
        name = f"{model.dim} coordinates"
        checks = check_flow(model, samples, seed, progress)
    return f"{path.name}: {name}, {size:,} parameters, {samples:,} samples", checks


def _refuse(what: str | None, peptide: str | None) -> None:
    """Refuse what `load_molecule` would refuse with names of options that this command does not have."""
    if what is not None and peptide is not None:
        raise ValueError(f"{what!r} and --peptide both name a molecule; give only one of them.")


def _print(output: Output, title: str, caption: str, checks: list[Check]) -> None:
    table = Table("check", "measured", "promise", "ok", title=title, caption=caption)
    for check in checks:
        measured = "not available" if check.value is None else f"{_measured(check.value)} {check.unit}"
        promise = "-" if check.limit is None else f"{check.limit:.2g} {check.unit}"
        verdict = Text("yes", "green") if check.ok else Text("NO", "bold red")
        table.add_row(check.name, measured, promise, "-" if None in (check.value, check.limit) else verdict)
    output.show(table)
    for note in dict.fromkeys(check.note for check in checks if check.note):
        output.say(note)


def _measured(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e6 else f"{value:.2g}"
