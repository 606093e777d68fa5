"""Run the benchmarks: ``python -m benchmarks [WHAT] [--quick] [--compiled]``.

WHAT is speed, flow, generator, molecules, adversarial or all.

The exit status is 1 if knotflow breaks a promise that the adversarial run checks.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import adversarial, flow, generator, molecules, speed
from benchmarks.report import environment, publish

DEFAULT_OUT = Path(__file__).parent / "results"
WIDTH_OF_LOGS = 160


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    choices = ["speed", "flow", "generator", "molecules", "adversarial", "all"]
    parser.add_argument("what", nargs="?", choices=choices, default="all")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see whether all of it runs")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="adversarial: run knotflow compiled as well; flow, molecules: compile even with --quick",
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (default: 2)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="where to write (default: %(default)s)")
    return parser.parse_args(arguments)


def run_plain(name: str, options: argparse.Namespace, console: Console) -> None:
    """A benchmark that has nothing to choose."""
    module: Any = {"speed": speed, "generator": generator}[name]
    settings = module.Settings.quick() if options.quick else module.Settings()
    facts = environment()
    tables, records = module.run(settings, console)
    publish(name, tables, records, facts, options.out, console)


def run_compilable(name: str, options: argparse.Namespace, console: Console) -> None:
    """A benchmark that compiles if it is not quick, or if that is asked for."""
    module: Any = {"flow": flow, "molecules": molecules}[name]
    settings = module.Settings.quick() if options.quick else module.Settings()
    facts = environment()
    compiled = settings.compiled or options.compiled
    tables, records = module.run(replace(settings, compiled=compiled), console)
    publish(name, tables, records, facts, options.out, console)


def run_adversarial(options: argparse.Namespace, console: Console) -> bool:
    """Whether knotflow kept its promises."""
    settings = adversarial.Settings.quick() if options.quick else adversarial.Settings()
    facts = environment()
    tables, records, kept = adversarial.run(replace(settings, compiled=options.compiled), console)
    publish("adversarial", tables, records, facts, options.out, console)
    return kept


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_LOGS)
    torch.set_num_threads(options.threads)
    kept = True
    if options.what in ("adversarial", "all"):
        kept = run_adversarial(options, console)
    for name, run in (
        ("speed", run_plain),
        ("flow", run_compilable),
        ("generator", run_plain),
        ("molecules", run_compilable),
    ):
        if options.what in (name, "all"):
            run(name, options, console)
    if not kept:
        console.print("[bold red]knotflow broke a promise, see BROKEN above[/]")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
