"""``knotflow check``: does all of it work for a molecule, on this machine?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from knotflow.cli import molecule as options

if TYPE_CHECKING:
    from knotflow.analysis.check import Check


def check(
    what: Annotated[
        str | None, typer.Argument(help="ala2 (alanine dipeptide, the default) or a .pdb file.")
    ] = None,
    peptide: options.PeptideOption = None,
    force_field: options.ForceFieldOption = None,
    solvent: options.SolventOption = options.SolventName.obc,
    temperature: options.TemperatureOption = 300.0,
    add_hydrogens: options.AddHydrogensOption = False,
    frames: Annotated[
        int, typer.Option(min=1, help="Frames for energies and forces; coordinates get ten times as many.")
    ] = 10_000,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compiled", help="Check the compiled force field too, which takes most of a minute to compile."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
) -> None:
    """Check energies, forces and coordinates of a molecule on this machine; exit status 1 if one is wrong.

    Random frames from a short hot simulation go through everything that training and sampling use. Energies
    and forces must be those of OpenMM's double-precision platform, with a force field made anew from its
    files; positions must survive the way to internal coordinates and back.

    Examples:
        knotflow check

        knotflow check mine.pdb --add-hydrogens --temperature 310

        knotflow check --peptide GYDPETGTWG --frames 1000
    """
    _refuse(what, peptide)
    from knotflow.analysis.check import check_molecule

    console = Console()
    system = options.load_molecule(what, peptide, force_field, solvent, temperature, add_hydrogens)
    with _bar(console) as bar:
        checks = check_molecule(system, frames, seed, _Shown(bar), compiled=compiled)
    title = f"{system.name}: {system.n_atoms} atoms at {system.temperature:g} K, {frames:,} random frames"
    _print(console, title, checks)
    broken = [check.name for check in checks if not check.ok]
    if broken:
        console.print(f"[bold red]Broken promises:[/] {escape('; '.join(broken))}.", highlight=False)
        raise typer.Exit(1)
    console.print("All promises are kept.", highlight=False)


def _refuse(what: str | None, peptide: str | None) -> None:
    """Refuse what the shared options would explain in terms of options that this command does not have."""
    if what is not None and peptide is not None:
        raise ValueError(f"{what!r} and --peptide both name a molecule; give only one of them.")
    if what not in (None, "ala2") and Path(str(what)).suffix.lower() != ".pdb":
        raise ValueError(f"expected ala2 or a .pdb file to check, got {what!r}; see also --peptide.")


def _bar(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("time left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


class _Shown:
    """Draws progress, a bar for each thing that is done."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, doing: str, done: int, total: int) -> None:
        if doing not in self.tasks:
            self.tasks[doing] = self.bar.add_task(doing, total=total)
        self.bar.update(self.tasks[doing], completed=done)


def _print(console: Console, title: str, checks: list[Check]) -> None:
    table = Table(
        "check", "measured", "promise", "ok",
        title=title,
        caption="largest error of all frames; of max: as a fraction of the largest force in the same frame",
    )  # fmt: skip
    for check in checks:
        measured = "not available" if check.value is None else f"{check.value:.2g} {check.unit}"
        promise = "-" if check.limit is None else f"{check.limit:.2g} {check.unit}"
        table.add_row(check.name, measured, promise, _verdict(check))
    console.print(table)
    for note in dict.fromkeys(check.note for check in checks if check.note):
        console.print(escape(note), highlight=False, soft_wrap=True)


def _verdict(check: Check) -> str:
    if check.value is None or check.limit is None:
        return "-"
    return "[green]yes[/]" if check.ok else "[bold red]NO[/]"
