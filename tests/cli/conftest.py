"""Commands in the process of the tests, which is faster than one process each."""

import sys
from collections.abc import Callable

import pytest

from knotflow import cli


@pytest.fixture
def run_apart(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run a command in a temporary folder: exit status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # the program is not `python -m pytest`

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["knotflow", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(end.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture
def run_here(run_apart) -> Callable[..., tuple[int, str]]:
    """Run a command in a temporary folder: exit status and all it prints, on one line."""

    def call(*arguments: str) -> tuple[int, str]:
        status, out, errors = run_apart(*arguments)
        return status, " ".join((out + errors).split())

    return call
