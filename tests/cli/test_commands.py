"""The commands as a user runs them: in a process of their own, from another folder."""

import subprocess
import sys
from pathlib import Path

import pytest

import knotflow as kf


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "knotflow"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_quickstart_writes_a_picture_and_prints_a_table(tmp_path: Path) -> None:
    done = run(tmp_path, "quickstart")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/quickstart/transforms.png").stat().st_size > 20_000
    assert "BSpline k=4" in done.stdout and "RationalQuadratic" in done.stdout


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_figure_formats(tmp_path: Path, suffix: str) -> None:
    done = run(tmp_path, "figure", "transforms", "--out", f"new/picture.{suffix}", "--order", "5")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"picture.{suffix}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--order", "2"], "order must be a whole number of at least 3, got 2."),
        (["--bins", "0"], "bins must be a whole number of at least 1, got 0."),
        (["--maps", "0"], "--maps must be at least 1, got 0."),
        (["--out", "picture.doc"], "ending in .png, .pdf, .svg, got 'picture.doc'."),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_files_alone(tmp_path, arguments, message) -> None:
    old = tmp_path / "transforms.png"
    old.write_bytes(b"mine")
    done = run(tmp_path, "figure", "transforms", *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert old.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [old]


def test_without_matplotlib_the_remedy_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update({'matplotlib': None, 'matplotlib.figure': None}); "
        "sys.argv = ['knotflow', 'quickstart']; from knotflow.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert "pip install 'knotflow[plot]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_and_version(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout.strip() == f"knotflow {kf.__version__}"
    for arguments in (["--help"], ["quickstart", "-h"], ["figure", "transforms", "--help"]):
        done = run(tmp_path, *arguments)
        assert done.returncode == 0
        assert "Usage" in done.stdout
