"""Commands in one launch of torchrun, with small pieces, so that few samples make work for several ranks.

``python -m torch.distributed.run ... -m tests.ranked commands.json`` runs the commands of a JSON file, lists
of arguments. In ``DEATHS`` (JSON) is, for every start, the rank that dies, and how many seconds after the
ranks met.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch

from knotflow import ranks
from knotflow.cli import app
from knotflow.dynamics import chain_run
from knotflow.flows import sampling
from knotflow.simulation import run as simulation
from knotflow.training import replay

SMALL: dict[Any, dict[str, int]] = {
    chain_run: {"TOGETHER": 8},
    sampling: {"BLOCK": 50},
    simulation: {"SPREAD_STEPS": 50},
    replay: {"PIECE": 100},
}


@contextmanager
def small_pieces() -> Iterator[None]:
    """Work in small pieces within this block."""
    with pytest.MonkeyPatch.context() as patch:
        for module, sizes in SMALL.items():
            for name, value in sizes.items():
                patch.setattr(module, name, value)
        yield


def alone(folder: Path, commands: list[list[str]]) -> None:
    """The same commands by this process, in a folder, with one thread, as torchrun gives its processes."""
    threads = torch.get_num_threads()
    with small_pieces(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_all(commands)
    torch.set_num_threads(threads)


def run_all(commands: list[list[str]]) -> None:
    torch.set_num_threads(1)
    for arguments in commands:
        app(arguments, standalone_mode=False)


def main() -> None:
    deaths = json.loads(os.environ.get("DEATHS", "[]"))[int(os.environ["TORCHELASTIC_RESTART_COUNT"]) :]
    meet = torch.distributed.init_process_group

    def met(**options: Any) -> None:
        meet(**options)
        if deaths and deaths[0][0] == int(os.environ["RANK"]):
            timer = Timer(deaths[0][1], os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()

    with small_pieces(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "init_process_group", met)
        ranks.run(lambda: run_all(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
