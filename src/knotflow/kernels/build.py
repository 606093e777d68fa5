"""Compile the native kernels: ``python src/knotflow/kernels/build.py`` makes ``_native.so`` beside itself.

Only the standard library is imported: the build hook ``hatch_build.py`` and the Makefile run this file by its
path, where neither knotflow nor torch need be installed. Nothing is compiled once the package is installed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent
LIBRARY: Final = SOURCES / "_native.so"

SWITCH: Final = "KNOTFLOW_KERNELS"
"""Environment variable: ``off`` builds nothing."""

FLAGS: Final = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-Wall",
    "-Wextra",
)

X86: Final[Mapping[str, tuple[str, ...]]] = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": (
        "-mavx512f",
        "-mavx512dq",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx2",
        "-mfma",
        "-mprefer-vector-width=512",
    ),
}
"""Instruction sets of x86-64 beyond the one that all such processors have, and how to compile for them."""

PROCESSES: Final = 2
"""Compilers that run at the same time."""


class NotBuiltError(Exception):
    """There is nothing to build with, or nothing is to be built."""


class CompilationError(NotBuiltError):
    """The compiler or the linker failed."""


def find_compiler() -> list[str]:
    """The C++ compiler: what ``CXX`` says, which may include options, or the first of the usual names.

    Raises:
        NotBuiltError: if there is none.
    """
    if sys.platform == "win32":
        raise NotBuiltError("there are no native kernels for Windows")
    if named := shlex.split(os.environ.get("CXX", "")):
        if shutil.which(named[0]) is None:
            raise NotBuiltError(
                f"the C++ compiler of the environment variable CXX, {named[0]}, was not found"
            )
        return named
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name) is not None:
            return [name]
    raise NotBuiltError("no C++ compiler was found (CXX, c++, g++, clang++)")


def find_variants(compiler: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The instruction sets that this compiler knows, and their flags."""
    empty = ("-x", "c++", os.devnull)
    macros = _run([*compiler, "-dM", "-E", *empty]).split()
    variants: dict[str, tuple[str, ...]] = {"baseline": ()}
    if "__x86_64__" in macros:
        for name, flags in X86.items():
            try:
                _run([*compiler, "-Werror", *flags, "-fsyntax-only", *empty])
            except CompilationError:
                continue
            variants[name] = flags
    return variants


def build(library: Path = LIBRARY) -> None:
    """Make the shared library; one that is there is replaced at once, or kept if anything fails.

    Raises:
        NotBuiltError: with the reason.
    """
    if os.environ.get(SWITCH) == "off":
        raise NotBuiltError(f"turned off by {SWITCH}=off")
    compiler = find_compiler()
    draft = library.with_name(f"{library.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_all(compiler, Path(folder))
        try:
            _link(compiler, objects, draft)
            draft.replace(library)
        finally:
            draft.unlink(missing_ok=True)


def build_program(driver: Path, program: Path, flags: Sequence[str]) -> None:
    """Compile the kernels together with a file that has a ``main``, with more flags, as of a sanitizer.

    Raises:
        NotBuiltError: with the reason.
    """
    compiler = find_compiler()
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_all(compiler, Path(folder), flags, driver)
        _run([*compiler, *flags, *map(str, objects), "-pthread", "-o", str(program)])


def compile_all(
    compiler: Sequence[str], folder: Path, more: Sequence[str] = (), driver: Path | None = None
) -> list[Path]:
    """Compile the kernels for every instruction set, and what chooses between them, into a folder."""
    variants = find_variants(compiler)
    units = {
        folder / f"kernels-{name}.o": [*flags, f"-DKNOTFLOW_ISA={name}", str(SOURCES / "kernels.cpp")]
        for name, flags in variants.items()
    }
    have = [f"-DKNOTFLOW_HAVE_{name}" for name in variants]
    units[folder / "dispatch.o"] = [*have, str(SOURCES / "dispatch.cpp")]
    if driver is not None:
        units[folder / "driver.o"] = [f"-I{SOURCES}", str(driver)]
    commands = [[*compiler, *FLAGS, *more, "-c", *unit, "-o", str(made)] for made, unit in units.items()]
    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(_run, commands))
    return list(units)


def _link(compiler: Sequence[str], objects: Sequence[Path], library: Path) -> None:
    command = [*compiler, "-shared", *map(str, objects), "-o", str(library)]
    if sys.platform != "linux":
        _run(command)
        return
    # What comes from archives is hidden, and nothing may be missing when the library is loaded.
    command += ["-Wl,--exclude-libs,ALL", "-Wl,--as-needed", "-Wl,-z,defs"]
    try:
        _run([*command, "-static-libstdc++", "-static-libgcc"])
    except CompilationError:  # the archives are not installed everywhere
        _run(command)


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise CompilationError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode != 0:
        raise CompilationError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}")
    if done.stderr:
        print(done.stderr.strip(), file=sys.stderr)
    return done.stdout


def main() -> int:
    """Run as a program: 1 if the compiler failed, 0 also if there is none."""
    parser = argparse.ArgumentParser(description="Compile the native kernels of knotflow.")
    parser.add_argument("--driver", type=Path, help="a C++ file with a main, for a program with the kernels")
    parser.add_argument("--out", type=Path, help="the program to make")
    parser.add_argument("--flags", default="", help="more flags for compiler and linker")
    asked = parser.parse_args()
    if (asked.driver is None) != (asked.out is None) or (asked.flags and asked.driver is None):
        parser.error("--driver and --out go together, and --flags with them.")
    try:
        if asked.driver is None:
            build()
        else:
            build_program(asked.driver, asked.out, shlex.split(asked.flags))
    except CompilationError as error:
        print(f"No native kernels: {error}\nTo go on without: {SWITCH}=off.", file=sys.stderr)
        return 1
    except NotBuiltError as reason:
        print(f"No native kernels: {reason}.", file=sys.stderr)
        return 0 if asked.driver is None else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
