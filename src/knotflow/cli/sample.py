"""``knotflow sample``: structures from a trained model."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from knotflow.cli.model import ModelArgument, model_file
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.settings import ConfigOption, beside, kept

if TYPE_CHECKING:
    from knotflow.flows.sampling import Sampler
    from knotflow.storage.samples import SampleWriter


def sample(
    ctx: typer.Context,
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            help="The new file. Its ending chooses the format: .h5 (everything in one file, also for "
            "mdtraj.load), .xtc, .dcd or .pdb (positions; the rest goes to a .csv beside it)."
        ),
    ] = Path("samples.h5"),
    n: Annotated[int, typer.Option("-n", "--samples", min=1, help="How many samples to write.")] = 10_000,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights", help="Add energies and the logarithms of the Boltzmann weights; this needs OpenMM."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    keep_mirrored: Annotated[
        bool,
        typer.Option("--keep-mirrored", help="Keep samples that have a centre of the wrong handedness."),
    ] = False,
    float64: Annotated[bool, typer.Option("--float64", help="Compute in double precision.")] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Samples that are kept in memory and written at a time.")
    ] = 10_000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw samples from a Boltzmann generator into a file, each with its log-density.

    The file appears when it is complete, with all settings in a .toml file beside it, for --config. A seed
    stands for one sequence of samples, whose first n are written, whatever --batch is; --float64 has another.
    Structures with a centre of the wrong handedness are left out of it, unless you keep them. The log-density
    stays that of the model, log p(x): that of the samples is higher by the constant -log P, with the
    probability P of the right handedness.

    With --weights, log W = -U(x)/kT - log p(x): averages weighted by W are those of the Boltzmann
    distribution. Without, neither OpenMM nor a force field is needed.

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
    try:
        with (
            kept(ctx, beside(out), resumable=False),
            SampleWriter(out, generator.molecule, weights=weights, overwrite=overwrite) as writer,
        ):
            _draw(sampler, writer, n, batch, output.progress)
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
    except KeyboardInterrupt:
        output.tell(f"\nStopped; {out} was not written.")
        raise typer.Exit(130) from None
    _report(sampler, writer, n, time.perf_counter() - began, output)


def _draw(sampler: Sampler, writer: SampleWriter, n: int, batch: int, console: Console) -> None:
    """Draw, weigh and write, a batch at a time."""
    from knotflow.energies import force_field
    from knotflow.molecules.system import MolecularSystem

    bar = Progress(
        TextColumn("sampling"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}, time left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    molecule = sampler.model.molecule
    chosen = force_field(MolecularSystem.parse(molecule), evaluations=n) if writer.weights else nullcontext()
    began, tenths = time.perf_counter(), 0
    with chosen as energy, bar:
        task = bar.add_task("", total=n, rate="")
        for start in range(0, n, batch):
            x, log_prob = sampler.take(min(batch, n - start))
            # Energies in double precision: single precision would cost digits of the weights.
            writer.write(x, log_prob, None if energy is None else energy.energy_and_force(x.double())[0])
            done, seconds = start + len(x), time.perf_counter() - began
            rate = f"{done / seconds:,.0f} per second"
            bar.update(task, completed=done, rate=rate)
            if not console.is_terminal and 10 * done // n > tenths:
                tenths = 10 * done // n
                left = f"{seconds * (n - done) / done:.0f} s left"
                console.print(f"sampling: {10 * tenths} % done, {rate}, {left}", highlight=False)


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
