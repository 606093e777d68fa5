"""Compiles the native kernels: ``python src/knotflow/kernels/build.py`` writes ``_native.so`` next to itself.

This file imports only the standard library. The build hook ``hatch_build.py`` and the Makefile run it by its
path, before knotflow or torch are installed. Nothing is compiled after installation.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent
LIBRARY: Final = SOURCES / "_native.so"

SWITCH: Final = "KNOTFLOW_KERNELS"
"""Environment variable; with ``off`` nothing is built."""

FLAGS: Final = (
    "-std=c++17 -O3 -fPIC -fvisibility=hidden -fno-math-errno -fno-trapping-math -ffp-contract=fast "
    "-Wall -Wextra"
)

X86: Final = {
    "avx2": "-mavx2 -mfma",
    "avx512": "-mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx2 -mfma -mprefer-vector-width=512",
}
"""Instruction sets of x86-64 beyond the common baseline, and their compiler flags."""

PROCESSES: Final = 2
"""Number of compilers that run at the same time."""


class NotBuiltError(Exception):
    """There is no compiler, or building is turned off."""


class CompilationError(NotBuiltError):
    """The compiler or the linker failed."""


def find_compiler() -> list[str]:
    """The C++ compiler: the command in ``CXX``, with any options, or the first of the usual names.

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


def find_variants(compiler: Sequence[str]) -> dict[str, list[str]]:
    """The instruction sets that this compiler supports, and their flags."""
    empty = ("-x", "c++", os.devnull)
    macros = _run([*compiler, "-dM", "-E", *empty]).split()
    variants: dict[str, list[str]] = {"baseline": []}
    if "__x86_64__" in macros:
        for name, flags in X86.items():
            try:
                _run([*compiler, "-Werror", *flags.split(), "-fsyntax-only", *empty])
            except CompilationError:
                continue
            variants[name] = flags.split()
    return variants


def build(library: Path = LIBRARY) -> None:
    """Build the shared library. An existing one is replaced at the end, or kept if anything fails.

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
    """Compile the kernels and a file with a ``main`` into a program, with more flags, such as a sanitizer's.

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
    """Compile the kernels for every instruction set, and the dispatcher, into object files in a folder."""
    variants = find_variants(compiler)
    units = {
        folder / f"kernels-{name}.o": [*flags, f"-DKNOTFLOW_ISA={name}", str(SOURCES / "kernels.cpp")]
        for name, flags in variants.items()
    }
    have = [f"-DKNOTFLOW_HAVE_{name}" for name in variants]
    units[folder / "dispatch.o"] = [*have, str(SOURCES / "dispatch.cpp")]
    if driver is not None:
        units[folder / "driver.o"] = [f"-I{SOURCES}", str(driver)]
    commands = [
        [*compiler, *FLAGS.split(), *more, "-c", *unit, "-o", str(made)] for made, unit in units.items()
    ]
    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(_run, commands))
    return list(units)


def _link(compiler: Sequence[str], objects: Sequence[Path], library: Path) -> None:
    command = [*compiler, "-shared", *map(str, objects), "-o", str(library)]
    if sys.platform != "linux":
        _run(command)
        return
    # Hide symbols from archives, and refuse undefined symbols now instead of at loading.
    command += ["-Wl,--exclude-libs,ALL", "-Wl,--as-needed", "-Wl,-z,defs"]
    try:
        _run([*command, "-static-libstdc++", "-static-libgcc"])
    except CompilationError:  # static archives are not installed everywhere
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
    """Run as a program. Returns 1 if the compiler failed, but 0 if there is none."""
    parser = argparse.ArgumentParser(description="Compile the native kernels of knotflow.")
    parser.add_argument(
        "--driver", type=Path, help="a C++ file with a main, to build a program with the kernels"
    )
    parser.add_argument("--out", type=Path, help="the program to build")
    parser.add_argument("--flags", default="", help="more flags for compiler and linker")
    asked = parser.parse_args()
    if (asked.driver is None) != (asked.out is None) or (asked.flags and asked.driver is None):
        parser.error("--driver and --out go together, and --flags needs both.")
    try:
        if asked.driver is None:
            build()
        else:
            build_program(asked.driver, asked.out, shlex.split(asked.flags))
    except CompilationError as error:
        print(f"No native kernels: {error}\nTo continue without them, set {SWITCH}=off.", file=sys.stderr)
        return 1
    except NotBuiltError as reason:
        print(f"No native kernels: {reason}.", file=sys.stderr)
        return 0 if asked.driver is None else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
