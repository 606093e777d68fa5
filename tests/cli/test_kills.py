"""Commands that are killed at random moments and repeated: the same bits, nothing left behind.

Children are forked from this process, which has imported everything, so a kill costs a fraction of a second.
In them, tasks of workers are done in the child itself. `test_no_orphans` has workers as users have them.
"""

import importlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from difflib import unified_diff
from pathlib import Path
from pprint import pformat
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import typer
from safetensors import safe_open

import knotflow.dynamics.chain_run
import knotflow.dynamics.protocol
import knotflow.simulation.run
from knotflow import cli
from knotflow.dynamics.chain_run import ExactPlan
from knotflow.molecules import ala2
from knotflow.training.run import fit  # noqa: F401  Lightning is imported once, here
from knotflow.workers import WorkerPool
from knotflow.workflows import reweighting, whole_run  # noqa: F401
from tests.analysis.generators import chain_data, chain_generator
from tests.soak import times

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills children made by fork")

KILLS = 20
"""Kills of each command in ``make test``; ``make soak`` has many times as many."""
COMMANDS = {
    "simulate": "simulate --out new.h5 --replicas 2 --ns 0.0004 --every 0.01 --equilibration 0.05",
    "train": "train chain.h5 --preset quick --epochs 6 --out new",
    "sample": "sample chain.safetensors -n 1000 --batch 100 --weights --out new.h5",
    "sample-xtc": "sample chain.safetensors -n 1000 --batch 100 --out new.xtc",
    "exact": "exact chain.safetensors -n 80 --chains 8 --burn-in 5 --every 1 --hmc-steps 3 --out new.h5",
    "dynamics": "dynamics chain.safetensors --replicas 2 --production 0.004 --equilibration 0.004 --every 5 "
    "--out new",
    "evaluate": "evaluate chain.safetensors chain.h5 --samples 50 --out new.json",
    "import": "import frames.npz --out new.h5",
    "reweight": "reweight chain.safetensors --energy module:tests.energy_factories:springs --samples 100 "
    "--refine --steps 4 --out new",
    "run": "quickstart --scale smoke --out new",
}
PROGRAM = typer.main.get_command(cli.app)
INPUTS = ("chain.safetensors", "chain.h5", "frames.npz")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    chain_generator().save(folder / "chain.safetensors")
    chain_data(folder / "chain.h5", 200, 20)
    noise = np.random.default_rng(0).normal(scale=0.003, size=(600, 22, 3))
    np.savez(folder / "frames.npz", positions=(ala2().positions + noise).astype(np.float32))
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers' tasks here, and many small blocks, so that kills hit all of them."""

    def here(pool: WorkerPool, tasks: Any, on_report: Any = None) -> Iterator[tuple[int, Any]]:
        module, function, setup = pickle.loads(pool._greeting)
        work = getattr(importlib.import_module(module), function)(setup)
        for index, task in enumerate(tasks):
            yield index, work(task)

    monkeypatch.setattr(cli, "app", PROGRAM)  # which Typer would build anew at every call
    monkeypatch.setattr(WorkerPool, "imap_unordered", here)
    monkeypatch.setattr(knotflow.simulation.run, "SPREAD_STEPS", 100)
    monkeypatch.setattr(knotflow.simulation.run, "TASK_STEPS", {"openmm": 100})
    monkeypatch.setattr(knotflow.dynamics.chain_run, "SAVE_SECONDS", 0.02)
    monkeypatch.setattr(knotflow.dynamics.protocol, "SAVE_EVERY", 0.02)
    few = {"chains": 8, "rows": 16, "burn_in": 2, "every": 1, "md_steps": 2}
    monkeypatch.setattr(reweighting, "CHAIN_PLAN", ExactPlan.parse(few))


