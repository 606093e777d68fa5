"""The commands as a user runs them: in a process of their own, from another folder."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import knotflow as kf


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "knotflow"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


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


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("matplotlib", ["quickstart"], "plot"),
        ("jinja2", ["reproduce", "toy2d", "--scale", "smoke"], "plot"),
        ("lightning", ["reproduce", "mixed5d", "--scale", "smoke"], "train"),
    ],
)
def test_without_an_optional_package_the_remedy_is_named(tmp_path, missing, arguments, extra) -> None:
    code = f"""
import importlib.util, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {missing!r} else find(name, *rest)
sys.argv = ["knotflow", *{arguments!r}]
from knotflow.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2, done.stderr
    assert f"pip install 'knotflow[{extra}]'" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_reproduce_refuses_a_folder_of_another_seed(tmp_path: Path) -> None:
    arguments = shlex.split("reproduce toy2d --scale smoke --model bspline --domain interval --out x")
    first = run(tmp_path, *arguments)
    assert first.returncode == 0, first.stderr
    assert "figure1.png" in {path.name for path in (tmp_path / "x").iterdir()}
    before = (tmp_path / "x" / "results.json").read_bytes()
    second = run(tmp_path, *arguments, "--seed", "1")
    assert second.returncode == 2
    assert "holds a run made with training.seed 0" in " ".join(second.stderr.split())
    assert (tmp_path / "x" / "results.json").read_bytes() == before


def test_python_runs_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "knotflow", "figure", "transforms", "--order", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (2, run(tmp_path, *command[3:]).stderr)
    assert "Usage: python -m knotflow" in subprocess.check_output([*command[:3], "--help"], text=True)


def test_help_and_version(tmp_path: Path) -> None:
    version, engine = run(tmp_path, "--version").stdout.splitlines()
    assert version == f"knotflow {kf.__version__}" and engine.startswith("engine: ")
    for arguments in (
        ["--help"],
        ["quickstart", "-h"],
        ["figure", "transforms", "--help"],
        ["reproduce", "-h"],
    ):
        done = run(tmp_path, *arguments)
        assert done.returncode == 0
        assert "Usage" in done.stdout
    assert "runs/toy2d-SCALE" in run(tmp_path, "reproduce", "toy2d", "--help").stdout
