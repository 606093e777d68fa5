"""OpenMM Systems from their XML, which can run no code."""

from __future__ import annotations

import re
from typing import Any, Final

from knotflow.extras import optional

_CODE: Final = re.compile(r"PythonForce|&#|<!DOCTYPE|<!ENTITY", re.IGNORECASE)
"""A PythonForce holds a pickle, which OpenMM opens; references and entities are other ways to write it."""


def deserialised(xml: str) -> Any:
    """The object that OpenMM serialised, a System in most cases.

    Raises:
        ValueError: if it cannot be read, or holds a pickle (``PythonForce``), which could run any code.
    """
    with optional("molecules"):
        import openmm
    if found := _CODE.search(xml):
        raise ValueError(
            f"a serialised OpenMM System must hold no code, got {found[0]!r}: reading it could run any "
            "program; remove that force."
        )
    try:
        return openmm.XmlSerializer.deserialize(xml)
    except openmm.OpenMMException as error:
        raise ValueError(f"xml must be a serialised OpenMM System, but cannot be read: {error}") from None
