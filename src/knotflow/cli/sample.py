"""``knotflow sample``: samples of a trained model, written to a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from knotflow.cli.model import ModelArgument
from knotflow.cli.options import Float64Option, SamplesOption, SeedOption
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, are_in, beside, keep, kept_first
from knotflow.files import remove_lock
from knotflow.inputs import made_of

if TYPE_CHECKING:
    from knotflow.workflows.sampling import Drawn


def sample(
    ctx: typer.Context,
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write. Its ending selects the format: .h5 (everything in one file that "
            "mdtraj.load reads), or .xtc, .dcd or .pdb (positions; the rest goes to a .csv file beside it)."
        ),
    ] = Path("samples.h5"),
    n: SamplesOption = 10_000,
    weights: Annotated[
        bool,
        typer.Option("--weights", help="Add energies and the logarithms of Boltzmann weights; needs OpenMM."),
    ] = False,
    seed: SeedOption = 0,
    keep_mirrored: Annotated[
        bool,
        typer.Option("--keep-mirrored", help="Keep samples with a chiral centre of the wrong handedness."),
    ] = False,
    float64: Float64Option = False,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="In K, for a model of `knotflow train --temperatures`; by default the lowest it knows.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples in memory at a time.")] = 10_000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw samples from a Boltzmann generator into a file, each with its log-density.

    The file appears when it is complete, with all settings in a .toml file beside it, for --config; the same
    command again then has nothing to do. The same seed gives the same samples for any --batch, but others
    with --float64.

    Structures with a chiral centre of the wrong handedness are left out, unless you use --keep-mirrored. The
    log-density is that of the model, log p(x). If the model draws the right handedness with probability P,
    the log-density of the remaining samples is higher by the constant -log P.

    --weights adds log W = -U(x)/kT - log p(x): averages weighted by W are averages over the Boltzmann
    distribution. Without it, neither OpenMM nor a force field is needed.

    Examples:
        knotflow sample runs/ala2 -n 100000 --out samples.h5 --weights

        knotflow sample ala2.safetensors -n 1000 --out look.pdb

        knotflow sample runs/warm --temperature 400 --out at400.h5
    """
    from knotflow.storage.samples import check_free, output_files
    from knotflow.workflows.models import model_file

    files, path = output_files(out), model_file(model)
    from knotflow.workflows.sampling import noted_samples, sample_inputs
    from knotflow.workflows.sampling import sample as draw

    output, began = Output(as_json=as_json, quiet=quiet), time.perf_counter()
    choice: dict[str, Any] = {
        "weights": weights,
        "seed": seed,
        "keep_mirrored": keep_mirrored,
        "float64": float64,
        "temperature": temperature,
    }
    inputs = sample_inputs(path, n, **choice)
    # Formats of other programs have no place for inputs: their settings were written first.
    note = f"SHA-256 of the model: {inputs['fingerprint']}"
    if not overwrite and all(file.is_file() for file in files):
        noted = (noted_samples(out) or {}) if out.suffix == ".h5" else {}
        if made_of(noted, inputs) or (out.suffix != ".h5" and are_in(ctx, beside(out), note)):
            remove_lock(out)
            keep(ctx, beside(out), note)
            counts = {key: noted.get(key) for key in ("drawn", "mirrored", "not_finite")}
            output.document({"files": files, "samples": n, **counts})
            output.say(f"{' and '.join(map(str, files))}: done already, with the same settings.")
            return
    check_free(out, overwrite=overwrite)
    with kept_first(ctx, beside(out), note), working(output, f"{out} was not written.") as progress:
        drawn = draw(path, n, out, **choice, batch=batch, overwrite=overwrite, progress=progress)
    _report(drawn, n, time.perf_counter() - began, output)


def _report(drawn: Drawn, n: int, seconds: float, output: Output) -> None:
    from knotflow.flows.sampling import MIRRORED_DATA

    sampler, effective = drawn.sampler, drawn.effective
    name, files = sampler.model.molecule["name"], " and ".join(str(path) for path in drawn.files)
    output.document(
        {
            "files": list(drawn.files),
            "molecule": name,
            "samples": n,
            "drawn": sampler.drawn,
            "mirrored": sampler.mirrored,
            "not_finite": sampler.not_finite,
            "effective_share": None if effective is None else effective.share,
            "weights_not_finite": None if effective is None else effective.not_finite,
            "seconds": seconds,
        }
    )
    say = output.say
    say(f"{n:,} samples of {name} in {seconds:.1f} s: {files}")
    if sampler.model.chirality.centres:
        fate = "kept" if sampler.keep_mirrored else "left out"
        share = f"{100 * sampler.mirrored / sampler.drawn:.2g} %"
        reason = f" {MIRRORED_DATA.capitalize()}." if sampler.mostly_mirrored else ""
        say(f"Wrong handedness: {sampler.mirrored:,} of {sampler.drawn:,} drawn ({share}), {fate}.{reason}")
    if sampler.not_finite:
        say(f"Not finite: {sampler.not_finite:,} of {sampler.drawn:,} drawn, left out; the model is damaged.")
    if effective is not None:
        say(f"Effective sample size: {100 * effective.share:.3g} % of {effective.n:,}.")
        say(f"Weights that are not finite: {effective.not_finite:,}.")
