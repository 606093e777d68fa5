"""The compiled kernels: found, checked and loaded once, with a message if there are none.

The environment variable ``KNOTFLOW_KERNELS`` selects them. ``on``, the default, uses the best instruction set
that was built and that this processor supports. The name of an instruction set uses that one, ``off`` none.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple

log = logging.getLogger("knotflow")

SWITCH: Final = "KNOTFLOW_KERNELS"
FILE: Final = Path(__file__).with_name("_native.so")

ABI: Final = 4
"""Version of the library's functions and their arguments; must equal ``ABI`` in ``dispatch.cpp``."""

AGAIN: Final = "reinstall knotflow"


class _Found(NamedTuple):
    """The library, or the reason why there is none and the level at which to log it."""

    library: ctypes.CDLL | None
    reason: str = ""
    level: int = logging.WARNING


_lock = threading.RLock()
_found: _Found | None = None
_threads = False
_told = False


def native() -> ctypes.CDLL | None:
    """The library, ready to be called, or None if splines run in torch.

    Raises:
        ValueError: if ``KNOTFLOW_KERNELS`` names something unknown or unavailable.
    """
    library = _find().library
    if library is not None and not _threads:
        _connect_threads(library)
    return library


def engine() -> str:
    """A short description of what computes splines on the CPU. Raises the errors of `native`."""
    found = _find()
    if found.library is None:
        return f"torch (no native kernels: {found.reason})"
    return f"native kernels ({found.library.knotflow_isa().decode()})"


def tell_once() -> None:
    """If there are no kernels, log once per process why, and what to do."""
    global _told
    if _told:
        return
    found = _find()
    with _lock:
        if not _told and found.library is None:
            sentence = "Splines run in plain torch, more slowly: no native kernels, %s."
            log.log(found.level, sentence, found.reason)
        _told = True


def _find() -> _Found:
    global _found
    if _found is None:
        with _lock:
            if _found is None:
                _found = _choose(_load(), os.environ.get(SWITCH) or "on")
    return _found


def _load() -> _Found:
    """The library next to this file, if it is usable."""
    if sys.platform == "win32":
        return _Found(None, "there are none for Windows", logging.INFO)
    if not FILE.exists():
        return _Found(None, f"none were built; install a C++ compiler and {AGAIN}")
    try:
        library = ctypes.CDLL(str(FILE))
    except OSError as error:
        return _Found(None, f"they cannot be loaded ({error}); {AGAIN}")
    # A library without this function is not ours.
    if not hasattr(library, "knotflow_abi") or library.knotflow_abi() != ABI:
        return _Found(None, f"they belong to another version; {AGAIN}")
    library.knotflow_isa.restype = ctypes.c_char_p
    library.knotflow_supported.argtypes = [ctypes.c_int]
    library.knotflow_supported.restype = ctypes.c_char_p
    library.knotflow_use.argtypes = [ctypes.c_char_p]
    library.knotflow_parallel.argtypes = [ctypes.c_void_p]
    library.knotflow_parallel.restype = None
    library.knotflow_run.argtypes = [ctypes.c_void_p]
    return _Found(library)


def _choose(found: _Found, wanted: str) -> _Found:
    """The library as the user wants it."""
    if wanted == "off":
        return _Found(None, f"turned off by {SWITCH}=off", logging.INFO)
    if wanted == "on":
        return found
    if found.library is None:
        raise ValueError(
            f"expected {SWITCH} to be on or off, got {wanted!r}: no native kernels, {found.reason}."
        )
    if found.library.knotflow_use(wanted.encode()) != 0:
        names = ", ".join(["on", "off", *supported(found.library)])
        raise ValueError(f"expected {SWITCH} to be one of {names} on this machine, got {wanted!r}.")
    return found


def supported(library: ctypes.CDLL) -> list[str]:
    """Instruction sets that were built and that this processor supports, best first."""
    names: list[str] = []
    while (name := library.knotflow_supported(len(names))) is not None:
        names.append(name.decode())
    return names


def _connect_threads(library: ctypes.CDLL) -> None:
    """Let kernels use the threads of torch; without OpenMP they run on one thread."""
    global _threads
    import torch  # noqa: F401  (loads its OpenMP into the process)

    with _lock:
        if not _threads:
            function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
            library.knotflow_parallel(ctypes.cast(function, ctypes.c_void_p) if function else None)
            _threads = True
