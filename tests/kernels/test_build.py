"""Compiling the kernels: which compiler, which instruction sets, what the wheel is, and what if it fails.

All but the last test compile a tiny kernel, which takes no time.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from knotflow.kernels import build
from tests.kernels.tiny import KERNEL, compiles, write_sources

ROOT = Path(__file__).parents[2]

reads_symbols = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("nm") is None, reason="needs nm, and symbols as on Linux"
)


@pytest.fixture(autouse=True)
def environment(monkeypatch) -> None:
    monkeypatch.delenv(build.SWITCH, raising=False)


@pytest.fixture
def sources(monkeypatch, tmp_path) -> Path:
    folder = write_sources(tmp_path / "sources")
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


@pytest.fixture
def picky(monkeypatch, tmp_path):
    """Makes a compiler that refuses an option, and takes it as that of the environment."""

    def make(option: str) -> Path:
        script = tmp_path / "picky-c++"
        real = " ".join(build.find_compiler())
        script.write_text(f'#!/bin/sh\ncase " $* " in *" {option} "*) exit 1;; esac\nexec {real} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return script

    return make


def symbols(*command: str) -> set[str]:
    """Names that nm prints, with their letters."""
    text = subprocess.run(["nm", *command], capture_output=True, text=True, check=True).stdout
    return {f"{line.split()[-2]} {line.split()[-1]}" for line in text.splitlines() if len(line.split()) > 1}


def test_no_compiler(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NotBuiltError, match=r"no C\+\+ compiler was found"):
        build.build(tmp_path / "_native.so")


def test_the_compiler_of_the_environment_comes_first(monkeypatch) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -x 'a b'")
    assert build.find_compiler() == [sys.executable, "-x", "a b"]
    monkeypatch.setenv("CXX", "no-such-c++")
    with pytest.raises(build.NotBuiltError, match=r"CXX, no-such-c\+\+, was not found"):
        build.find_compiler()


def test_windows(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(build.NotBuiltError, match="no native kernels for Windows"):
        build.find_compiler()


def test_off(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(build.SWITCH, "off")
    with pytest.raises(build.NotBuiltError, match="turned off by KNOTFLOW_KERNELS=off"):
        build.build(tmp_path / "_native.so")


@compiles
def test_a_failure_keeps_what_was_there(sources, tmp_path) -> None:
    (sources / "kernels.cpp").write_text("#error on purpose\n")
    library = tmp_path / "out" / "_native.so"
    library.parent.mkdir()
    library.write_text("the last one")
    with pytest.raises(build.CompilationError, match="on purpose"):
        build.build(library)
    assert library.read_text() == "the last one" and list(library.parent.iterdir()) == [library]


def test_a_compiler_that_cannot_be_run(monkeypatch, tmp_path) -> None:
    script = tmp_path / "c++"
    script.write_bytes(b"\x7fELF no program")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(build.CompilationError, match="cannot be run"):
        build.build(tmp_path / "_native.so")


@compiles
@reads_symbols
def test_only_the_interface_is_exported(sources, tmp_path) -> None:
    build.build(tmp_path / "_native.so")
    names = ("abi", "isa", "parallel", "run", "supported", "use")
    exported = symbols("-D", "--defined-only", str(tmp_path / "_native.so"))
    assert exported == {f"T knotflow_{name}" for name in names}


@compiles
def test_instruction_sets_that_the_compiler_does_not_know_are_left_out(picky, sources, tmp_path) -> None:
    whole = build.find_variants(build.find_compiler())
    if "avx512" not in whole:
        pytest.skip("no such processor or compiler")
    picky("-mavx512dq")
    assert list(build.find_variants(build.find_compiler())) == [name for name in whole if name != "avx512"]
    build.build(tmp_path / "_native.so")


@compiles
@pytest.mark.skipif(sys.platform != "linux", reason="only there is the runtime linked statically")
def test_without_a_static_runtime_it_is_linked_dynamically(picky, sources, tmp_path) -> None:
    picky("-static-libstdc++")
    build.build(tmp_path / "_native.so")
    assert (tmp_path / "_native.so").exists()


@pytest.fixture
def project(tmp_path) -> Path:
    """As much of this project as a wheel is made of, with the tiny kernel."""
    folder = tmp_path / "project"
    shutil.copytree(build.SOURCES, folder / "src/knotflow/kernels", ignore=shutil.ignore_patterns("*.so*"))
    (folder / "src/knotflow/kernels/kernels.cpp").write_text(KERNEL)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src/knotflow/__init__.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def wheel(project: Path, *, target: str = "wheel", **environment: str) -> tuple[Path, str]:
    """The wheel that the build backend makes, and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", "dist"],
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    [made] = (project / "dist").glob("*.whl")
    return made, done.stdout + done.stderr


@compiles
def test_a_wheel_has_the_library_and_is_tagged_for_its_platform(project) -> None:
    made, _ = wheel(project)
    assert re.fullmatch(r"knotflow-[\d.]+-py3-none-(manylinux_2|linux|macosx)_\w+\.whl", made.name)
    names = ZipFile(made).namelist()
    kernels = {Path(name).name for name in names if name.startswith("knotflow/kernels/")}
    assert {"__init__.py", "library.py", "_native.so"} <= kernels
    assert not [name for name in kernels if name.endswith((".cpp", ".hpp"))]
    assert not (project / "src/knotflow/kernels/_native.so").exists()


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"PATH": "/nonexistent", "CXX": ""}, "no C++ compiler was found"),
        ({"CXX": "false"}, "failed"),
        ({"KNOTFLOW_KERNELS": "off"}, "turned off by KNOTFLOW_KERNELS=off"),
    ],
    ids=["no compiler", "failing compiler", "off"],
)
def test_without_kernels_the_wheel_is_pure_and_the_reason_is_said(project, environment, reason) -> None:
    (project / "src/knotflow/kernels/_native.so").write_text("left from another time")
    made, said = wheel(project, **environment)
    assert made.name.endswith("-py3-none-any.whl")
    assert "without native kernels" in said and reason in said
    assert not [name for name in ZipFile(made).namelist() if name.endswith(".so")]


@compiles
def test_in_an_editable_installation_the_library_lies_in_the_sources(project) -> None:
    library = project / "src/knotflow/kernels/_native.so"
    made, _ = wheel(project, target="wheel:editable")
    assert library.exists() and not [name for name in ZipFile(made).namelist() if name.endswith(".so")]
    made.unlink()
    wheel(project, target="wheel:editable", KNOTFLOW_KERNELS="off")
    assert not library.exists()


@pytest.mark.slow
@compiles
@reads_symbols
def test_instruction_sets_share_no_code(tmp_path) -> None:
    # Of a weak function the linker keeps one copy for all: it must not be one for a better processor.
    build.compile_all(build.find_compiler(), tmp_path)
    for name in build.X86:
        if (made := tmp_path / f"kernels-{name}.o").exists():
            weak = {symbol for symbol in symbols("--defined-only", str(made)) if symbol[0] in "WVu"}
            assert not {symbol for symbol in weak if "DW.ref." not in symbol}, name
