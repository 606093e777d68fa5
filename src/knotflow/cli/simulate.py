"""``knotflow simulate``: molecular dynamics into one file."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import TimeRemainingColumn
from rich.table import Table

from knotflow.cli import molecule as options
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.settings import ConfigOption, beside, keep
from knotflow.cli.stages import Bars

if TYPE_CHECKING:
    from knotflow.simulation.run import Progress as Step
    from knotflow.simulation.run import Simulation


class Engine(StrEnum):
    """Who computes the forces."""

    openmm = "openmm"
    torch = "torch"


class Method(StrEnum):
    """How to sample."""

    langevin = "langevin"
    tempering = "tempering"


DEFAULT_REPLICAS = {Engine.openmm: 8, Engine.torch: 512}


def simulate(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="The HDF5 file; an unfinished one is continued.")] = Path(
        "data/simulation.h5"
    ),
    molecule: options.MoleculeOption = None,
    peptide: options.PeptideOption = None,
    force_field: options.ForceFieldOption = None,
    solvent: options.SolventOption = options.SolventName.obc,
    temperature: options.TemperatureOption = 300.0,
    add_hydrogens: options.AddHydrogensOption = False,
    engine: Annotated[
        Engine,
        typer.Option(
            help="openmm: a replica at a time on each core; torch: hundreds at once, several times faster."
        ),
    ] = Engine.openmm,
    method: Annotated[
        Method,
        typer.Option(
            help="langevin: at one temperature; tempering: exchange with hotter copies to cross barriers."
        ),
    ] = Method.langevin,
    nanoseconds: Annotated[
        float,
        typer.Option("--ns", help="How long to sample at the target temperature, all replicas together."),
    ] = 8.0,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Independent simulations; by default 8 (openmm) or 512 (torch).")
    ] = None,
    every: Annotated[
        float, typer.Option(help="Picoseconds from one kept frame of a replica to the next.")
    ] = 1.0,
    equilibration: Annotated[
        float, typer.Option(help="Picoseconds that each replica runs before its first frame.")
    ] = 20.0,
    highest: Annotated[float, typer.Option(help="Highest temperature of tempering, in kelvin.")] = 1000.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one for each core, one with a GPU.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Sample a molecule by molecular dynamics: positions, forces and energies into one HDF5 file.

    Replicas start from a short run at twice the temperature, so that they begin in different basins, and
    are equilibrated. Stopped or killed, the same command goes on where it was; with a larger --ns it adds
    to a finished file. The file opens in MDTraj: mdtraj.load("data/simulation.h5"). All settings go to a
    .toml file beside it, for --config.

    Examples:
        knotflow simulate --out data/ala2.h5 --ns 8

        knotflow simulate --out data/ala2.h5 --engine torch --ns 500

        knotflow simulate --out data/trialanine.h5 --peptide AAA --method tempering

        knotflow simulate --out data/mine.h5 --molecule mine.pdb --add-hydrogens --temperature 310

        knotflow simulate --config data/ala2.h5.toml --ns 16
    """
    from knotflow.simulation.engines import STEP
    from knotflow.simulation.run import Simulation, SimulationPlan

    output = Output(as_json=as_json, quiet=quiet)
    replicas = replicas or DEFAULT_REPLICAS[engine]
    interval = _steps("--every", every, STEP)
    frames = round(nanoseconds * 1000 / (interval * STEP * replicas)) if nanoseconds > 0 else 0
    if frames < 1:
        raise ValueError(
            f"--ns must give every one of {replicas} replicas at least one frame of {every:g} ps, "
            f"{replicas * every / 1000:g} ns in all, got {nanoseconds:g}; raise it, or lower --replicas."
        )
    plan = SimulationPlan.parse(
        {
            "engine": engine.value,
            "method": method.value,
            "replicas": replicas,
            "frames": frames,
            "interval": interval,
            "equilibration": _steps("--equilibration", equilibration, STEP),
            "highest_temperature": highest,
            "seed": seed,
        }
    )
    if out.suffix != ".h5":
        raise ValueError(f"--out must be a file ending in .h5, got {str(out)!r}.")
    system = options.load_molecule(molecule, peptide, force_field, solvent, temperature, add_hydrogens)
    simulation = Simulation(out, system, plan, workers)
    keep(ctx, beside(out))
    _announce(output.progress, simulation)
    try:
        with Shown(output.progress) as shown:
            simulation.run(shown.titled())
    except KeyboardInterrupt:
        kept = simulation.state.frames * replicas
        output.tell(f"\nStopped. {kept:,} frames are in {out}; the same command goes on from there.")
        raise typer.Exit(130) from None
    _report(output, simulation)


