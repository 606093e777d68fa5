"""Commands in the process of the test, which is quicker than in their own."""

import sys
from collections.abc import Callable

import pytest

from knotflow import cli


@pytest.fixture
def run_here(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str]]:
    """Run a command in a temporary folder: exit status and all it prints, on one line."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["knotflow", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(end.value.code or 0), " ".join((captured.out + captured.err).split())

    return call
