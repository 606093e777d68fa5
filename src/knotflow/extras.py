"""Packages that only some users need: what to do when one is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MODULES: Final = {
    "analysis": {"arviz-stats": "arviz_stats", "POT": "ot", "pymbar": "pymbar"},
    "molecules": {
        "h5py": "h5py",
        "mdtraj": "mdtraj",
        "openmm": "openmm",
        "PeptideBuilder": "PeptideBuilder",
        "tables": "tables",
    },
    "plot": {"jinja2": "jinja2", "matplotlib": "matplotlib"},
    "train": {"lightning": "lightning", "tensorboard": "tensorboard"},
}
"""Extras of knotflow that long work needs: names of their packages, and of the modules to import."""


def need(work: str, *extras: str) -> None:
    """Say at once, not after minutes, which packages some work lacks; nothing is imported.

    Args:
        work: What needs them, as in "the quickstart".
        extras: Of `MODULES`.

    Raises:
        ModuleNotFoundError: with all that is missing, and the remedy.
    """
    missing = {
        extra: [name for name, module in MODULES[extra].items() if importlib.util.find_spec(module) is None]
        for extra in extras
    }
    names = [name for found in missing.values() for name in found]
    if names:
        lacking = ",".join(extra for extra in extras if missing[extra])
        raise ModuleNotFoundError(
            f"{', '.join(names)} missing for {work}; run: pip install 'knotflow[{lacking}]'"
        )


@contextmanager
def optional(product: str, package: str, extra: str) -> Iterator[None]:
    """Say how to install an optional package if it turns out to be missing when it is imported.

    Args:
        product: What the package is needed for, in the plural.
        package: Its name.
        extra: The extra of knotflow that brings it.

    Raises:
        ModuleNotFoundError: with the remedy, if the body raised one.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{product} need {package}, not installed here; run: pip install 'knotflow[{extra}]'"
        ) from None
