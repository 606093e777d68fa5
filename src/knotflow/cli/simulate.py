"""``knotflow simulate``: molecular dynamics, written to one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from knotflow.cli import molecule as options
from knotflow.cli.options import SeedOption
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import AGAIN, duration, working
from knotflow.cli.settings import ConfigOption, beside, keep
from knotflow.files import check_ending

if TYPE_CHECKING:
    from knotflow.simulation.run import Simulation


def simulate(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="The HDF5 file to write; an unfinished one is continued.")] = Path(
        "data/simulation.h5"
    ),
    molecule: options.MoleculeOption = None,
    peptide: options.PeptideOption = None,
    force_field: options.ForceFieldOption = None,
    solvent: options.SolventOption = "obc",
    temperature: options.TemperatureOption = 300.0,
    add_hydrogens: options.AddHydrogensOption = False,
    energy: options.EnergyOption = "force-field",
    charge: options.ChargeOption = None,
    multiplicity: options.MultiplicityOption = None,
    engine: Annotated[
        Literal["openmm", "torch"] | None,
        typer.Option(
            help="For a force field: openmm, one replica at a time on each core, the default; or torch, "
            "hundreds at once, several times faster. Other energies have an engine of their own."
        ),
    ] = None,
    method: Annotated[
        Literal["langevin", "tempering"],
        typer.Option(
            help="langevin: one temperature; tempering: exchange with hotter copies, to cross barriers."
        ),
    ] = "langevin",
    nanoseconds: Annotated[
        float,
        typer.Option(
            "--ns",
            help="Nanoseconds at the target temperature, all replicas together; with tempering, every other "
            "temperature runs as long, in addition.",
        ),
    ] = 8.0,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of independent simulations, or ladders; by default 8, or 512 with torch; with "
            "tempering 8, or with torch one per 0.5 ns, from 8 up to the number that moves at once.",
        ),
    ] = None,
    every: Annotated[float, typer.Option(help="Picoseconds between saved frames of a replica.")] = 1.0,
    equilibration: Annotated[
        float, typer.Option(help="Picoseconds before the first saved frame of a replica.")
    ] = 20.0,
    highest: Annotated[float, typer.Option(help="Highest temperature for tempering, in kelvin.")] = 1000.0,
    rungs: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Temperatures of a ladder; by default so many that neighbours exchange in about half of the "
            "attempts: 8 for 22 atoms, 11 for 42. Fewer cost less and exchange less.",
        ),
    ] = None,
    seed: SeedOption = 0,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of processes; by default one per core, or one if there is a GPU."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Simulate a molecule and write positions, forces and energies to one HDF5 file.

    Replicas first run for a short time at twice the temperature, to spread over different basins, and are
    then equilibrated. A stopped run is continued by the same command; a larger --ns extends a finished file.
    MDTraj reads the file: mdtraj.load("data/simulation.h5"). All settings are saved in a .toml file beside
    it, for --config.

    With --method tempering, each replica is a ladder of walkers, one at each temperature up to --highest.
    --ns counts the time at the target temperature, whose frames go to NAME.h5; every other temperature is
    simulated as long, so a ladder of 8 costs 8 times as much. Their frames go to NAME.ladder.h5, one per
    frame of NAME.h5 but at most ten per ps: with 8 temperatures, it grows to seven times the size of NAME.h5,
    or less with a larger --every. The command says all of this in numbers before it starts.

    Examples:
        knotflow simulate --out data/ala2.h5 --ns 8

        knotflow simulate --out data/ala2.h5 --engine torch --ns 500

        knotflow simulate --out data/trialanine.h5 --peptide AAA --method tempering

        knotflow simulate --out data/mine.h5 --molecule mine.pdb --add-hydrogens --temperature 310

        knotflow simulate --out data/ala2-xtb.h5 --energy xtb --ns 0.05

        knotflow simulate --config data/ala2.h5.toml --ns 16
    """
    from knotflow.simulation.run import Simulation

    output = Output(as_json=as_json, quiet=quiet)
    check_ending(out, "--out")
    system = options.chosen_molecule(ctx, molecule)
    simulation = Simulation.planned(
        out,
        system,
        nanoseconds,
        workers=workers,
        every=every,
        equilibration=equilibration,
        engine=engine,
        replicas=replicas,
        method=method,
        highest_temperature=highest,
        rungs=rungs,
        seed=seed,
    )
    keep(ctx, beside(out))
    expected = None if simulation.finished else simulation.seconds_per_step
    _announce(output, simulation, expected)

    def stopped() -> str:
        return f"{simulation.state.frames * simulation.plan.replicas:,} frames are in {out}; {AGAIN}"

    with working(output, stopped, expected=expected) as progress:
        simulation.run(progress)
    _report(output, simulation)


