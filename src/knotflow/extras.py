"""Packages that only some users need: what to do when one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
            f"{product} need {package}, which is not installed; run: pip install 'knotflow[{extra}]'"
        ) from None
