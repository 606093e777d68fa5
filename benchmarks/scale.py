"""Two processes of torchrun, with one thread each, against one process with one thread, for each command.

Both do the same work, in a launch each, after a small run of every command that imports and fills caches; the
shortest of some repeats counts. A training sees as many points, in batches of 192 for each process (*train*),
or in batches of 96 that all processes share, the preset's (*train, one batch*): there, each process has fewer
points a step, but as much to do beside them. *Speed-up* is the ratio of the two times. *By processor time* is
the ratio of the processor time of one to that of the busier of two, which other work on the machine hardly
changes: what the speed-up would be on an idle machine if nobody waited for anybody.

The second table has the costs from which docs/tutorials/cluster.md computes what many hosts would give:
a step of the training, the sum of its gradients over two processes on this machine, and what only rank 0
can do with samples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.report import Table

COMMANDS = ("simulate", "train", "train, one batch", "sample", "exact", "evaluate")
BATCH = 192
PIECE = 10_000
"""Samples that are gathered and written at a time."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    ns: float = 0.08
    epochs: float = 40
    samples: int = 200_000
    rows: int = 8
    evaluated: int = 50_000
    repeats: int = 2

    @classmethod
    def quick(cls) -> Settings:
        return cls(ns=0.0104, epochs=1, samples=2_000, rows=1, evaluated=100, repeats=1)


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """Both tables, and a record of each."""
    found = {n: launched(n, settings, console) for n in (1, 2)}
    rows = []
    for name in COMMANDS:
        one, two = (found[n]["seconds"][name] for n in (1, 2))
        alone, busier = (found[n]["processor"][name] for n in (1, 2))
        rows.append([name, f"{one:.2f}", f"{two:.2f}", f"{one / two:.2f}", f"{alone / busier:.2f}"])
    costs = found[2]["costs"]
    columns = ["command", "one, s", "two, s", "speed-up", "by processor time"]
    about = f"{settings.samples:,} samples, {settings.evaluated:,} evaluated, {settings.epochs:g} epochs"
    tables = [
        Table("Two processes against one", columns, rows, [about]),
        Table("Costs", ["what", "value"], [[what, f"{value:,.4g}"] for what, value in costs.items()]),
    ]
    return tables, [{"processes": n, **asdict(settings), **found[n]} for n in (1, 2)]


def launched(processes: int, settings: Settings, console: Console) -> dict[str, Any]:
    """The results of so many processes, of one thread and, if the machine has enough, a core each."""
    console.print(f"scale: {processes} processes")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "-m", "benchmarks.scale", json.dumps(asdict(settings))]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# The rest runs in the processes.


def arguments(settings: Settings, number: int, processes: int = 1) -> dict[str, list[str]]:
    """The arguments of each command, with names of files that were not used before."""
    out = f"{number}"
    training = ["data.h5", "--preset", "best", "--no-refine", "--target-only", f"--epochs={settings.epochs}"]
    simulated = ["--every", "0.1", "--equilibration", "0.1"]
    return {
        "simulate": [f"--ns={settings.ns}", "--out", f"sim{out}.h5", *simulated],
        "train": [*training, "--out", f"run{out}", f"--batch={BATCH * processes}"],
        "train, one batch": [*training, "--out", f"same{out}"],
        "sample": ["ala2", f"--samples={settings.samples}", "--weights", "--out", f"sample{out}.h5"],
        "exact": [
            *("ala2", f"--samples={256 * settings.rows}", "--burn-in", "1", "--every", "2"),
            *("--out", f"exact{out}.h5"),
        ],
        "evaluate": ["ala2", "data.h5", f"--samples={settings.evaluated}", "--out", f"metrics{out}.json"],
    }


def used() -> list[float]:
    """Processor time of every rank so far, with that of its workers."""
    from knotflow import ranks

    return ranks.spread(lambda rank: sum(os.times()[:4]), range(ranks.size()))


def used_by_all() -> list[float]:
    from knotflow import ranks

    with ranks.together("benchmarks.scale:used"):
        return used()


def timed(settings: Settings) -> dict[str, dict[str, float]]:
    """The shortest time of each command, and the shortest processor time of its busiest rank."""
    from knotflow.cli import app

    found: dict[str, dict[str, float]] = {"seconds": {}, "processor": {}}
    processes = int(os.environ["WORLD_SIZE"])
    simulate = arguments(Settings(ns=0.3328), 0)["simulate"]  # frames for some batches of all processes
    app(["simulate", *simulate, "--out", "data.h5", "-q"], standalone_mode=False)
    for number in range(1 + settings.repeats):
        sizes = settings if number else Settings.quick()
        for name, options in arguments(sizes, number, processes).items():
            before, began = used_by_all(), time.perf_counter()
            app([name.split(",")[0], *options, "-q"], standalone_mode=False)
            spent = time.perf_counter() - began
            busiest = max(after - b for after, b in zip(used_by_all(), before, strict=True))
            if number:
                for kind, value in (("seconds", spent), ("processor", busiest)):
                    found[kind][name] = min(value, found[kind].get(name, value))
    return found


def shortest(call: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the fastest of some calls, after a first one."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def costs() -> dict[str, float]:
    """What the parts of commands take, on rank 0 while another rank takes part."""
    from knotflow import ranks
    from knotflow.flows.boltzmann import BoltzmannGenerator
    from knotflow.flows.sampling import BLOCK, draw_block
    from knotflow.ranks import Team
    from knotflow.storage.samples import SampleWriter
    from knotflow.training.molecules import MoleculeTraining, prepare

    ready = prepare("data.h5", MoleculeTraining(temperatures=False))
    parameters = sum(p.numel() for p in ready.flow.parameters() if p.requires_grad)
    model = BoltzmannGenerator.pretrained("ala2")
    x, log_prob = model.sample_and_log_prob(PIECE)
    with SampleWriter("written.h5", model.molecule, weights=True, overwrite=True) as writer:
        written = shortest(lambda: writer.write(x, log_prob, log_prob))
        writer.complete({})
    with Team("benchmarks.scale:echo", None) as team:
        size = PIECE // team.size
        gathered = shortest(lambda: team.map([size] * team.size))
    with ranks.together("benchmarks.scale:summed", parameters):
        reduced = summed(parameters)
    return {
        "weights of the preset best": parameters,
        "bytes of its gradient": 4 * parameters,
        "ms to sum the gradient over the processes": 1000 * reduced,
        f"ms of a training step, batch {ready.training.batch_size}": 1000 * ready.seconds_per_step(9),
        "μs to draw a sample": 1e6 * shortest(lambda: draw_block(model, 0, 0)) / BLOCK,
        "μs to gather a sample at rank 0": 1e6 * gathered / PIECE,
        "μs to superpose and write a sample": 1e6 * written / PIECE,
        "bytes of a sample in the file": Path("written.h5").stat().st_size / (6 * PIECE),
    }


def echo(setup: None) -> Any:
    """Target of a team: as many samples of zeros as asked for."""
    from knotflow.ranks import OneByOne

    return OneByOne(lambda n: (torch.zeros(n, 22, 3), torch.zeros(n, dtype=torch.float64)))


def summed(parameters: int) -> float:
    """Seconds of the sum of so many numbers over all processes."""
    from knotflow import ranks

    numbers = torch.zeros(parameters)
    return shortest(lambda: ranks.total(numbers), 20)


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    result = {**timed(settings), "costs": costs()}
    print(json.dumps(result))


if __name__ == "__main__":
    from knotflow import ranks

    if int(os.environ["WORLD_SIZE"]) == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # not one worker process for each core
    torch.set_num_threads(1)
    ranks.run(main)
