"""``knotflow exact``: exact samples of the Boltzmann distribution, with proposals from a flow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from knotflow.cli.model import ModelArgument
from knotflow.cli.options import Float64Option, SamplesOption, SeedOption, from_options
from knotflow.cli.output import JsonOption, Output, QuietOption, align_right
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, beside, keep
from knotflow.cli.state_table import state_table
from knotflow.files import remove_lock

if TYPE_CHECKING:
    from knotflow.analysis.chain_summary import ChainSummary, Memory
    from knotflow.dynamics.chain_run import ExactRun
    from knotflow.dynamics.chains import Moves

RARE = 0.01
"""Acceptance rate of flow proposals below which the flow hardly helps."""
ROUGH = 0.5
"""Acceptance rate of trajectories below which the time step is too long."""
UNSEEN = 1.1
"""Autocorrelation time, in rows, below which successive rows are independent."""

ChainsOption = Annotated[
    int, typer.Option(min=1, help="Number of chains, which run together; their spread gives the error bars.")
]
BurnInOption = Annotated[
    int, typer.Option(min=0, help="Cycles before the first sample, for chains to forget where they started.")
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
            help="The .h5 file to write, like that of `knotflow simulate`; an unfinished one is continued. "
            "With .xtc, .dcd or .pdb, positions are also written in that format at the end."
        ),
    ] = Path("exact.h5"),
    samples: SamplesOption = 10_000,
    chains: ChainsOption = 256,
    burn_in: BurnInOption = 100,
    every: EveryOption = 10,
    flow_moves: Annotated[int, typer.Option(min=0, help="Flow proposals per cycle.")] = 4,
    hmc_moves: Annotated[int, typer.Option(min=0, help="Short trajectories per cycle.")] = 1,
    md_steps: Annotated[int, typer.Option("--hmc-steps", min=1, help="Time steps per trajectory.")] = 20,
    dt: Annotated[
        float, typer.Option(help="Time step in fs; the longer, the fewer trajectories are accepted.")
    ] = 1.0,
    seed: SeedOption = 0,
    float64: Float64Option = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Sample the Boltzmann distribution exactly: Markov chains that cross barriers with the help of a flow.

    In each cycle the flow proposes structures, which are accepted or rejected by the Metropolis rule. Short
    trajectories on the force field follow, also accepted or rejected (hybrid Monte Carlo). However good or
    bad the flow is, averages are correct if the chains are long enough. The acceptance rates, autocorrelation
    times and error bars printed at the end show whether they are.

    A stopped run is continued by the same command; a larger -n extends a finished file. The file holds
    positions, forces and energies, with chains as replicas. `knotflow evaluate`, `knotflow train` and
    mdtraj.load read it like a simulation. All settings are saved in a .toml file beside it, for --config.

    Examples:
        knotflow exact runs/ala2 -n 10000

        knotflow exact runs/ala2 -n 100000 --chains 1000 --out exact.h5

        knotflow exact ala2.safetensors -n 1000 --out look.pdb
    """
    from knotflow.dynamics.chain_run import ExactPlan, open_run
    from knotflow.storage.samples import check_free, output_files
    from knotflow.workflows.models import model_file

    if not (math.isfinite(dt) and dt > 0):
        raise ValueError(f"--dt must be a positive number of femtoseconds, got {dt:g}.")
    if flow_moves + hmc_moves == 0:
        raise ValueError("a cycle needs at least one move: raise --flow-moves or --hmc-moves.")
    plan = from_options(ctx, ExactPlan, rows=math.ceil(samples / chains), time_step=dt / 1000)
    file = out.with_suffix(".h5")
    files = list(dict.fromkeys([*output_files(out), file]))
    if out != file and not file.exists():
        check_free(out)
    output = Output(as_json=as_json, quiet=quiet)
    run = open_run(file, model_file(model), plan, double=float64)
    keep(ctx, beside(out))
    _complete(run, output)
    if out != file:
        _export(run, out)
    _report(run, files, output)


def _complete(run: ExactRun, output: Output) -> None:
    """Do the rest of a run, with progress."""
    from knotflow.energies import force_field

    plan, say = run.plan, output.tell
    say(f"{run.system.name}: {plan.chains} chains, {plan.cycles:,} cycles, {plan.samples:,} samples in all")
    if run.finished:
        say(f"{run.path} is complete already; a larger -n adds to it.")
        remove_lock(run.path)
        return
    if run.cycles:
        say(f"continuing after {run.cycles:,} cycles and {run.samples:,} samples in {run.path}")
    energy = force_field(run.system, evaluations=plan.evaluations)
    with energy, working(output) as progress:
        run.run(energy, progress)


def _export(run: ExactRun, out: Path) -> None:
    """Also write positions and log-densities of all samples in another format."""
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
    if found.states:
        output.show(state_table([group.plain() for group in found.states]))
    output.show(memory_table(found.memory, run.plan.every))
    for sentence in warnings(run.moves, found):
        output.say(sentence)
    output.say(f"Samples: {' and '.join(map(str, files))}")


def _results(run: ExactRun, files: list[Path], found: ChainSummary) -> dict[str, Any]:
    """The results for scripts: energies in kT, times in cycles; null if infinite or unknown."""
    every = run.plan.every
    return {
        "files": files,
        "samples": run.samples,
        "chains": found.n_chains,
        "acceptance": {kind: moves.acceptance if moves.tried else None for kind, moves in run.moves.items()},
        "energy": found.energy,
        "side_differences": found.sides,
        "states": [group.plain() for group in found.states],
        "autocorrelation": {
            name: {"time": every * memory.time, "samples": memory.samples}
            for name, memory in found.memory.items()
        },
        "evaluations": run.evaluations,
        "seconds": run.seconds,
        "warnings": list(warnings(run.moves, found)),
    }


def memory_table(memory: dict[str, Memory], every: int) -> Table:
    """Autocorrelation times in cycles, and numbers of independent samples."""
    table = align_right(Table("observable", "autocorrelation time, cycles", "independent samples"))
    for name, found in memory.items():
        if math.isnan(found.time):
            table.add_row(name, "-", "-")
            continue
        time = f"< {every}" if every > 1 and found.time < UNSEEN else f"{every * found.time:,.3g}"
        table.add_row(name, time, f"{found.samples:,.0f}")
    return table


def warnings(moves: dict[str, Moves], found: ChainSummary) -> Iterator[str]:
    """Reasons not to trust the averages yet, one sentence each."""
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