def _steps(option: str, picoseconds: float, step: float) -> int:
    steps = round(picoseconds / step) if picoseconds > 0 else 0
    if steps < 1 or abs(steps * step - picoseconds) > 1e-9 * picoseconds:
        raise ValueError(
            f"{option} must be a positive multiple of the step, {step * 1000:g} fs, got {picoseconds:g} ps."
        )
    return steps


def _announce(console: Console, simulation: Simulation) -> None:
    plan, system = simulation.plan, simulation.system
    kind = "ladders" if len(simulation.ladder) > 1 else "replicas"
    console.print(
        f"{system.name}: {system.n_atoms} atoms at {system.temperature:g} K, {plan.replicas} {kind}, engine "
        f"{plan.engine}, {plan.frames * plan.replicas:,} frames in all",
        highlight=False,
    )
    if len(simulation.ladder) > 1:
        rungs = ", ".join(f"{t:.0f}" for t in simulation.ladder)
        console.print(f"temperatures of a ladder: {rungs} K", highlight=False)
    if simulation.finished:
        console.print(f"{simulation.path} is complete already; a larger --ns adds to it.", highlight=False)
    elif simulation.state.block:
        kept = simulation.state.frames * plan.replicas
        console.print(f"going on after {kept:,} frames in {simulation.path}", highlight=False)
    elif plan.engine == "torch":
        console.print("the first block compiles the force field, which takes a minute", highlight=False)


class Shown(Bars):
    """Shows the progress of simulations."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            console,
            "{task.percentage:.0f}% {task.fields[state]}",
            TimeRemainingColumn(elapsed_when_finished=True),
            # Slow tasks: look at several of them to say how long the rest takes.
            speed_estimate_period=600,
        )

    def titled(self, title: str = "") -> Callable[[Step], None]:
        """What to call as one more simulation goes on: it shows phase, ns kept, and speed."""
        bar = self.add(f"{title} starting")
        began, first = 0.0, -1

        def show(now: Step) -> None:
            nonlocal began, first
            if first < 0:
                # Steps before the first report do not count in the speed: workers had to start for them.
                began, first = time.perf_counter(), now.steps
            state = f"{now.nanoseconds:.1f} ns kept"
            if now.steps > first:
                seconds = time.perf_counter() - began
                # A step is 1 fs.
                state += f", {(now.steps - first) * 1e-6 / seconds * 86400:,.0f} ns/day of all walkers"
            bar.show(f"{title} {now.phase}".strip(), now.steps, now.all_steps, state)

        return show


def _report(output: Output, simulation: Simulation) -> None:
    from knotflow.simulation.summary import summarise
    from knotflow.statistics.estimates import mean

    summary, state, plan = summarise(simulation.path), simulation.state, simulation.plan
    table = Table("measure", "value", title=f"{summary.n_frames:,} frames of {plan.replicas} replicas")
    table.add_row("mean energy, kT", str(summary.energy))
    motion = mean(state.temperatures / state.frames)
    table.add_row("temperature of the motion, K", str(motion))
    for residue, fraction in summary.left_handed.items():
        table.add_row(f"fraction with phi > 0, {residue}", str(fraction))
    if len(state.tried):
        rates = ", ".join(f"{100 * a / t:.0f}" for a, t in zip(state.accepted, state.tried, strict=True))
        table.add_row("accepted exchanges from rung to rung, %", rates)
        table.add_row("round trips through the ladder", f"{state.round_trips:,}")
    output.document(
        {
            "file": simulation.path,
            "molecule": simulation.system.name,
            "frames": summary.n_frames,
            "replicas": summary.n_replicas,
            "energy": summary.energy,
            "temperature": motion,
            "left_handed": summary.left_handed,
            "exchange_rates": (state.accepted / state.tried).tolist(),
            "round_trips": int(state.round_trips) if len(state.tried) else None,
        }
    )
    output.show(table)
    output.say(f"Frames with forces and energies: {simulation.path}")
    if plan.method == "langevin" and summary.left_handed:
        output.say(
            "Plain dynamics crosses high barriers rarely: phi > 0 keeps much of the weight it had at the "
            "start; --method tempering gives it its own."
        )
