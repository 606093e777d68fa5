"""Optional packages: what to say when one is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MODULES: Final = {
    "analysis": {"arviz-stats": "arviz_stats", "POT": "ot", "pymbar": "pymbar"},
    "ase": {"ase": "ase"},
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
"""Extras of knotflow: names of their packages, and of the modules to import."""


def need(work: str, *extras: str) -> None:
    """Say which packages are missing before long work starts; nothing is imported.

    Args:
        work: What needs the packages, as in "the quickstart".
        extras: Which extras of `MODULES` it needs.

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
def optional(product: str) -> Iterator[None]:
    """Say how to install a package of `MODULES` if it turns out to be missing when it is imported.

    Args:
        product: What the package is needed for, in the plural.

    Raises:
        ModuleNotFoundError: with the remedy, if the body raised one for such a package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        for extra, packages in MODULES.items():
            for package, module in packages.items():
                if module == missing:
                    raise ModuleNotFoundError(
                        f"{product} need {package}, not installed here; run: pip install 'knotflow[{extra}]'"
                    ) from None
        raise
