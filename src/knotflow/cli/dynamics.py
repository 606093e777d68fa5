"""``knotflow dynamics``: does a molecule stay whole on the energy of a flow?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import TimeRemainingColumn
from rich.table import Table

from knotflow.cli.model import ModelArgument, model_file, results_folder
from knotflow.cli.output import JsonOption, Output, QuietOption
from knotflow.cli.settings import ConfigOption, kept
from knotflow.cli.stages import Bars

if TYPE_CHECKING:
    from knotflow.dynamics import DynamicsConfig, Record
    from knotflow.dynamics.integrators import State
    from knotflow.dynamics.protocol import Progress as Step
    from knotflow.molecules import MolecularSystem

FOLDER: Final = "dynamics"
"""Beside a model, for its dynamics."""
ENDINGS: Final = (".h5", ".xtc", ".dcd", ".pdb")


class CompileName(StrEnum):
    """Whether to compile the force field."""

    auto = "auto"
    on = "on"
    off = "off"


def dynamics(
    ctx: typer.Context,
    model: ModelArgument,
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Frames to start from: a trajectory of the molecule (.h5, or what MDTraj reads); by default "
            "samples of the model.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results; by default dynamics (with --true: dynamics-true) beside the model. "
            "An unfinished run is continued.",
            show_default=False,
        ),
    ] = None,
    true: Annotated[
        bool,
        typer.Option("--true", help="Move on the force field of the molecule instead, to compare with."),
    ] = False,
    replicas: Annotated[int, typer.Option(min=1, help="Molecules, each from another frame.")] = 10,
    dt: Annotated[float, typer.Option(help="Length of a step in fs.")] = 0.1,
    equilibration: Annotated[float, typer.Option(help="Picoseconds with a thermostat.")] = 5.0,
    production: Annotated[float, typer.Option(help="Picoseconds without.")] = 5.0,
    friction: Annotated[float, typer.Option(help="Of the thermostat, per ps.")] = 10.0,
    every: Annotated[int, typer.Option(min=1, help="Steps from one record to the next.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Of frames, velocities and thermostat.")] = 0,
    all_frames: Annotated[
        bool,
        typer.Option("--all-frames", help="Start from any frames of DATA, also those of the training."),
    ] = False,
    compile: Annotated[
        CompileName,
        typer.Option(
            help="With --true: compile the force field, which takes tens of seconds; auto: if that pays for "
            "so many steps."
        ),
    ] = CompileName.auto,
    trajectory: Annotated[
        Path | None,
        typer.Option(
            help="Also write the recorded positions, replicas one after another: .h5, .xtc, .dcd or .pdb.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Move molecules on the energy of a flow, at last without a thermostat, and see whether they stay whole.

    The defaults are the test of Hong & Chun (AAAI 2023), figure 4: ten frames, 5 ps of Langevin dynamics,
    then 5 ps without a thermostat. From then on the total energy must stay: its slope and its deviation are
    the drift score. If DATA is the file the model was trained on, frames that training did not see are used.

    All is in float64. The folder gets record.npz (energies and positions), drift.json, energy.png
    and dynamics.toml with all settings. Ctrl-C is safe, the same command goes on.

    Examples:
        knotflow dynamics runs/ala2 data/ala2.h5

        knotflow dynamics runs/ala2 data/ala2.h5 --true

        knotflow dynamics runs/ala2 --production 1 --trajectory move.xtc
    """
    if true and data is None:
        raise ValueError("--true starts from frames of DATA: give a trajectory of the molecule.")
    path = model_file(model)
    folder = out or results_folder(path) / (f"{FOLDER}-true" if true else FOLDER)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out must be a folder for the results, but {folder} is a file.")
    if trajectory is not None:
        _check_trajectory(trajectory, data, folder)
    from knotflow.dynamics import DynamicsConfig

    output = Output(as_json=as_json, quiet=quiet)
    plan = DynamicsConfig.parse(
        {
            "replicas": replicas,
            "dt": dt / 1000,
            "equilibration": equilibration,
            "production": production,
            "friction": friction,
            "every": every,
            "seed": seed,
        }
    )
    with kept(ctx, folder / "dynamics.toml"):
        record, system = run_protocol(
            path,
            data,
            folder,
            plan,
            true=true,
            all_frames=all_frames,
            compile=compile.value,
            console=output.progress,
        )
    if trajectory is not None:
        _write_trajectory(record, system, trajectory)
    drift = read_drift(folder)
    output.document(drift)
    output.show(table(drift))
    files = [str(folder), *([] if trajectory is None else [str(trajectory)])]
    output.say(f"All of it: {', '.join(files)}")


def _check_trajectory(path: Path, data: Path | None, folder: Path) -> None:
    """Refuse other formats, and to replace what cannot be ours."""
    from knotflow.dynamics.protocol import RECORD

    if path.suffix not in ENDINGS:
        raise ValueError(f"--trajectory must be a file ending in {', '.join(ENDINGS)}, got '{path}'.")
    ours = (folder / RECORD).exists() and (data is None or path.resolve() != data.resolve())
    if path.exists() and not ours:
        raise FileExistsError(f"{path} exists already; remove it, or choose another name.")


