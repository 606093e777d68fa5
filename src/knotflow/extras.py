"""Optional packages, and errors that say how to install a missing one."""

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
    "rdkit": {"rdkit": "rdkit"},
    "train": {"lightning": "lightning", "tensorboard": "tensorboard"},
    "xtb": {"tblite": "tblite"},
}
"""For each extra of knotflow, its packages and the modules that they provide."""


def need(work: str, *extras: str) -> None:
    """Check that packages are installed before long work starts; nothing is imported.

    Args:
        work: The work that needs them, as in "the quickstart".
        extras: The extras of `MODULES` that it needs.

    Raises:
        ModuleNotFoundError: names all missing packages and how to install them.
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
    """Say how to install a package of `MODULES` if importing it in this block fails.

    Args:
        product: The things that need the package, in the plural.

    Raises:
        ModuleNotFoundError: names the missing package and how to install it.
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
