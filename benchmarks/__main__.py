"""Run the benchmarks: ``python -m benchmarks [WHAT] [--quick] [--compiled]``.

WHAT is adversarial, speed, flow, generator, growth, limits, memory, molecules, scale, butane, sizes, tabular,
or all of these; sizes trains for two hours. Beside them, baseline saves a few times for later, and compare
says whether they have become worse.

The exit status is 1 if knotflow breaks a promise that the adversarial run checks, or if compare finds that it
has become slower.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import (
    adversarial,
    butane,
    compare,
    flow,
    generator,
    growth,
    limits,
    memory,
    molecules,
    scale,
    sizes,
    speed,
    tabular,
)
from benchmarks.report import environment, publish

DEFAULT_OUT = Path(__file__).parent / "results"
WIDTH_OF_LOGS = 160
MODULES: dict[str, Any] = {
    "speed": speed,
    "flow": flow,
    "generator": generator,
    "growth": growth,
    "limits": limits,
    "memory": memory,
    "molecules": molecules,
    "scale": scale,
    "butane": butane,
    "sizes": sizes,
    "tabular": tabular,
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    choices = ["adversarial", *MODULES, "all", "baseline", "compare"]
    parser.add_argument("what", nargs="?", choices=choices, default="all")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see whether all of it runs")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="adversarial: run knotflow compiled as well; flow, molecules: compile even with --quick",
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (default: 2)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="where to write (default: %(default)s)")
    parser.add_argument(
        "--baseline",
        type=Path,
        default=compare.BASELINE,
        help="file of baseline and compare (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def run(name: str, options: argparse.Namespace, console: Console) -> None:
    """A benchmark that has nothing to judge; some compile unless they are quick, or if that is asked for."""
    module = MODULES[name]
    settings = module.Settings.quick() if options.quick else module.Settings()
    if hasattr(settings, "compiled"):
        settings = replace(settings, compiled=settings.compiled or options.compiled)
    facts = environment()
    tables, records = module.run(settings, console)
    publish(name, tables, records, facts, options.out, console)


def run_adversarial(options: argparse.Namespace, console: Console) -> bool:
    """Whether knotflow kept its promises."""
    settings = adversarial.Settings.quick() if options.quick else adversarial.Settings()
    facts = environment()
    tables, records, kept = adversarial.run(replace(settings, compiled=options.compiled), console)
    publish("adversarial", tables, records, facts, options.out, console)
    if not kept:
        console.print("[bold red]knotflow broke a promise, see BROKEN above[/]")
    return kept


def run_compare(options: argparse.Namespace, console: Console) -> bool:
    """Save a baseline, or say whether knotflow is as fast as one."""
    settings = compare.Settings.quick() if options.quick else compare.Settings()
    try:
        if options.what == "baseline":
            compare.save(settings, options.baseline, console)
            return True
        fast = compare.compare(settings, options.baseline, console)
    except compare.BaselineError as error:
        console.print(f"[bold red]{error}[/]")
        return False
    if not fast:
        console.print("[bold red]knotflow has become slower, see SLOWER above[/]")
    return fast


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_LOGS)
    torch.set_num_threads(options.threads)
    if options.what in ("baseline", "compare"):
        return 0 if run_compare(options, console) else 1
    kept = run_adversarial(options, console) if options.what in ("adversarial", "all") else True
    for name in MODULES:
        if options.what in (name, "all"):
            run(name, options, console)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
