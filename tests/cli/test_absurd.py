"""Absurd numbers, in every numeric option of every command: one sentence, or work that can end.

The options are found in the commands themselves, so a new one is covered by itself. Work that begins is
stopped at its first report of progress.
"""

import inspect
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from knotflow import cli
from knotflow.cli import progress
from knotflow.training.run import fit  # noqa: F401  Lightning is imported here, where nothing interrupts it
from knotflow.workers import WorkerPool
from knotflow.workflows import molecule as molecules
from tests.analysis.generators import chain_data, chain_generator
from tests.soak import times

HUGE = ["1000000000000", "1" + "0" * 23, "1e300", "inf", "nan"]
VALUES = ["0", "-1", *HUGE, "-inf", ""]
SECONDS = 20
READING = ("reading", "frames", "looking")
"""First words of reports about the reading of data, which is needed to know what the work would take."""

MODEL = ["chain.safetensors"]
BASES: dict[str, list[str]] = {
    "run": ["--out", "new"],
    "quickstart": ["--scale", "smoke", "--out", "new"],
    "simulate": ["--out", "new.h5"],
    "import": ["frames.npz", "--out", "new.h5"],
    "train": ["chain.h5", "--preset", "quick", "--out", "new"],
    "sample": [*MODEL, "-n", "10", "--out", "new.h5"],
    "exact": [*MODEL, "-n", "4", "--chains", "4", "--out", "new.h5"],
    "evaluate": [*MODEL, "chain.h5", "--samples", "10", "--out", "new.json"],
    "reweight": [*MODEL, "--refine", "--samples", "10", "--out", "new"],
    "dynamics": [*MODEL, "--replicas", "2", "--production", "0.005", "--equilibration", "0", "--out", "new"],
    "report": [*MODEL, "--samples", "10", "--out", "new.html"],
    "check": [],
    "figure transforms": ["--out", "new.png"],
    "reproduce all": ["--scale", "smoke", "--out", "new"],
    "reproduce toy2d": ["--scale", "smoke", "--out", "new"],
    "reproduce table1": ["--data", "chain.h5", "--out", "new"],
    "reproduce dynamics": ["--scale", "smoke", "--out", "new"],
    "reproduce exact": [*MODEL, "--data", "chain.h5", "--out", "new"],
    "reproduce mixed5d": ["--scale", "smoke", "--out", "new"],
    "reproduce engines": ["--scale", "smoke", "--out", "new"],
    "reproduce field": ["--scale", "smoke", "--out", "new"],
}  # fmt: skip
"""The least work of each command; an option given again replaces the first."""
HARMLESS = {"--seed", "--workers", "--temperature", "--highest", "--charge", "--multiplicity", "--dt"} | {
    "--stride", "--every", "--friction", "--scale", "--batch", "--reverse-kl", "--maps",
}  # fmt: skip
"""Options in which a very large number may be meant, or means little work."""


class BegunError(BaseException):
    """Work has begun."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands, by name."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    else:
        yield " ".join(path), command


PROGRAM = typer.main.get_command(cli.app)
COMMANDS = dict(leaves(PROGRAM))


def numeric(command: Any) -> list[str]:
    """Options that take a number, each by its longest name."""
    signature = inspect.signature(command.callback, eval_str=True)
    return [
        max(option.opts, key=len)
        for option in command.params
        if option.expose_value and {int, float} & set(kinds(signature.parameters[option.name].annotation))
    ]


def kinds(annotation: Any) -> Iterator[Any]:
    """All types in an annotation."""
    if isinstance(annotation, type):
        yield annotation
    for inner in get_args(annotation):
        yield from kinds(inner)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np

    from knotflow.molecules import ala2

    folder = tmp_path_factory.mktemp("absurd")
    chain_generator().save(folder / "chain.safetensors")
    chain_data(folder / "chain.h5", 200, 20)
    np.savez(folder / "frames.npz", positions=np.repeat(ala2().positions[None], 5, 0).astype(np.float32))
    return folder


@pytest.fixture
def call(files, monkeypatch, capfd):
    """Run a command until its work begins: exit status, or "begun", and what it said."""
    monkeypatch.chdir(files)
    monkeypatch.setattr(molecules, "load_molecule", load_once)

    def begin(_: object, doing: str, *__: object) -> None:
        if not doing.startswith(READING):
            raise BegunError

    def late(*_: object) -> None:
        raise TimeoutError(f"nothing happened for {SECONDS} s")

    monkeypatch.setattr(cli, "app", PROGRAM)  # which Typer would build anew at every call
    monkeypatch.setattr(progress.Display, "__call__", begin)
    monkeypatch.setattr(WorkerPool, "imap_unordered", lambda *_: begin(None, "tasks"))

    def run(*arguments: str) -> tuple[int | str, str]:
        monkeypatch.setattr(sys, "argv", ["knotflow", *arguments])
        before = signal.signal(signal.SIGALRM, late)
        signal.alarm(SECONDS)
        status: int | str
        try:
            cli.main()
        except SystemExit as end:
            status = int(end.code or 0)
        except BegunError:
            status = "begun"
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        out, err = capfd.readouterr()
        return status, out + err

    return run


load_once = cache(molecules.load_molecule)


def one_sentence(said: str) -> bool:
    return not any(word in said for word in ("Traceback", "http", "pydantic", "Overflow", "Errno"))


def test_every_command_is_covered() -> None:
    assert set(BASES) == set(COMMANDS)


CASES = [(name, option) for name, command in COMMANDS.items() for option in numeric(command)]
FIRST = {option: name for name, option in reversed(CASES)}
"""Options that many commands have get all values in the first of them, or all in ``make soak``."""
SHARED = {"--seed", "--temperature", "--charge", "--multiplicity"}


@pytest.mark.soak
@pytest.mark.parametrize(("name", "option"), CASES, ids=lambda word: word.replace(" ", "-"))
def test_absurd_numbers(call, files: Path, name: str, option: str) -> None:
    few = option in SHARED and FIRST[option] != name and times(1) == 1
    for value in HUGE[1:2] if few else VALUES:
        before = sorted(files.rglob("*"))
        status, said = call(*name.split(), *BASES[name], f"{option}={value}")
        what = f"{name} {option}={value}: {status}\n{said}"
        assert one_sentence(said), what
        if status == 2:
            assert "Error" in said or "Invalid value" in said, what
            assert sorted(files.rglob("*")) == before, what
        else:
            assert value not in HUGE or option in HARMLESS, f"work was begun: {what}"
            assert status in (0, "begun"), what
        for made in sorted(set(files.rglob("*")) - set(before), reverse=True):
            made.unlink() if made.is_file() else made.rmdir()


@pytest.mark.parametrize("words", [("--out", ""), ("--out=",), ("--state=",)], ids="".join)
@pytest.mark.parametrize("name", ["evaluate", "train"])
def test_an_option_without_a_value(call, files: Path, name: str, words: tuple[str, ...]) -> None:
    """As from a script whose variable is not set: the working folder is no answer."""
    before = sorted(files.rglob("*"))
    status, said = call(name, *BASES[name], *words)
    assert status == 2 and f"{words[0].removesuffix('=')} has an empty value" in said
    assert sorted(files.rglob("*")) == before
