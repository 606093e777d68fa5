"""``knotflow exact``: exact samples of the Boltzmann distribution with the help of a flow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from knotflow.cli.model import ModelArgument, model_file
from knotflow.cli.options import Float64Option, SamplesOption, SeedOption
from knotflow.cli.output import JsonOption, Output, QuietOption, align_right
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, beside, keep, kept

if TYPE_CHECKING:
    from knotflow.analysis.chain_summary import ChainSummary, Memory
    from knotflow.dynamics.chain_run import ExactRun
    from knotflow.dynamics.chains import Moves
    from knotflow.paper.chains_against_md import Comparison

RARE = 0.01
"""Share of accepted flow proposals below which the flow is hardly of use."""
ROUGH = 0.5
"""Share of accepted trajectories below which time steps are too long."""
UNSEEN = 1.1
"""Autocorrelation time in rows below which one row remembers nothing of the one before."""

ChainsOption = Annotated[
    int, typer.Option(min=1, help="Chains that run together; their spread gives the error bars.")
]
BurnInOption = Annotated[
    int,
    typer.Option(min=0, help="Cycles before the first sample, in which chains forget where they started."),
]
EveryOption = Annotated[
    int, typer.Option("--every", "--thin", min=1, help="Cycles between kept samples of a chain.")
]


def exact(
    ctx: typer.Context,
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write (.h5, like that of `knotflow simulate`); an unfinished one is continued. "
            "With .xtc, .dcd or .pdb, positions are also written to a file of that format at the end."
        ),
    ] = Path("exact.h5"),
    samples: SamplesOption = 10_000,
    chains: ChainsOption = 256,
    burn_in: BurnInOption = 100,
    every: EveryOption = 10,
    flow_moves: Annotated[int, typer.Option(min=0, help="Flow proposals in a cycle.")] = 4,
    hmc_moves: Annotated[int, typer.Option(min=0, help="Short trajectories in a cycle.")] = 1,
    hmc_steps: Annotated[int, typer.Option(min=1, help="Time steps in a trajectory.")] = 20,
    dt: Annotated[
        float, typer.Option(help="Time step in fs; with longer steps fewer trajectories are accepted.")
    ] = 1.0,
    seed: SeedOption = 0,
    float64: Float64Option = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Sample the Boltzmann distribution exactly, with Markov chains that the flow helps over barriers.

    In each cycle the flow proposes some structures, which are accepted or rejected by the Metropolis rule;
    some short trajectories on the force field follow, accepted or rejected as well (hybrid Monte Carlo).
    However good or bad the flow is, averages are correct if the chains are long enough. The acceptance rates,
    autocorrelation times and error bars printed at the end show whether they are.

    If the run is stopped, the same command continues it; a larger -n extends a finished file. The file holds
    positions, forces and energies, with chains as replicas. `knotflow evaluate`, `knotflow train` and
    mdtraj.load read it like a simulation. All settings are saved in a .toml file beside it, for --config.

    Examples:
        knotflow exact runs/ala2 -n 10000

        knotflow exact runs/ala2 -n 100000 --chains 1000 --out exact.h5

        knotflow exact ala2.safetensors -n 1000 --out look.pdb
    """
    from knotflow.dynamics.chain_run import ExactPlan, open_run
    from knotflow.storage.samples import check_free, output_files

    if not (math.isfinite(dt) and dt > 0):
        raise ValueError(f"--dt must be a positive number of femtoseconds, got {dt:g}.")
    if flow_moves + hmc_moves == 0:
        raise ValueError("a cycle needs at least one move: raise --flow-moves or --hmc-moves.")
    plan = ExactPlan(
        chains=chains,
        rows=math.ceil(samples / chains),
        burn_in=burn_in,
        every=every,
        flow_moves=flow_moves,
        hmc_moves=hmc_moves,
        md_steps=hmc_steps,
        time_step=dt / 1000,
        seed=seed,
    )
    files, file = output_files(out), out.with_suffix(".h5")
    if not file.exists() and len(files) > 1:
        check_free(out)
    output = Output(as_json=as_json, quiet=quiet)
    run = open_run(file, model_file(model), plan, double=float64)
    keep(ctx, beside(out))
    _go_on(run, output)
    if len(files) > 1:
        _export(run, out)
    _report(run, files if len(files) == 1 else [*files, file], output)


def _go_on(run: ExactRun, output: Output) -> None:
    """Do what is missing of a run, with progress."""
    from knotflow.energies import force_field

    plan, say = run.plan, output.tell
    say(f"{run.system.name}: {plan.chains} chains, {plan.cycles:,} cycles, {plan.samples:,} samples in all")
    if run.finished:
        say(f"{run.path} is complete already; a larger -n adds to it.")
        return
    if run.cycles:
        say(f"continuing after {run.cycles:,} cycles and {run.samples:,} samples in {run.path}")
    energy = force_field(run.system, evaluations=plan.evaluations)
    with energy, working(output) as progress:
        run.run(energy, progress)


def _export(run: ExactRun, out: Path) -> None:
    """Write positions and log-densities of all samples in another format, too."""
    import torch

    from knotflow.dynamics.flow_energy import FlowEnergy
    from knotflow.storage import trajectory
    from knotflow.storage.samples import SampleWriter

    flow = FlowEnergy(run.model)
    with SampleWriter(out, run.model.molecule, overwrite=True) as writer, torch.no_grad():
        for frames in trajectory.pieces(run.path):
            x = torch.from_numpy(frames.positions)
            writer.write(x, -flow.energy(x))
        writer.complete({})


