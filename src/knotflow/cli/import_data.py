"""``knotflow import``: trajectories of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from knotflow.cli.molecule import (
    AddHydrogensOption,
    ForceFieldOption,
    MoleculeOption,
    PeptideOption,
    SolventName,
    SolventOption,
    TemperatureOption,
    load_molecule,
)
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.settings import ConfigOption, beside, kept


def import_data(
    ctx: typer.Context,
    data: Annotated[
        list[Path],
        typer.Argument(
            help="Trajectories that mdtraj reads (DCD, XTC, NetCDF, PDB ...), each a replica, or .npz files "
            "with positions (nm), and perhaps forces (kJ/mol/nm), energies (kJ/mol), time (ps) and segment "
            "numbers (each a replica)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The new file; ends in .h5.")],
    topology: Annotated[
        Path | None,
        typer.Option(
            help="File that names the atoms of DATA, such as a .pdb, to compare them with the molecule; by "
            "default, they are taken to be in its order."
        ),
    ] = None,
    stride: Annotated[int, typer.Option(min=1, help="Keep every so many frames of each replica.")] = 1,
    molecule: MoleculeOption = None,
    peptide: PeptideOption = None,
    force_field: ForceFieldOption = None,
    solvent: SolventOption = SolventName.obc,
    temperature: TemperatureOption = 300.0,
    add_hydrogens: AddHydrogensOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make a data file of trajectories that exist: frames are checked, energies and forces completed.

    All settings go to a .toml file beside it, for --config.

    Examples:
        knotflow import run.dcd --topology run.pdb --out data.h5

        knotflow import frames.npz --out data.h5 --peptide AAA --temperature 310
    """
    from knotflow.energies.openmm_energy import OpenMMEnergy
    from knotflow.simulation.summary import summarise
    from knotflow.storage.importing import convert, total_frames

    if out.suffix != ".h5":
        raise ValueError(f"--out must be a file ending in .h5, got '{out}'.")
    if out.exists():
        raise FileExistsError(f"{out} exists already; remove it or choose another name.")
    for path in data:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}.")
    system = load_molecule(molecule, peptide, force_field, solvent, temperature, add_hydrogens)
    output = Output(as_json=as_json, quiet=quiet)
    bar = Progress(
        TextColumn("importing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("frames, time left"),
        TimeRemainingColumn(),
        console=output.progress,
        transient=True,
        disable=not output.progress.is_terminal,
    )
    with kept(ctx, beside(out), resumable=False), OpenMMEnergy(system) as energy, bar:
        task = bar.add_task("", total=total_frames(data))
        convert(
            data,
            system,
            energy,
            out,
            topology=topology,
            stride=stride,
            provenance={"command": "import"},
            progress=lambda n_read: bar.update(task, completed=n_read),
        )
    summary = summarise(out)
    replicas = "1 replica" if summary.n_replicas == 1 else f"{summary.n_replicas} replicas"
    output.document(
        {
            "file": out,
            "molecule": system.name,
            "frames": summary.n_frames,
            "replicas": summary.n_replicas,
            "energy": summary.energy,
        }
    )
    output.say(
        f"{summary.n_frames:,} frames of {system.name} in {replicas}, mean energy {summary.energy} kT: {out}"
    )
