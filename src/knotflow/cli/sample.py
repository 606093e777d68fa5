"""``knotflow sample``: structures from a trained model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from knotflow.cli.model import ModelArgument, model_file
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.settings import ConfigOption, beside, kept

if TYPE_CHECKING:
    from knotflow.workflows.sampling import Drawn


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
    from knotflow.storage.samples import check_free

    check_free(out, overwrite=overwrite)
    path = model_file(model)
    from knotflow.workflows.sampling import sample as draw

    output, began = Output(as_json=as_json, quiet=quiet), time.perf_counter()
    try:
        with kept(ctx, beside(out), resumable=False), _Shown(output.progress) as shown:
            drawn = draw(
                path,
                n,
                out,
                weights=weights,
                seed=seed,
                keep_mirrored=keep_mirrored,
                float64=float64,
                batch=batch,
                overwrite=overwrite,
                progress=shown,
            )
    except KeyboardInterrupt:
        output.tell(f"\nStopped; {out} was not written.")
        raise typer.Exit(130) from None
    _report(drawn, n, time.perf_counter() - began, output)


class _Shown:
    """Shows how many samples are there, how fast they come, and the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("sampling"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}, time left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=None, rate="")
        self.began, self.tenths = time.perf_counter(), 0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, doing: str, done: float, total: float, note: str = "") -> None:
        seconds = time.perf_counter() - self.began
        rate = f"{done / seconds:,.0f} per second"
        self.bar.update(self.task, completed=done, total=total, rate=rate)
        if not self.console.is_terminal and 10 * done // total > self.tenths:
            self.tenths = int(10 * done // total)
            left = f"{seconds * (total - done) / done:.0f} s left"
            self.console.print(f"{doing}: {10 * self.tenths} % done, {rate}, {left}", highlight=False)


def _report(drawn: Drawn, n: int, seconds: float, output: Output) -> None:
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
        say(f"Wrong handedness: {sampler.mirrored:,} of {sampler.drawn:,} drawn ({share}), {fate}.")
    if sampler.not_finite:
        say(f"Not finite: {sampler.not_finite:,} of {sampler.drawn:,} drawn, left out; the model is damaged.")
    if effective is not None:
        say(f"Effective sample size: {100 * effective.share:.3g} % of {effective.n:,}.")
        say(f"Weights that are not finite: {effective.not_finite:,}.")
