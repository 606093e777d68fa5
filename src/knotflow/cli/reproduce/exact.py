"""``knotflow reproduce exact``: exact samples compared with long molecular dynamics."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from knotflow.cli.exact import BurnInOption, ChainsOption, EveryOption, memory_table
from knotflow.cli.model import ModelArgument
from knotflow.cli.options import SamplesOption, SeedOption, from_options
from knotflow.cli.output import JsonOption, Output, QuietOption, align_right, deviation
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, kept

if TYPE_CHECKING:
    from knotflow.paper.chains_against_md import Comparison


def exact(
    ctx: typer.Context,
    model: ModelArgument,
    data: Annotated[
        Path, typer.Option(help="Long trajectory of the same molecule (.h5), made with `knotflow simulate`.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/exact"),
    samples: SamplesOption = 50_000,
    chains: ChainsOption = 256,
    burn_in: BurnInOption = 100,
    every: EveryOption = 10,
    seed: SeedOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare exact samples with long molecular dynamics: energies, torsions, free energies.

    A stopped run is continued by the same command.

    Example: knotflow reproduce exact runs/ala2 --data data/ala2.h5
    """
    from knotflow.dynamics.chain_run import ExactPlan
    from knotflow.paper import chains_against_md as experiment
    from knotflow.workflows.models import model_file

    plan = from_options(ctx, ExactPlan, rows=math.ceil(samples / chains))
    output = Output(as_json=as_json, quiet=quiet)
    with kept(ctx, out / "exact.toml"), working(output) as progress:
        result = experiment.run(model_file(model), data, out, plan, progress=progress)
    output.document(asdict(result))
    output.show(_comparison_table(result.comparison))
    output.show(memory_table(result.memory, result.every))
    output.say(
        f"Accepted: {100 * result.flow_acceptance:.3g} % of the flow proposals, "
        f"{100 * result.hmc_acceptance:.3g} % of the trajectories. {result.evaluations:,} energy "
        f"evaluations, {result.seconds:,.0f} s."
    )
    output.say(f"Chains, numbers and the picture: {out}")


def _comparison_table(found: Comparison) -> Table:
    a, b, z = found.chains, found.data, found.agreement
    table = Table(
        "observable", "chains", "dynamics", "deviation",
        title=f"{a.n_frames:,} samples of {a.n_replicas} chains, {b.n_frames:,} frames of {b.n_replicas} "
        "replicas",
        caption="deviations in error bars; for several bins, their root mean square",
    )  # fmt: skip
    align_right(table)
    table.add_row("mean energy, kT", str(a.energy), str(b.energy), deviation(z.energy))
    if a.left is None or b.left is None:
        return table
    table.add_row("fraction with phi > 0", str(a.left), str(b.left), deviation(z.left))
    table.add_row(
        "F(phi>0) - F(phi<0), kT", str(a.difference), str(b.difference), deviation(found.difference)
    )
    table.add_row(f"{z.n_bins} bins of (phi, psi)", "", "", deviation(z.histogram))
    table.add_row("the worst of them", "", "", deviation(found.largest))
    table.add_row("bins, only frames with phi < 0", "", "", deviation(z.right_histogram))
    table.add_section()
    for text, variation in (
        ("total variation of the bins", found.variation),
        ("total variation, phi < 0", found.right_variation),
    ):
        table.add_row(text, f"{variation.value:.4f}", "", f"noise: {variation.expected:.4f}")
    return table
