"""What Tab offers, and the examples in the help of all commands: they name options that exist."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from knotflow.cli import app
from knotflow.cli.model import MODELS, complete_model


@pytest.fixture
def offered(run_apart, monkeypatch) -> Callable[[str], list[str]]:
    """Words that bash is offered after a line."""

    def call(line: str) -> list[str]:
        monkeypatch.setenv("_KNOTFLOW_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        status, out, errors = run_apart()
        assert status == 0 and not errors
        return out.split()

    return call


def test_commands_options_and_choices(offered) -> None:
    assert {"simulate", "train", "sample", "evaluate"} <= set(offered("knotflow "))
    assert offered("knotflow tr") == ["train"]
    assert offered("knotflow train --preset ") == ["best", "quick", "paper"]
    assert offered("knotflow train --preset q") == ["quick"]
    assert offered("knotflow reproduce table1 --rows bsp") == ["bspline", "bspline+fm"]
    assert {"--config", "--json", "--quiet"} <= set(offered("knotflow train --"))


def test_models_nearby(offered, tmp_path: Path) -> None:
    for name in ("runs/one", "runs/two", "other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.safetensors").touch()
    (tmp_path / "mine.safetensors").touch()
    (tmp_path / "runs" / "unfinished").mkdir()
    package = [path.stem for path in sorted(MODELS.glob("*.safetensors"))]
    expected = [*package, "mine.safetensors", "other", "runs/one", "runs/two"]
    assert offered("knotflow sample ") == expected == complete_model("")
    assert offered("knotflow evaluate runs/t") == ["runs/two"]
    assert offered("knotflow sample data/") == []  # names of files are left to the shell


def test_the_models_of_the_package_are_looked_for_in_the_right_place() -> None:
    from knotflow.flows.pretrained import FOLDER

    assert MODELS == FOLDER


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_the_shell(run_apart, monkeypatch, shell: str) -> None:
    monkeypatch.setenv("_KNOTFLOW_COMPLETE", f"source_{shell}")
    status, out, _ = run_apart()
    assert status == 0 and "_KNOTFLOW_COMPLETE=complete_" in out and "knotflow" in out


def leaves(command: Any, name: str = "knotflow") -> Iterator[tuple[str, Any]]:
    """All commands that do something, by name."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
    for word, below in (inner or {}).items():
        yield from leaves(below, f"{name} {word}")


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_can_be_given_as_they_are(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^(?:Example:)?\s*(knotflow \S.*)$", COMMANDS[name].help, re.MULTILINE)
    assert examples, f"{name} has no example"
    for example in examples:
        used = max((other for other in COMMANDS if f"{example} ".startswith(f"{other} ")), key=len)
        assert used == name, example
        arguments = shlex.split(example)[len(name.split()) :]
        for file in (word for word in arguments if word.endswith(".toml")):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text('data = "data/ala2.h5"\n' if "train" in name else "")
        COMMANDS[name].make_context(name, arguments)  # refuses what it does not know
