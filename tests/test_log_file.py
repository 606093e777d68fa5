"""The log of a training: read as it was written, without a torn line, and without heavy packages."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from knotflow.log_file import as_text, read_log

ROWS = [(10, "nll", 0.1), (20, "nll", -1 / 3), (20, "a, b", 1e-300), (30, "ess", float("inf"))]


def test_rows_are_those_written(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    assert read_log(path) == []
    path.write_text(as_text(ROWS[:2], header=True) + as_text(ROWS[2:]), newline="")
    assert read_log(path) == ROWS
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [(int(row["step"]), row["name"], float(row["value"])) for row in table] == ROWS


@pytest.mark.parametrize("torn", ["40,nl", "40,nll,0.12345", "4"])
def test_a_torn_line_is_left_out(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(as_text(ROWS, header=True) + torn, newline="")
    assert read_log(path) == ROWS


@pytest.mark.parametrize("text", ["step,name,value\n10,nll\n", "step,name,value\nten,nll,1\n"])
def test_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(ValueError, match=r"log.csv must hold rows of step, name and value, .*; remove it."):
        read_log(tmp_path / "log.csv")


def test_nothing_heavy_is_imported() -> None:
    heavy = {"torch", "numpy", "lightning"}
    code = f"import sys, knotflow.log_file; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
