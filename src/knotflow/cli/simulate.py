"""``knotflow simulate``: molecular dynamics, written to one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from knotflow.cli import molecule as options
from knotflow.cli.options import SeedOption
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import AGAIN, working
from knotflow.cli.settings import ConfigOption, beside, keep
from knotflow.files import check_h5

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
    engine: Annotated[
        Literal["openmm", "torch"],
        typer.Option(
            help="openmm: one replica at a time on each core; torch: hundreds at once, several times faster."
        ),
    ] = "openmm",
    method: Annotated[
        Literal["langevin", "tempering"],
        typer.Option(
            help="langevin: one temperature; tempering: exchange with hotter copies, to cross barriers."
        ),
    ] = "langevin",
    nanoseconds: Annotated[
        float,
        typer.Option(
            "--ns", help="Nanoseconds of sampling at the target temperature, all replicas together."
        ),
    ] = 8.0,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Number of independent simulations; by default 8 (openmm) or 512 (torch)."),
    ] = None,
    every: Annotated[float, typer.Option(help="Picoseconds between saved frames of a replica.")] = 1.0,
    equilibration: Annotated[
        float, typer.Option(help="Picoseconds before the first saved frame of a replica.")
    ] = 20.0,
    highest: Annotated[float, typer.Option(help="Highest temperature for tempering, in kelvin.")] = 1000.0,
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

    Examples:
        knotflow simulate --out data/ala2.h5 --ns 8

        knotflow simulate --out data/ala2.h5 --engine torch --ns 500

        knotflow simulate --out data/trialanine.h5 --peptide AAA --method tempering

        knotflow simulate --out data/mine.h5 --molecule mine.pdb --add-hydrogens --temperature 310

        knotflow simulate --config data/ala2.h5.toml --ns 16
    """
    from knotflow.simulation.run import Simulation, SimulationPlan

    output = Output(as_json=as_json, quiet=quiet)
    plan = SimulationPlan.of_times(
        nanoseconds,
        every=every,
        equilibration=equilibration,
        engine=engine,
        replicas=replicas,
        method=method,
        highest_temperature=highest,
        seed=seed,
    )
    check_h5(out, "--out")
    system = options.load_molecule(molecule, peptide, force_field, solvent, temperature, add_hydrogens)
    simulation = Simulation(out, system, plan, workers)
    keep(ctx, beside(out))
    _announce(output, simulation)

    def stopped() -> str:
        return f"{simulation.state.frames * plan.replicas:,} frames are in {out}; {AGAIN}"

    with working(output, stopped) as progress:
        simulation.run(progress)
    _report(output, simulation)


def _announce(output: Output, simulation: Simulation) -> None:
    plan, system = simulation.plan, simulation.system
    kind = "ladders" if len(simulation.ladder) > 1 else "replicas"
    output.tell(
        f"{system.name}: {system.n_atoms} atoms at {system.temperature:g} K, {plan.replicas} {kind}, engine "
        f"{plan.engine}, {plan.frames * plan.replicas:,} frames in all"
    )
    if len(simulation.ladder) > 1:
        output.tell(f"temperatures of a ladder: {', '.join(f'{t:.0f}' for t in simulation.ladder)} K")
    if simulation.finished:
        output.tell(f"{simulation.path} is complete already; a larger --ns adds to it.")
    elif simulation.state.block:
        kept = simulation.state.frames * plan.replicas
        output.tell(f"continuing after {kept:,} frames in {simulation.path}")


def _report(output: Output, simulation: Simulation) -> None:
    from knotflow.simulation.summary import summarise
    from knotflow.statistics.estimates import mean

    summary, state, plan = summarise(simulation.path), simulation.state, simulation.plan
    rates = (state.accepted / state.tried).tolist()
    table = Table("measure", "value", title=f"{summary.n_frames:,} frames of {plan.replicas} replicas")
    table.add_row("mean energy, kT", str(summary.energy))
    motion = mean(state.temperatures / state.frames)
    table.add_row("temperature of the motion, K", str(motion))
    for residue, fraction in summary.left_handed.items():
        table.add_row(f"fraction with phi > 0, {residue}", str(fraction))
    if rates:
        percents = ", ".join(f"{100 * rate:.0f}" for rate in rates)
        table.add_row("accepted exchanges between neighbouring temperatures, %", percents)
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
            "exchange_rates": rates,
            "round_trips": int(state.round_trips) if rates else None,
        }
    )
    output.show(table)
    output.say(f"Frames with forces and energies: {simulation.path}")
    if plan.method == "langevin" and summary.left_handed:
        output.say(
            "Plain dynamics rarely crosses high barriers, so the share of phi > 0 still depends on the "
            "start; --method tempering corrects it."
        )