def _report(run: ExactRun, files: list[Path], output: Output) -> None:
    from knotflow.analysis.chain_summary import summarise_chains

    found = summarise_chains(run.path)
    flow, hmc = run.moves["flow"], run.moves["hmc"]
    table = Table("measure", "value", title=f"{run.samples:,} samples of {found.n_chains} chains")
    table.add_row("accepted flow proposals", flow.percent)
    table.add_row("accepted trajectories", hmc.percent)
    table.add_row("mean energy, kT", str(found.energy))
    for residue, difference in found.sides.items():
        table.add_row(f"F(phi>0) - F(phi<0), {residue}, kT", str(difference))
    table.add_row("energy evaluations", f"{run.evaluations:,}")
    table.add_row("seconds", f"{run.seconds:,.0f}")
    output.document(_results(run, files, found))
    output.show(table)
    output.show(memory_table(found.memory, run.plan.every))
    for sentence in warnings(run.moves, found):
        output.say(sentence)
    output.say(f"Samples: {' and '.join(map(str, files))}")


def _results(run: ExactRun, files: list[Path], found: ChainSummary) -> dict[str, Any]:
    """The same for scripts: energies in kT, times in cycles; null for what is infinite or unknown."""
    every = run.plan.every
    return {
        "files": files,
        "samples": run.samples,
        "chains": found.n_chains,
        "acceptance": {kind: moves.acceptance if moves.tried else None for kind, moves in run.moves.items()},
        "energy": found.energy,
        "side_differences": found.sides,
        "autocorrelation": {
            name: {"time": every * memory.time, "samples": memory.samples}
            for name, memory in found.memory.items()
        },
        "evaluations": run.evaluations,
        "seconds": run.seconds,
        "warnings": list(warnings(run.moves, found)),
    }


def memory_table(memory: dict[str, Memory], every: int) -> Table:
    """Autocorrelation times in cycles."""
    table = align_right(Table("observable", "autocorrelation time, cycles", "independent samples"))
    for name, found in memory.items():
        if math.isnan(found.time):
            table.add_row(name, "-", "-")
            continue
        time = f"< {every}" if every > 1 and found.time < UNSEEN else f"{every * found.time:,.3g}"
        table.add_row(name, time, f"{found.samples:,.0f}")
    return table


def warnings(moves: dict[str, Moves], found: ChainSummary) -> Iterator[str]:
    """Why averages should not be trusted yet, in plain words."""
    flow, hmc = moves["flow"], moves["hmc"]
    if flow.tried and flow.acceptance < RARE:
        yield (
            f"Only {flow.percent} of the flow's proposals are accepted, so chains hardly ever cross "
            "barriers: raise --flow-moves, or train the model better."
        )
    if not flow.tried:
        yield "Without flow proposals, chains cannot cross barriers: raise --flow-moves."
    if hmc.tried and hmc.acceptance < ROUGH:
        yield f"Only {hmc.percent} of the trajectories are accepted: lower --dt."
    if found.too_short:
        yield (
            "Chains are shorter than 20 autocorrelation times of "
            f"{', '.join(found.too_short)}, so averages may still depend on the start and error bars may be "
            "too small: raise -n, or use fewer --chains or a larger --every in a new file."
        )
    for residue, difference in found.sides.items():
        if math.isinf(difference.value):
            yield f"{residue}: phi {'>' if difference.value > 0 else '<'} 0 is never visited."
    if found.n_chains == 1:
        yield "A single chain has no error bars: use several --chains."


def reproduce(
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

    If it is stopped, the same command continues.

    Example: knotflow reproduce exact runs/ala2 --data data/ala2.h5
    """
    from knotflow.dynamics.chain_run import ExactPlan
    from knotflow.paper import chains_against_md as experiment

    rows = math.ceil(samples / chains)
    plan = ExactPlan.parse({"chains": chains, "rows": rows, "burn_in": burn_in, "every": every, "seed": seed})
    output = Output(as_json=as_json, quiet=quiet)
    with kept(ctx, out / "exact.toml"), working(output) as progress:
        result = experiment.run(model_file(model), data, out, plan, progress=progress)
    output.document(asdict(result))
    output.show(_comparison_table(result.comparison))
    accepted = f"{100 * result.flow_acceptance:.3g} % of the flow proposals, "
    accepted += f"{100 * result.hmc_acceptance:.3g} % of the trajectories"
    output.show(memory_table(result.memory, result.every))
    output.say(f"Accepted: {accepted}. {result.evaluations:,} energy evaluations, {result.seconds:,.0f} s.")
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
    table.add_row("mean energy, kT", str(a.energy), str(b.energy), f"{z.energy:.2f}")
    if a.left is None or b.left is None:
        return table
    table.add_row("fraction with phi > 0", str(a.left), str(b.left), f"{z.left:.2f}")
    table.add_row("F(phi>0) - F(phi<0), kT", str(a.difference), str(b.difference), f"{found.difference:.2f}")
    table.add_row(f"{z.n_bins} bins of (phi, psi)", "", "", f"{z.histogram:.2f}")
    table.add_row("the worst of them", "", "", f"{found.largest:.2f}")
    table.add_row("bins, only frames with phi < 0", "", "", f"{z.right_histogram:.2f}")
    table.add_section()
    for text, variation in (
        ("total variation of the bins", found.variation),
        ("total variation, phi < 0", found.right_variation),
    ):
        table.add_row(text, f"{variation.value:.4f}", "", f"noise: {variation.expected:.4f}")
    return table