def run_protocol(
    model: Path,
    data: Path | None,
    folder: Path,
    config: DynamicsConfig,
    *,
    true: bool = False,
    all_frames: bool = False,
    compile: Any = "auto",
    console: Console | None = None,
) -> tuple[Record, MolecularSystem]:
    """Run, go on with, or read what is in a folder, with progress; on Ctrl-C say how to go on and exit.

    Args:
        model: A model file.
        data: Frames to start from; None: samples of the model.
        folder: For the results.
        config: How to run.
        true: Whether to move on the force field.
        all_frames: Whether to start from frames of the training, too.
        compile: Whether to compile the force field.
        console: For progress, by default standard error.
    """
    from knotflow.dynamics.protocol import CHECKPOINT, RECORD, run_in
    from knotflow.flows.io import notes
    from knotflow.report.dynamics_plots import EnergyPanel, draw_energies
    from knotflow.report.figures import new_figure, save
    from knotflow.workflows.dynamics import frames_of, on_flow, on_force_field, samples_of

    new_figure(1, 1)  # say now, not after the run, if matplotlib is missing
    setting = on_flow(model)
    if true:
        setting = on_force_field(setting.system, config.steps, compile, replicas=config.replicas)
    if data is None:
        frames: Any = samples_of(model, config.replicas, seed=config.seed)
    else:
        split = None if all_frames else notes(model).get("split")
        frames = frames_of(data, setting.system, config.replicas, seed=config.seed, split=split)
    console, finished = console or Console(stderr=True), (folder / RECORD).exists()
    if not finished:
        _announce(console, folder, setting.about, (folder / CHECKPOINT).exists())
    try:
        with Shown(console) as shown:
            progress = None if finished else shown.titled("dynamics", setting.system)
            record = run_in(
                folder,
                setting.energy,
                setting.system,
                frames,
                config,
                progress=progress,
                about=setting.about,
            )
    except KeyboardInterrupt:
        kept = "the same command goes on." if (folder / CHECKPOINT).exists() else "nothing was written."
        console.print(f"\nStopped; {kept}", highlight=False)
        raise typer.Exit(130) from None
    if finished:
        _say(console, f"{folder} holds this run already, finished.")
    title = f"{setting.system.name}, {setting.about['energy']}"
    save(draw_energies([EnergyPanel.of(title, record)]), folder / "energy.png")
    return record, setting.system


def _announce(console: Console, folder: Path, about: Mapping[str, Any], goes_on: bool) -> None:
    if goes_on:
        _say(console, f"going on with the run in {folder}")
    if about.get("compiled") == "whole":
        _say(console, "compiling the force field, which takes tens of seconds; --compile off starts at once")


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, highlight=False, soft_wrap=True, markup=False)


class Shown(Bars):
    """Shows the progress of dynamics."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            console,
            "{task.percentage:.0f}% {task.fields[state]}",
            TimeRemainingColumn(elapsed_when_finished=True),
            speed_estimate_period=60,
        )

    def titled(self, title: str, system: MolecularSystem) -> Step:
        """What to call as one more run goes on: it shows temperature and molecules that still move."""
        from knotflow.dynamics import Body

        body = Body.of(system)
        bar = self.add(f"{title}: first forces")
        first = True

        def show(done: int, steps: int, state: State) -> None:
            nonlocal first
            if first:  # the time before, of compilation, does not count
                first = False
                self.bar.reset(bar.task, total=steps, completed=done)
            moving = state.moving
            heat = body.kinetic_temperature(state.velocities)[moving]
            kelvin = f"{float(heat.mean()):.0f} K, " if len(heat) else ""
            bar.show(title, done, steps, f"{kelvin}{int(moving.sum())} of {len(moving)} whole")

        return show


def read_drift(folder: Path) -> dict[str, Any]:
    """The drift score in a folder.

    Raises:
        ValueError: if the file is damaged.
        OSError: if there is none.
    """
    from knotflow.dynamics.protocol import DRIFT

    try:
        found: dict[str, Any] = json.loads((folder / DRIFT).read_text())
        if not {"replicas", "broken", "slope", "about"} <= found.keys():
            raise ValueError("it is no drift score")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{folder / DRIFT} is damaged ({error}); remove it.") from None
    return found


def table(found: Mapping[str, Any]) -> Table:
    """The drift score, as a file ``drift.json`` has it."""
    from knotflow.report.dynamics_plots import reasons
    from knotflow.statistics.estimates import Estimate

    about = found["about"]
    config = about["config"]
    result = Table(
        "measure", "value", "unit",
        title=f"{about['molecule']} on its {about['energy']}: {config['equilibration']:g} ps with a "
        f"thermostat, {config['production']:g} ps without, steps of {1000 * config['dt']:g} fs",
        caption="per degree of freedom; ± standard errors over molecules that stay whole",
    )  # fmt: skip
    result.columns[1].justify = "right"
    result.add_row("molecules", str(found["replicas"]), "")
    result.add_row("broken", str(found["broken"]), "")
    if found["broken"]:
        result.add_row("why", escape(reasons(found["reasons"])), "")
    for name, text, unit in (
        ("slope", "slope of the total energy", "kT/ps"),
        ("deviation", "its standard deviation", "kT"),
        ("temperature", "temperature of the motion", "K"),
    ):
        result.add_row(text, str(Estimate.read(found, name, f"{name}_error")), unit)
    result.add_row("time of a step", str(Estimate.read(found, "milliseconds_per_step")), "ms")
    return result


def _write_trajectory(record: Record, system: MolecularSystem, path: Path) -> None:
    """Write positions for MDTraj and other programs; the file appears when it is complete."""
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        record.trajectory(system).save(str(part))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
