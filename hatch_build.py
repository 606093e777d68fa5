"""Build hook: compiles the native kernels into the wheel, which is a pure one if that cannot be done."""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

KERNELS: Final = "knotflow/kernels"

EVERYWHERE: Final = re.compile(rb"lib(c|m|pthread|dl)\.so|ld-linux")
"""Libraries that every Linux with glibc has."""


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]  # generic only for its own checks
    """Adds ``_native.so`` to a wheel; in an editable installation it lies in the source tree instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say what the wheel then is; `version` is "standard" or "editable"."""
        sources = Path(self.root, "src", KERNELS)
        builder = _load(sources / "build.py")
        self.folder = tempfile.TemporaryDirectory()
        editable = version == "editable"
        library = Path(sources if editable else self.folder.name, builder.LIBRARY.name)
        try:
            builder.build(library)
        except builder.NotBuiltError as reason:
            if editable:
                library.unlink(missing_ok=True)  # a build of other sources
            self.app.display_warning(f"knotflow is installed without native kernels: {reason}")
            return
        if not editable:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform(library)}"
            build_data["force_include"][str(library)] = f"{KERNELS}/{library.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel by now."""
        self.folder.cleanup()


def _load(file: Path) -> ModuleType:
    """A module by its path: importing it from knotflow would need what is not installed here."""
    spec = importlib.util.spec_from_file_location("knotflow_kernels_build", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _platform(library: Path) -> str:
    """The platform part of the tag; no Python is in it, because the library uses nothing of Python."""
    if sys.platform != "linux":
        return next(platform_tags())
    name = re.sub(r"\W", "_", sysconfig.get_platform())
    strings = library.read_bytes().split(b"\0")
    needed = [text for text in strings if re.fullmatch(rb"(lib|ld-)[\w+.-]+\.so[.\d]*", text)]
    glibc = [tuple(map(int, text[6:].split(b".")[:2])) for text in strings if re.match(rb"GLIBC_\d", text)]
    if not glibc or not all(EVERYWHERE.match(text) for text in needed):
        return name
    # PEP 600: runs wherever glibc is as new as its newest function in use. No installer knows less than 2.17
    # on all processors.
    major, minor = max([*glibc, (2, 17)])
    return name.replace("linux", f"manylinux_{major}_{minor}", 1)
