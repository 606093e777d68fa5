"""``knotflow run`` and ``knotflow quickstart``: everything, from the molecule to the answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from knotflow.cli import molecule as options
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.extras import MODULES, need

if TYPE_CHECKING:
    from knotflow.workflows.whole_run import Run

Stage = Literal["simulate", "train", "sample", "evaluate", "exact", "report"]

OutOption = Annotated[Path, typer.Option(help="Folder for the results.")]
SeedOption = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of all random numbers.")]

QUICKSTART_HOURS = 0.2


def run(
    ctx: typer.Context,
    molecule: Annotated[
        str | None,
        typer.Argument(help="ala2, a file, or SMILES; as --molecule elsewhere.", show_default="ala2"),
    ] = None,
    hours: Annotated[float, typer.Option(help="Time for everything together.")] = 2.0,
    out: OutOption = Path("runs/run"),
    peptide: options.PeptideOption = None,
    force_field: options.ForceFieldOption = None,
    solvent: options.SolventOption = "obc",
    temperature: options.TemperatureOption = 300.0,
    add_hydrogens: options.AddHydrogensOption = False,
    energy: options.EnergyOption = "force-field",
    charge: options.ChargeOption = None,
    multiplicity: options.MultiplicityOption = None,
    again: Annotated[
        Stage | None, typer.Option(help="Do a stage again, and all that follow; their results are removed.")
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """From a molecule to an answer, in the time you give.

    The molecule is simulated at many temperatures. A flow learns its Boltzmann distribution from frames and
    forces, and is refined with the energy. Its samples are weighted, compared with frames it has not seen,
    and shown on a page, report.html. If the weights cannot be trusted, exact chains follow. How much each
    stage can do in its share of the time is measured on your machine.

    You can stop with Ctrl-C; the same command continues. All other commands accept the folder, as in
    `knotflow sample runs/run`.

    Examples:
        knotflow run ala2 --hours 0.5

        knotflow run mine.pdb --add-hydrogens --hours 2 --out runs/mine

        knotflow run --peptide AAA --hours 6 --out runs/aaa

        knotflow run CCCC --energy xtb --hours 0.5 --out runs/butane

        knotflow run mine.pdb --add-hydrogens --out runs/mine --again train
    """
    need("a run", *MODULES)
    from knotflow.workflows.whole_run import Run

    named = "ala2" if molecule is None and peptide is None else molecule
    _complete(
        Run(out, options.chosen_molecule(ctx, named), hours, seed),
        Output(as_json=as_json, quiet=quiet),
        again,
    )


def quickstart(
    out: OutOption = Path("runs/quickstart"),
    scale: Annotated[
        Literal["full", "smoke"],
        typer.Option(help="full: twelve minutes; smoke: less than one, to see that it works."),
    ] = "full",
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """See it work: `knotflow run` on alanine dipeptide, in twelve minutes.

    It is simulated, and a flow learns its Boltzmann distribution from the frames and their forces. Samples
    are weighted by the force field and compared with frames not seen in training, and everything is shown on
    one page, report.html. You can stop with Ctrl-C; the same command continues. All other commands accept the
    folder, as in `knotflow sample runs/quickstart`.

    Example: knotflow quickstart --out runs/first
    """
    need("the quickstart", *MODULES)
    from knotflow.molecules import ala2
    from knotflow.workflows.run_plan import Amounts
    from knotflow.workflows.whole_run import Run

    smoke = Amounts(frames=120, steps=20, samples=200, rows=0)
    job = Run(out, ala2(), QUICKSTART_HOURS, seed)
    if scale == "smoke":
        job = Run(out, ala2(), QUICKSTART_HOURS / 12, seed, smoke, quick=True)
    _complete(job, Output(as_json=as_json, quiet=quiet))


def _complete(job: Run, output: Output, again: Stage | None = None) -> None:
    """Do the rest of a run, with progress, and tell its results."""
    from knotflow.workflows.run_summary import facts, lines
    from knotflow.workflows.whole_run import complete

    # Progress counts the seconds that each stage is expected to take.
    with working(output, expected=1.0, limit=job.plan.all_left) as progress:
        made = complete(job, progress, again)
    if not made:
        output.tell(f"everything is done already; remove {job.folder} to start over")
    found = facts(job)
    summary = lines(job, found)
    output.document({"lines": summary, "page": job.page, "samples": job.samples, "found": found})
    for subject, sentence in summary.items():
        output.say(f"{subject + ':':<9}{sentence}")