class Child:
    """A command in a forked process."""

    def __init__(self, folder: Path, command: str | list[str]) -> None:
        self.log, self.began = folder.with_suffix(".log"), time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(folder, command.split() if isinstance(command, str) else command)

    def _run(self, folder: Path, words: list[str]) -> None:
        status = 99
        try:
            torch.set_num_threads(1)
            out = os.open(self.log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.chdir(folder)
            sys.argv = ["knotflow", *words]
            cli.main()
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit status, negative for signals; None if it still runs after so many seconds."""
        end = None if seconds is None else self.began + seconds
        while True:
            pid, status = os.waitpid(self.pid, 0 if end is None else os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if end is not None and time.monotonic() >= end:
                return None
            time.sleep(0.001)

    def stop(self, number: int, patience: float) -> int:
        """Send a signal; the exit status."""
        os.kill(self.pid, number)
        status = self.wait(time.monotonic() - self.began + patience)
        if status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
            pytest.fail(f"signal {number} was not answered for {patience} s: {self.log.read_text()[-500:]}")
        return status


@pytest.fixture
def fresh(inputs: Path, tmp_path: Path) -> Callable[[], Path]:
    """A new folder with the inputs."""

    def make() -> Path:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name in INPUTS:
            shutil.copy(inputs / name, folder)
        return folder

    return make


def undisturbed(folder: Path, command: str) -> float:
    """Run a command to its end; seconds that it took."""
    child = Child(folder, command)
    assert child.wait() == 0, child.log.read_text()
    return time.monotonic() - child.began


def content(folder: Path) -> dict[str, Any]:
    """Everything in a folder, without times and other numbers that differ from run to run."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or "tensorboard" in name:
            continue
        found[name] = READERS.get(path.suffix, lambda path: len(path.read_bytes()) > 0)(path)
    return found


def differing(folder: Path, expected: dict[str, Any]) -> dict[str, str]:
    """The lines in which a folder's files are not as expected, by file; empty if all are the same."""
    found, differences = content(folder), {}
    for name in found | expected:
        if found.get(name) != expected.get(name):
            was, now = (pformat(side.get(name)).splitlines() for side in (expected, found))
            differences[name] = "\n".join(unified_diff(was, now, "expected", "found", n=0))[:2000]
    return differences


def _h5(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update({name: item[()].tobytes()}) if hasattr(item, "shape") else None
        )
    found["knotflow/provenance"] = _without_times(json.loads(found["knotflow/provenance"]))
    return found


def _safetensors(path: Path) -> dict[str, bytes]:
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


def _npz(path: Path) -> dict[str, bytes]:
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file if name != "note"}


def _json(path: Path) -> Any:
    return _without_times(json.loads(path.read_text()))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        timed = ("seconds", "spent", "milliseconds", "checksum")  # which is one of times, too
        return {key: _without_times(inner) for key, inner in value.items() if not key.startswith(timed)}
    if isinstance(value, list):
        return [_without_times(inner) for inner in value]
    # The notes of a model have its time, so its fingerprint is another at every training.
    return "fingerprint" if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else value


READERS: dict[str, Callable[[Path], Any]] = {
    ".h5": _h5,
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".json": _json,
    ".csv": lambda path: [line for line in path.read_text().splitlines() if "seconds" not in line],
    ".xtc": lambda path: path.read_bytes(),
    ".toml": lambda path: path.read_text(),
    ".state": lambda path: True,
    ".ckpt": lambda path: True,
}


LONG = pytest.mark.skipif(times(1) == 1, reason="a run takes a quarter of a minute; make soak kills it")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] + [LONG] * (name == "run")) for name in COMMANDS]


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_killed_at_random(name: str, fresh: Callable[[], Path]) -> None:
    command, rng = COMMANDS[name], random.Random(name)
    seconds = undisturbed(reference := fresh(), command)
    expected = content(reference)
    folder, left = fresh(), times(KILLS)
    while True:
        child = Child(folder, command)
        status = child.wait(rng.random() * 1.1 * seconds) if left else child.wait()
        if status is None:
            child.stop(signal.SIGKILL, 60.0)
            left -= 1
            continue
        assert status == 0, child.log.read_text()
        assert differing(folder, expected) == {}
        # Done: once more, it has nothing to do; and then from the beginning, if there are kills left.
        undisturbed(folder, command)
        assert differing(folder, expected) == {}
        if not left:
            return
        folder = fresh()


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_sigterm_is_answered(name: str, fresh: Callable[[], Path]) -> None:
    command, rng = COMMANDS[name], random.Random(name)
    seconds = undisturbed(reference := fresh(), command)
    folder = fresh()
    for _ in range(times(2)):
        child = Child(folder, command)
        if child.wait((0.2 + 0.6 * rng.random()) * seconds) is None:
            status = child.stop(signal.SIGTERM, 60.0)
            said = child.log.read_text()
            assert status in (143, 0), f"{status}: {said}"
            assert "Traceback" not in said and said.count("Stopped") == (status == 143), said
    undisturbed(folder, command)
    assert differing(folder, content(reference)) == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_orphans(fresh: Callable[[], Path], number: int) -> None:
    program = [sys.executable, "-m", "knotflow", "simulate", "--out", "new.h5", "--ns", "100"]
    folder = fresh()
    process = subprocess.Popen(program, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        workers = wait_for(lambda: children(process.pid))
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == (143 if number == signal.SIGTERM else -number), said
        assert ("Stopped;" in said) == (number == signal.SIGTERM)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    finally:
        process.kill()


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of a condition."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found
