"""``knotflow train``: training of a Boltzmann generator on a trajectory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from knotflow.cli.model import TransformName
from knotflow.cli.options import SeedOption, from_options
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, kept


def train(
    ctx: typer.Context,
    data: Annotated[
        Path, typer.Argument(help="Trajectory (.h5) from `knotflow simulate` or `knotflow import`.")
    ],
    out: Annotated[Path, typer.Option(help="Run folder; an unfinished run is continued.")] = Path(
        "runs/train"
    ),
    preset: Annotated[
        Literal["best", "quick", "paper"],
        typer.Option(
            help="best: likelihood and forces, then refinement with the energy, which takes the longest; "
            "quick: likelihood only, minutes; paper: the flow, optimiser and schedule of Hong & Chun (AAAI "
            "2023)."
        ),
    ] = "best",
    transform: Annotated[
        TransformName,
        typer.Option(help="Transform of freely rotating torsions; with --preset paper, of all coordinates."),
    ] = "bspline",
    order: Annotated[
        int, typer.Option(min=3, help="Order of B-splines; 4 is cubic, with continuous forces.")
    ] = 4,
    bins: Annotated[
        int | None, typer.Option(min=1, help="Number of bins, or of components for --transform bump.")
    ] = None,
    forces: Annotated[
        bool | None,
        typer.Option(
            "--forces/--no-forces", help="Also train on forces; by default with all presets except quick."
        ),
    ] = None,
    reverse_kl: Annotated[
        float,
        typer.Option(min=0.0, help="Weight of the reverse KL divergence, which uses energies of samples."),
    ] = 0.0,
    refine: Annotated[
        bool | None,
        typer.Option(
            "--refine/--no-refine",
            help="Afterwards go on with hundreds of thousands of points that the model draws and the force "
            "field judges; stops by itself. By default with the preset best.",
        ),
    ] = None,
    temperatures: Annotated[
        bool | None,
        typer.Option(
            "--temperatures/--target-only",
            help="Train one model of all temperatures of a tempering run, on DATA and on the .ladder.h5 file "
            "beside it: hot frames teach the cold model. By default with the preset best, if there is such a "
            "file. Refined, the model is of the target temperature; temperatures.safetensors has all.",
        ),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(min=0.0, help="Passes through the data; by default set by the preset.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch", min=1, help="Frames per step.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--rate", min=0.0, help="Largest learning rate.")
    ] = None,
    zmatrix: Annotated[
        Literal["bonds", "paper"] | None,
        typer.Option(
            help="Internal coordinates. bonds: along chemical bonds; paper: those of the paper, for alanine "
            "dipeptide."
        ),
    ] = None,
    seed: SeedOption = 0,
    compile: Annotated[
        bool, typer.Option("--compile", help="For GPUs: compile the loss; takes minutes at the start.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a Boltzmann generator on a trajectory.

    A tenth of the data is held out for validation: every tenth replica or, with fewer than ten replicas, some
    stretches of each. Hydrogens on the same atom are labelled as in the molecule's structure, and mirror
    images are set aside; a line says in how many frames. Progress shows the losses of the last step, the
    losses on validation data, and the effective sample size (ess) of a few samples, as a fraction. The
    preset best then refines the model, in cycles; the files of each are in refinement/. The run folder gets
    model.safetensors, all that `knotflow sample` and `knotflow evaluate` need, and train.toml with all
    settings, for --config. You can stop with Ctrl-C; the same command continues.

    Examples:
        knotflow train data/ala2.h5 --out runs/ala2

        knotflow train data/ala2.h5 --out runs/quick --preset quick --epochs 5

        knotflow train data/warm.h5 --out runs/warm --temperatures

        knotflow train --config runs/ala2/train.toml --out runs/again --seed 1
    """
    from knotflow.energies import force_field
    from knotflow.training.molecules import MoleculeTraining, train_generator

    choice = from_options(ctx, MoleculeTraining)
    output = Output(as_json=as_json, quiet=quiet)
    with kept(ctx, out / "train.toml"), working(output) as progress:
        train_generator(data, out, choice, energy=force_field, progress=progress)
    output.document(_results(out))
    output.say(
        f"{out / 'model.safetensors'} is ready: `knotflow evaluate {out} {data}`, "
        f"`knotflow sample {out} -n 1000 --out samples.h5`."
    )


def _results(folder: Path) -> dict[str, Any]:
    """The model of a run, the last value of each quantity in its log, and figures of the refinement."""
    from knotflow.flows.io import notes
    from knotflow.log_file import read_log

    model = folder / "model.safetensors"
    last = {name: value for _, name, value in read_log(folder / "log.csv")}
    found = notes(model)
    refined = {"refinement": found["refinement"]} if "refinement" in found else {}
    return {"model": model, "seconds": found["seconds"], "last": last, **refined}