def _announce(output: Output, simulation: Simulation, expected: float | None) -> None:
    """Say what will be simulated and what it will cost; ``expected`` are seconds per step, if known."""
    plan, system, ladder = simulation.plan, simulation.system, simulation.ladder
    kept = plan.frames * plan.replicas
    is_ladder = len(ladder) > 1
    output.tell(
        f"{system.name}: {system.n_atoms} atoms at {system.temperature:g} K, {plan.replicas} "
        f"{'ladders' if is_ladder else 'replicas'}, engine {plan.engine}, {kept:,} frames in all"
    )
    if is_ladder:
        output.tell(f"temperatures of a ladder: {', '.join(f'{t:.0f}' for t in ladder)} K")
    if simulation.finished:
        output.tell(f"{simulation.path} is complete already; a larger --ns adds to it.")
        return
    if simulation.state.block:
        before = simulation.state.frames * plan.replicas
        output.tell(f"continuing after {before:,} frames in {simulation.path}")
    if is_ladder and not simulation.ladder_every:
        output.tell(
            f"{simulation.path} was begun by an earlier version, so only frames at {system.temperature:g} K "
            "are kept; choose another --out to keep those of all temperatures."
        )
    output.tell(_cost(simulation, expected))


def _cost(simulation: Simulation, expected: float | None) -> str:
    """Walkers, simulated time, hours and disk space of what is left, in a sentence."""
    from knotflow.simulation.engines import STEP

    left = simulation.steps - simulation.steps_done
    cold, hot = simulation.bytes_of_frames
    words = f"{simulation.walkers:,} walkers, {_short(left * STEP / 1000)} ns of all of them together"
    if expected is not None:
        words += f", roughly {duration(left * expected)} if the machine is idle"
    words += f"; on disk at the end: {_size(cold)} in {simulation.path.name}"
    if hot:
        hotter = simulation.ladder[1:]
        words += (
            f", {_size(hot)} in {simulation.ladder_path.name} (frames at {hotter[0]:.0f} to "
            f"{hotter[-1]:.0f} K every {simulation.ladder_every * simulation.plan.interval * STEP:g} ps)"
        )
    return words


def _size(n_bytes: int) -> str:
    if n_bytes < 1e6:
        return "less than 1 MB"
    return f"{_short(n_bytes / 1e9)} GB" if n_bytes >= 1e9 else f"{_short(n_bytes / 1e6)} MB"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _report(output: Output, simulation: Simulation) -> None:
    from knotflow.simulation.summary import summarise
    from knotflow.statistics.estimates import mean

    summary, state, plan = summarise(simulation.path), simulation.state, simulation.plan
    exchanges, ladder = state.exchanges, simulation.ladder
    rates = exchanges.rates.tolist()
    table = Table("measure", "value", title=f"{summary.n_frames:,} frames of {plan.replicas} replicas")
    table.add_row("mean energy, kT", str(summary.energy))
    motion = mean(state.temperatures / state.frames)
    table.add_row("temperature of the motion, K", str(motion))
    for residue, fraction in summary.left_handed.items():
        table.add_row(f"fraction with phi > 0, {residue}", str(fraction))
    if rates:
        percents = ", ".join(f"{100 * rate:.0f}" for rate in rates)
        table.add_row("accepted exchanges between neighbouring temperatures, %", percents)
        table.add_row(
            "their mean and least, %", f"{100 * sum(rates) / len(rates):.0f}, {100 * min(rates):.0f}"
        )
        table.add_row("round trips through the ladder", f"{state.round_trips:,}")
    output.document(
        {
            "file": simulation.path,
            "ladder_file": simulation.ladder_path if simulation.ladder_every else None,
            "ladder": ladder if rates else None,
            "molecule": simulation.system.name,
            "frames": summary.n_frames,
            "replicas": summary.n_replicas,
            "energy": summary.energy,
            "temperature": motion,
            "left_handed": summary.left_handed,
            "exchange_rates": rates,
            "round_trips": int(state.round_trips) if rates else None,
        }
    )
    output.show(table)
    output.say(f"Frames with forces and energies: {simulation.path}")
    if simulation.ladder_every:
        output.say(f"Frames above {ladder[0]:g} K: {simulation.ladder_path}")
    if (warning := exchanges.warning(ladder)) is not None:
        output.say(warning)
    if plan.method == "langevin" and summary.left_handed:
        output.say(
            "Plain dynamics rarely crosses high barriers, so the share of phi > 0 still depends on the "
            "start; --method tempering corrects it."
        )
