"""``knotflow import``: trajectories of other programs as data files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from knotflow.cli import molecule as options
from knotflow.cli.output import JsonOption, Output, QuietOption, only_results
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, beside, keep, kept_first
from knotflow.files import check_ending, remove_lock
from knotflow.inputs import same


def import_data(
    ctx: typer.Context,
    data: Annotated[
        list[Path],
        typer.Argument(
            help="Trajectories that MDTraj reads (DCD, XTC, NetCDF, PDB ...), one per replica; or .npz files "
            "with positions (nm) and, optionally, forces (kJ/mol/nm), energies (kJ/mol), time (ps) and "
            "segment numbers (one per replica)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The .h5 file to write.")],
    topology: Annotated[
        Path | None,
        typer.Option(
            help="File that names the atoms of DATA, such as a .pdb; if their order is not that of the "
            "molecule, they are put in order. By default they are assumed to be in it."
        ),
    ] = None,
    stride: Annotated[int, typer.Option(min=1, max=10**9, help="Keep every Nth frame of each replica.")] = 1,
    molecule: options.MoleculeOption = None,
    peptide: options.PeptideOption = None,
    force_field: options.ForceFieldOption = None,
    solvent: options.SolventOption = "obc",
    temperature: options.TemperatureOption = 300.0,
    add_hydrogens: options.AddHydrogensOption = False,
    energy: options.EnergyOption = "force-field",
    charge: options.ChargeOption = None,
    multiplicity: options.MultiplicityOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Convert trajectories of other programs to a data file; missing energies and forces are computed.

    All frames are checked. Atoms in another order are matched by residue and name, or else by their bonds.
    Hydrogens on the same atom are labelled as in the molecule's structure, and frames with a chiral centre of
    the other handedness are set aside. Rounded positions and bonds of constant length (constraints) are
    reported. A line says how many frames, atoms or bonds each concerns. All settings are saved in a .toml
    file beside the new file, for --config.

    Examples:
        knotflow import run.dcd --topology run.pdb --out data.h5

        knotflow import frames.npz --out data.h5 --peptide AAA --temperature 310
    """
    from knotflow.energies.choose import force_field as energy_of
    from knotflow.simulation.summary import summarise
    from knotflow.storage.importing import convert, import_inputs, noted_inputs, total_frames

    check_ending(out, "--out")
    for path in data:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}.")
    system = options.chosen_molecule(ctx, molecule)
    output = Output(as_json=as_json, quiet=quiet)
    inputs = import_inputs(data, system, topology, stride)
    if out.exists():
        if not same(noted_inputs(out), inputs):
            raise FileExistsError(f"{out} exists already; remove it or choose another name.")
        remove_lock(out)
        keep(ctx, beside(out))
        found = summarise(out)
        output.document({"file": out, "molecule": system.name, "frames": found.n_frames})
        output.say(
            f"{out}: done already, with the same settings; {found.n_frames:,} frames of {system.name}."
        )
        return
    with (
        only_results(),
        kept_first(ctx, beside(out)),
        energy_of(system, evaluations=0) as computed,
        working(output, f"{out} was not written.") as progress,
    ):
        total = total_frames(data) or 0
        imported = convert(
            data,
            system,
            computed,
            out,
            topology=topology,
            stride=stride,
            provenance={"command": "import", "inputs": inputs},
            progress=lambda n_read: progress("importing", n_read, total, f"{n_read:,} frames"),
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
            "relabelled": imported.intake.exchanged,
            "mirrored": imported.intake.mirrored,
            "reordered": imported.remarks.moved,
            "constrained_bonds": len(imported.remarks.constrained),
            "rounding": imported.remarks.rounding,
        }
    )
    output.say(
        f"{summary.n_frames:,} frames of {system.name} in {replicas}, mean energy {summary.energy} kT: {out}"
    )
