"""``knotflow sample``: structures from a trained model."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knotflow.cli.model import ModelArgument, force_field, model_file
from knotflow.cli.options import Float64Option, SamplesOption, SeedOption
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.progress import working
from knotflow.cli.settings import ConfigOption, beside, kept

if TYPE_CHECKING:
    from knotflow.flows.sampling import Sampler
    from knotflow.progress import Progress
    from knotflow.storage.samples import SampleWriter


def sample(
    ctx: typer.Context,
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write. Its ending chooses the format: .h5 (everything in one file, which "
            "mdtraj.load reads), or .xtc, .dcd or .pdb (positions; the rest goes to a .csv file beside it)."
        ),
    ] = Path("samples.h5"),
    n: SamplesOption = 10_000,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights", help="Add energies and the logarithms of the Boltzmann weights; needs OpenMM."
        ),
    ] = False,
    seed: SeedOption = 0,
    keep_mirrored: Annotated[
        bool,
        typer.Option("--keep-mirrored", help="Keep samples with a chiral centre of the wrong handedness."),
    ] = False,
    float64: Float64Option = False,
    batch: Annotated[int, typer.Option(min=1, help="Samples in memory at a time.")] = 10_000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw samples from a Boltzmann generator into a file, each with its log-density.

    The file appears when it is complete, with all settings in a .toml file beside it, for --config. The same
    seed always gives the same samples, whatever --batch is; --float64 gives others. Structures with a chiral
    centre of the wrong handedness are left out unless you keep them. The log-density is that of the model,
    log p(x). If the model draws the right handedness with probability P, that of the remaining samples is
    higher by the constant -log P.

    --weights adds log W = -U(x)/kT - log p(x): averages weighted by W are averages over the Boltzmann
    distribution. Without it, neither OpenMM nor a force field is needed.

    Examples:
        knotflow sample runs/ala2 -n 100000 --out samples.h5 --weights

        knotflow sample ala2.safetensors -n 1000 --out look.pdb
    """
    from knotflow.storage.samples import SampleWriter, check_free

    check_free(out, overwrite=overwrite)
    path = model_file(model)
    from knotflow.flows.boltzmann import BoltzmannGenerator
    from knotflow.flows.sampling import Sampler

    generator = BoltzmannGenerator.load(path)
    sampler = Sampler(generator.double() if float64 else generator, seed, keep_mirrored=keep_mirrored)
    output, began = Output(as_json=as_json, quiet=quiet), time.perf_counter()
    with (
        kept(ctx, beside(out), resumable=False),
        working(output, f"{out} was not written.") as progress,
        SampleWriter(out, generator.molecule, weights=weights, overwrite=overwrite) as writer,
    ):
        _draw(sampler, writer, n, batch, progress)
        writer.complete(
            {
                "command": "sample",
                "model": path.name,
                "samples": n,
                "seed": seed,
                "float64": float64,
                "keep_mirrored": keep_mirrored,
                "drawn": sampler.drawn,
                "mirrored": sampler.mirrored,
                "not_finite": sampler.not_finite,
            }
        )
    _report(sampler, writer, n, time.perf_counter() - began, output)


def _draw(sampler: Sampler, writer: SampleWriter, n: int, batch: int, progress: Progress) -> None:
    """Draw, weigh and write, a batch at a time."""
    from knotflow.molecules.system import MolecularSystem

    chosen = (
        force_field(MolecularSystem.parse(sampler.model.molecule), n) if writer.weights else nullcontext()
    )
    progress("sampling", 0, n)
    began = time.perf_counter()
    with chosen as energy:
        for start in range(0, n, batch):
            x, log_prob = sampler.take(min(batch, n - start))
            # Energies in double precision: single precision would cost digits of the weights.
            writer.write(x, log_prob, None if energy is None else energy.energy_and_force(x.double())[0])
            done = start + len(x)
            progress("sampling", done, n, f"{done / (time.perf_counter() - began):,.0f} per second")


def _report(sampler: Sampler, writer: SampleWriter, n: int, seconds: float, output: Output) -> None:
    name, files = sampler.model.molecule["name"], " and ".join(str(path) for path in writer.paths)
    effective = writer.effective if writer.weights else None
    output.document(
        {
            "files": list(writer.paths),
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
        say(f"Wrong handedness: {sampler.mirrored:,} of {sampler.drawn:,} drawn ({share}), {fate}.")
    if sampler.not_finite:
        say(f"Not finite: {sampler.not_finite:,} of {sampler.drawn:,} drawn, left out; the model is damaged.")
    if effective is not None:
        say(f"Effective sample size: {100 * effective.share:.3g} % of {effective.n:,}.")
        say(f"Weights that are not finite: {effective.not_finite:,}.")
