"""``knotflow train``: a Boltzmann generator from a trajectory."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from knotflow.cli.model import BSPLINE, TransformName
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.settings import ConfigOption, kept

if TYPE_CHECKING:
    from knotflow.energies import MolecularEnergy
    from knotflow.molecules import MolecularSystem


class PresetName(StrEnum):
    """A flow and how it is trained."""

    best = "best"
    quick = "quick"
    paper = "paper"


class ZMatrixName(StrEnum):
    """What the coordinates are measured on."""

    bonds = "bonds"
    paper = "paper"


def train(
    ctx: typer.Context,
    data: Annotated[
        Path, typer.Argument(help="Trajectory (.h5) of `knotflow simulate` or `knotflow import`.")
    ],
    out: Annotated[Path, typer.Option(help="Run folder; an unfinished run is continued.")] = Path(
        "runs/train"
    ),
    preset: Annotated[
        PresetName,
        typer.Option(
            help="best: likelihood and forces, a quarter of an hour on a core for 22 atoms; quick: "
            "likelihood, minutes; paper: the flow, optimiser and schedule of Hong & Chun (AAAI 2023)."
        ),
    ] = PresetName.best,
    transform: Annotated[
        TransformName,
        typer.Option(help="Of torsions that turn; with --preset paper of all coordinates."),
    ] = BSPLINE,
    order: Annotated[int, typer.Option(min=3, help="Of B-splines; 4 is cubic: continuous forces.")] = 4,
    bins: Annotated[int | None, typer.Option(min=1, help="Bins, or components of bump.")] = None,
    forces: Annotated[
        bool | None,
        typer.Option(
            "--forces/--no-forces", help="Match forces as well; by default all presets but quick do."
        ),
    ] = None,
    reverse_kl: Annotated[
        float, typer.Option(min=0.0, help="Weight of the reverse divergence, on the energy of samples.")
    ] = 0.0,
    own_samples: Annotated[
        bool,
        typer.Option(
            "--own-samples",
            help="After a quarter of the steps, half of every batch are samples of the model, weighted by "
            "the force field: unlimited data with exact forces. Rare states may suffer.",
        ),
    ] = False,
    epochs: Annotated[
        float | None, typer.Option(min=0.0, help="Passes through the data; by default the preset's steps.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Frames in a step.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.0, help="Largest learning rate.")] = None,
    zmatrix: Annotated[
        ZMatrixName | None,
        typer.Option(help="bonds: along chemical bonds; paper: the paper's, for alanine dipeptide."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and batches.")] = 0,
    compile: Annotated[
        bool,
        typer.Option("--compile", help="For GPUs: make one graph of the loss, which takes minutes to start."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a Boltzmann generator on a trajectory.

    Replicas (of fewer than ten: stretches of time) are held back to judge by: every tenth. Progress shows the
    losses of the last step, those on frames held back, and the effective sample size (ess) of a few samples,
    as a share. The folder gets model.safetensors, which is all that `knotflow sample` and
    `knotflow evaluate` need, and train.toml with all settings, for --config; Ctrl-C is safe, the same command
    goes on.

    Examples:
        knotflow train data/ala2.h5 --out runs/ala2

        knotflow train data/ala2.h5 --out runs/quick --preset quick --epochs 5

        knotflow train --config runs/ala2/train.toml --out runs/again --seed 1
    """
    from knotflow.training.molecules import MoleculeTraining, train_generator

    choice = MoleculeTraining.parse(
        {
            "preset": preset.value,
            "transform": transform.value,
            "order": order,
            "bins": bins,
            "forces": forces,
            "reverse_kl": reverse_kl,
            "own_samples": own_samples,
            "epochs": epochs,
            "batch_size": batch,
            "learning_rate": rate,
            "zmatrix": None if zmatrix is None else zmatrix.value,
            "seed": seed,
            "compile": compile,
        }
    )
    output = Output(as_json=as_json, quiet=quiet)
    try:
        with kept(ctx, out / "train.toml"):
            train_generator(data, out, choice, energy=_energy, progress=not quiet)
    except KeyboardInterrupt:
        output.tell(f"\nStopped; the same command goes on from the last checkpoint in {out}.")
        raise typer.Exit(130) from None
    output.document(_results(out))
    output.say(
        f"{out / 'model.safetensors'} is ready: `knotflow evaluate {out} {data}`, "
        f"`knotflow sample {out} -n 1000 --out samples.h5`."
    )


def _results(folder: Path) -> dict[str, Any]:
    """What a run has made, and the last number of each kind that it noted."""
    from knotflow.flows.io import notes
    from knotflow.log_file import read_log

    model = folder / "model.safetensors"
    last = {name: value for _, name, value in read_log(folder / "log.csv")}
    return {"model": model, "seconds": notes(model)["seconds"], "last": last}


def _energy(system: MolecularSystem) -> MolecularEnergy:
    """The force field in torch or, where that does not know a force, OpenMM's."""
    from knotflow.energies.openmm_energy import OpenMMEnergy
    from knotflow.energies.torch_force_field import TorchForceField

    try:
        return TorchForceField(system, compiled=False)
    except ValueError:
        return OpenMMEnergy(system)
