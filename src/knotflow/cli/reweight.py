"""``knotflow reweight``: the samples of a generator with another energy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from knotflow.cli import molecule as options
from knotflow.cli.evaluate import StateOption
from knotflow.cli.model import ModelArgument
from knotflow.cli.options import DrawnOption, SeedOption
from knotflow.cli.output import JsonOption, Output, QuietOption, align_right
from knotflow.cli.progress import working
from knotflow.cli.state_table import state_table
from knotflow.extras import MODULES, need

if TYPE_CHECKING:
    from knotflow.analysis.two_energies import TwoEnergies
    from knotflow.workflows.reweighting import Reweighting

GOOD_SHARE = 0.01
"""Effective sample size, as a share, below which the two energies hardly overlap."""
APART = 3.0
"""Two estimates further apart than this many errors contradict each other."""


def reweight(
    model: ModelArgument,
    energy: options.EnergyOption = "force-field",
    force_field: options.ForceFieldOption = None,
    solvent: options.SolventOption = "obc",
    charge: options.ChargeOption = None,
    multiplicity: options.MultiplicityOption = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/reweight"),
    data: Annotated[
        Path | None,
        typer.Option(
            help="Frames of the first energy, a .h5 file; by default data.h5 beside the model, if it was "
            "trained on it."
        ),
    ] = None,
    samples: DrawnOption = 10_000,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact/--no-exact",
            help="Also run exact chains on the new energy, some 60,000 evaluations. They check the weights "
            "and improve the free energy.",
        ),
    ] = True,
    refine: Annotated[bool, typer.Option("--refine", help="First adapt the flow to the new energy.")] = False,
    steps: Annotated[
        int, typer.Option(min=1, help="With --refine: steps of it, each some 400 evaluations.")
    ] = 200,
    state: StateOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """From one energy to another: what a better energy says of the structures of a cheap one.

    The generator was trained on one energy, such as a force field. Its samples are weighted by another, such
    as xTB or a machine-learned potential. The command prints the free energy between the two with its error
    (Bennett's acceptance ratio), the populations of all states in both, and how well they overlap: effective
    sample size, Pareto k, and accepted proposals of exact chains. If they hardly do, --refine adapts the flow
    with few evaluations of the new energy.

    The folder gets the model with the new energy, for all other commands, and reweight.json with all numbers.
    An interrupted command can be repeated: chains and refinement go on where they were.

    Examples:
        knotflow reweight runs/butane --energy xtb

        knotflow reweight runs/ala2 --energy xtb --refine --out runs/ala2-xtb

        knotflow reweight ala2 --force-field amber96.xml --samples 100000 --out runs/ff96
    """
    need("reweighting", *MODULES)
    from knotflow.files import read_json
    from knotflow.flows.boltzmann import BoltzmannGenerator
    from knotflow.molecules import MolecularSystem
    from knotflow.workflows.models import model_file
    from knotflow.workflows.reweighting import reweight as measure
    from knotflow.workflows.reweighting import with_energy

    path = model_file(model)
    target = with_energy(
        MolecularSystem.parse(BoltzmannGenerator.load(path).molecule),
        energy,
        force_field=force_field or (),
        solvent=solvent,
        charge=charge,
        multiplicity=multiplicity,
    )
    output = Output(as_json=as_json, quiet=quiet)
    with working(output, "the numbers were not written.") as progress:
        result = measure(
            path, target, out,
            data=data, samples=samples, exact=exact, refine=refine, steps=steps, states=state or (),
            seed=seed, progress=progress,
        )  # fmt: skip
    output.document(read_json(result.files["numbers"]))
    output.show(table(result))
    if result.found.states:
        output.show(state_table([group.plain() for group in result.found.states]))
    for sentence in warnings(result, refined=refine):
        output.say(sentence)
    output.say(f"All numbers: {result.files['numbers']}; the model with the new energy: {out}")


def table(result: Reweighting) -> Table:
    """The free energy between the energies, and how well they overlap."""
    found = result.found
    first, second = found.names
    table = align_right(Table("", first, second), slice(1, 3))
    for key in ("ess", "ess_clipped", "pareto_k"):
        pair = [efficiency[key] for efficiency in found.efficiency]
        table.add_row(pair[0].text, *map(str, pair))
    if result.acceptance is not None:
        table.add_row("accepted flow proposals of exact chains", "", f"{100 * result.acceptance:.1f} %")
    table.add_row("evaluations", "", f"{result.evaluations:,}")
    table.add_section()
    table.add_row(f"F({second}) - F({first}), kT, by weights", "", str(found.importance))
    if found.bar is not None:
        table.add_row("the same by Bennett's acceptance ratio", "", str(found.bar))
    if found.zero_kj:
        table.add_row("the same of absolute energies, kJ/mol", "", str(found.difference_kj))
    return table


def warnings(result: Reweighting, *, refined: bool) -> Iterator[str]:
    """Reasons not to trust the numbers, one sentence each."""
    found = result.found
    share, k = found.efficiency[1]["ess"].value, found.efficiency[1]["pareto_k"].value
    if not share >= GOOD_SHARE or not k <= 0.7:
        remedy = "more --steps, or a training on the new energy" if refined else "--refine"
        yield (
            f"The weights of {found.names[1]} cannot be trusted (effective sample size {100 * share:.2g} %, "
            f"Pareto k {k:.2g}): the two energies hardly overlap. Try {remedy}."
        )
    if _apart(found):
        yield (
            f"The two estimates of the free energy are more than {APART:g} errors apart: the flow misses a "
            "state, or the data of the first energy are too short. Trust neither yet."
        )


def _apart(found: TwoEnergies) -> bool:
    if found.bar is None:
        return False
    error = math.hypot(found.bar.error, found.importance.error)
    return abs(found.bar.value - found.importance.value) > APART * error
