"""Which engine runs: the environment variable, the library that is there, and what users are told."""

import _ctypes
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from knotflow.kernels import build, library
from tests.kernels.tiny import compiles, write_sources

built = pytest.mark.skipif(not library.FILE.exists(), reason="no kernels were built: no C++ compiler")


@pytest.fixture(autouse=True)
def fresh(monkeypatch) -> Iterator[None]:
    """As in a process that has not used the library; what is in use afterwards is as before."""
    monkeypatch.delenv(library.SWITCH, raising=False)
    for name, value in {"_found": None, "_threads": False, "_told": False}.items():
        monkeypatch.setattr(library, name, value)
    in_use = library._load().library
    before = in_use.knotflow_isa() if in_use else None
    yield
    if in_use:
        in_use.knotflow_use(before)


@built
def test_the_best_is_the_default() -> None:
    kernels = library.native()
    assert kernels is not None
    best, *_ = names = library.supported(kernels)
    assert names[-1] == "baseline"
    code = "from knotflow.kernels.library import engine; print(engine())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"native kernels ({best})\n"  # of a process in which nobody has chosen


@built
@pytest.mark.parametrize("value", ["on", ""])
def test_on_is_as_unset(monkeypatch, value) -> None:
    monkeypatch.setenv(library.SWITCH, value)
    assert library.native() is not None and library.engine().startswith("native kernels (")


@built
def test_every_instruction_set_by_name(monkeypatch) -> None:
    kernels = library.native()
    assert kernels is not None
    for name in library.supported(kernels):
        monkeypatch.setenv(library.SWITCH, name)
        monkeypatch.setattr(library, "_found", None)
        assert library.native() is not None
        assert library.engine() == f"native kernels ({name})"


@built
def test_an_unknown_name_is_refused_with_what_there_is(monkeypatch) -> None:
    monkeypatch.setenv(library.SWITCH, "mmx")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"one of on, off, .*baseline on this machine, got 'mmx'\.$"):
            library.native()


def test_a_name_is_refused_if_nothing_was_built(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(library, "FILE", tmp_path / "_native.so")
    monkeypatch.setenv(library.SWITCH, "avx2")
    with pytest.raises(ValueError, match="to be on or off, got 'avx2': no native kernels, none were built"):
        library.engine()


def test_off(monkeypatch, caplog) -> None:
    monkeypatch.setenv(library.SWITCH, "off")
    caplog.set_level(logging.WARNING, "knotflow")
    assert library.native() is None
    assert library.engine() == "torch (no native kernels: turned off by KNOTFLOW_KERNELS=off)"
    library.tell_once()
    assert not caplog.records  # it was the user's wish


def test_a_missing_library_is_told_once(monkeypatch, tmp_path, caplog) -> None:
    monkeypatch.setattr(library, "FILE", tmp_path / "_native.so")
    assert library.native() is None
    remedy = "none were built; install a C++ compiler and reinstall knotflow"
    assert library.engine() == f"torch (no native kernels: {remedy})"
    library.tell_once()
    library.tell_once()
    [record] = caplog.records
    assert record.name == "knotflow" and record.levelno == logging.WARNING
    assert record.getMessage() == f"Splines run in plain torch, more slowly: no native kernels, {remedy}."


@built
def test_a_library_of_another_version_is_not_used(monkeypatch, caplog) -> None:
    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    assert library.native() is None
    library.tell_once()
    [record] = caplog.records
    assert record.getMessage().endswith("they belong to another version; reinstall knotflow.")


def test_neither_is_a_stranger(monkeypatch) -> None:
    monkeypatch.setattr(library, "FILE", library.Path(_ctypes.__file__))
    assert library.native() is None and "another version" in library.engine()


def test_a_broken_file_is_explained(monkeypatch, tmp_path) -> None:
    (tmp_path / "_native.so").write_bytes(b"not a library")
    monkeypatch.setattr(library, "FILE", tmp_path / "_native.so")
    assert library.native() is None
    assert "cannot be loaded" in library.engine() and "reinstall knotflow" in library.engine()


def test_windows_has_none(monkeypatch, caplog) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    caplog.set_level(logging.INFO, "knotflow")
    assert library.engine() == "torch (no native kernels: there are none for Windows)"
    library.tell_once()
    assert [record.levelno for record in caplog.records] == [logging.INFO]  # nothing can be done


@built
def test_nothing_is_said_if_all_is_well(caplog) -> None:
    library.tell_once()
    assert not caplog.records


def test_threads_load_it_once(monkeypatch) -> None:
    loads = []
    load = library._load
    monkeypatch.setattr(library, "_load", lambda: (loads.append(1), load())[1])
    together = threading.Barrier(8)

    def use() -> None:
        together.wait()
        library.native()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1


@compiles
@pytest.mark.skipif(sys.platform != "linux", reason="torch brings libgomp on Linux only")
def test_kernels_get_the_threads_of_torch(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(build, "SOURCES", write_sources(tmp_path / "sources"))
    monkeypatch.setattr(library, "FILE", tmp_path / "_native.so")
    build.build(library.FILE)
    kernels = library.native()
    assert kernels is not None and kernels.knotflow_run(None) == 3
    kernels.knotflow_parallel(None)
    assert kernels.knotflow_run(None) == 0
