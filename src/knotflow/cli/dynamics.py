"""``knotflow dynamics``: molecular dynamics on the energy of a flow, and its drift score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from knotflow.cli.model import ModelArgument
from knotflow.cli.options import AllFramesOption, CompileOption, SeedOption, from_options
from knotflow.cli.output import JsonOption, Output, QuietOption, align_right
from knotflow.cli.progress import AGAIN, working
from knotflow.cli.settings import ConfigOption, kept

if TYPE_CHECKING:
    from knotflow.dynamics import DynamicsConfig, Record
    from knotflow.molecules import MolecularSystem
    from knotflow.workflows.dynamics import Compile

FOLDER: Final = "dynamics"
"""Name of the folder for the results, beside the model."""
ENDINGS: Final = (".h5", ".xtc", ".dcd", ".pdb")


def dynamics(
    ctx: typer.Context,
    model: ModelArgument,
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Trajectory with frames to start from (.h5, or any format MDTraj reads); by default, "
            "molecules start from samples of the model."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results; by default dynamics (with --true, dynamics-true) beside the model. "
            "An unfinished run is continued."
        ),
    ] = None,
    true: Annotated[
        bool,
        typer.Option("--true", help="Use the molecule's own energy instead of the flow, for comparison."),
    ] = False,
    replicas: Annotated[
        int, typer.Option(min=1, help="Number of molecules; each starts from a different frame.")
    ] = 10,
    dt: Annotated[float, typer.Option(help="Time step in fs.")] = 0.1,
    equilibration: Annotated[
        float, typer.Option(help="Duration of the first part, with a thermostat, in ps.")
    ] = 5.0,
    production: Annotated[
        float, typer.Option(help="Duration of the second part, without a thermostat, in ps.")
    ] = 5.0,
    friction: Annotated[float, typer.Option(help="Friction of the thermostat, per ps.")] = 10.0,
    every: Annotated[int, typer.Option(min=1, help="Steps between records.")] = 50,
    seed: SeedOption = 0,
    all_frames: AllFramesOption = False,
    compile: CompileOption = "auto",
    trajectory: Annotated[
        Path | None,
        typer.Option(
            help="Also write the recorded positions to this file (.h5, .xtc, .dcd or .pdb), one replica "
            "after another."
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run molecular dynamics on the energy of a flow, to see whether molecules stay whole.

    The defaults are the test of Hong & Chun (AAAI 2023), figure 4: ten molecules, 5 ps of Langevin dynamics,
    then 5 ps without a thermostat. In the second part the total energy should be constant; its slope and its
    standard deviation are the drift score. If DATA is the file the model was trained on, molecules start from
    frames that were held out.

    Everything is computed in float64. The folder gets record.npz (energies and positions), drift.json,
    energy.png and dynamics.toml with all settings. You can stop with Ctrl-C; the same command continues.

    Examples:
        knotflow dynamics runs/ala2 data/ala2.h5

        knotflow dynamics runs/ala2 data/ala2.h5 --true

        knotflow dynamics runs/ala2 --production 1 --trajectory move.xtc
    """
    from knotflow.workflows.models import model_file, results_folder

    if true and data is None:
        raise ValueError("--true needs frames to start from: give a trajectory of the molecule as DATA.")
    path = model_file(model)
    folder = out or results_folder(path) / (f"{FOLDER}-true" if true else FOLDER)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out must be a folder for the results, but {folder} is a file.")
    if trajectory is not None:
        _check_trajectory(trajectory, data, folder)
    from knotflow.dynamics import DynamicsConfig

    output = Output(as_json=as_json, quiet=quiet)
    plan = from_options(ctx, DynamicsConfig, dt=dt / 1000)
    with kept(ctx, folder / "dynamics.toml"):
        record, system = run_protocol(
            path, data, folder, plan, true=true, all_frames=all_frames, compile=compile, output=output
        )
    if trajectory is not None:
        _write_trajectory(record, system, trajectory)
    drift = read_drift(folder)
    output.document(drift)
    output.show(table(drift))
    output.say(f"Results: {', '.join(str(path) for path in (folder, trajectory) if path is not None)}")


def _check_trajectory(path: Path, data: Path | None, folder: Path) -> None:
    """Refuse other formats, and existing files unless an earlier call of this run wrote them."""
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
    compile: Compile = "auto",
    output: Output,
) -> tuple[Record, MolecularSystem]:
    """Run the dynamics, continue it, or read it if it is finished; with progress, and a picture at the end.

    The arguments are those of `DynamicsRun`; ``output`` is where progress is shown.
    """
    from knotflow.report.dynamics_plots import EnergyPanel, draw_energies
    from knotflow.report.figures import new_figure, save
    from knotflow.workflows.dynamics import DynamicsRun

    new_figure(1, 1)  # if matplotlib is missing, say so before the run
    run = DynamicsRun(model, data, folder, config, true=true, all_frames=all_frames, compile=compile)
    if run.finished:
        output.tell(f"{folder} holds this run already; it is finished.")
    elif run.begun:
        output.tell(f"continuing the run in {folder}")
    if run.compiles and not run.finished:
        output.tell("compiling the force field, which takes tens of seconds; --compile off starts at once")
    with working(output, lambda: AGAIN if run.begun else "nothing was written.") as progress:
        record = run.run(progress)
    title = f"{run.system.name}, {run.setting.about['energy']}"
    save(draw_energies([EnergyPanel.of(title, record)]), folder / "energy.png")
    return record, run.system


def read_drift(folder: Path) -> dict[str, Any]:
    """The drift score in a folder of results.

    Raises:
        ValueError: if the file is damaged.
        OSError: if there is none.
    """
    from knotflow.dynamics.protocol import DRIFT
    from knotflow.files import read_json

    found = read_json(folder / DRIFT, "replicas", "broken", "slope", "about")
    about = found["about"]
    if not (isinstance(about, dict) and isinstance(about.get("config"), dict)):
        raise ValueError(f"{folder / DRIFT} is damaged (it is not a drift score); remove it.")
    return found


def table(found: Mapping[str, Any]) -> Table:
    """The drift score of a file ``drift.json``."""
    from knotflow.report.dynamics_plots import reasons
    from knotflow.statistics.estimates import Estimate

    about = found["about"]
    config = about["config"]
    result = Table(
        "measure", "value", "unit",
        title=f"{about['molecule']} on its {about['energy']}: {config['equilibration']:g} ps with a "
        f"thermostat, {config['production']:g} ps without, steps of {1000 * config['dt']:g} fs",
        caption="per degree of freedom; ± standard errors over the molecules that stayed whole",
    )  # fmt: skip
    align_right(result, slice(1, 2))
    result.add_row("molecules", str(found["replicas"]), "")
    result.add_row("broken", str(found["broken"]), "")
    if found["broken"]:
        result.add_row("why", reasons(found["reasons"]), "")
    for name, text, unit in (
        ("slope", "slope of the total energy", "kT/ps"),
        ("deviation", "its standard deviation", "kT"),
        ("temperature", "temperature of the motion", "K"),
    ):
        result.add_row(text, str(Estimate.read(found, name, f"{name}_error")), unit)
    result.add_row("time of a step", str(Estimate.read(found, "milliseconds_per_step")), "ms")
    return result


def _write_trajectory(record: Record, system: MolecularSystem, path: Path) -> None:
    """Write positions in a format of MDTraj; the file appears when it is complete."""
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        record.trajectory(system).save(str(part))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
