"""OpenMM Systems from their XML, which can run no code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree

from knotflow.extras import optional
from knotflow.sentences import one_line

if TYPE_CHECKING:
    import openmm

_CODE: Final = re.compile(r"PythonForce|&#|<!DOCTYPE|<!ENTITY", re.IGNORECASE)
"""A PythonForce holds a pickle, which OpenMM opens; references and entities are other ways to write it."""


def deserialised(xml: str) -> openmm.System:
    """The System that OpenMM serialised.

    OpenMM's own reader trusts its input: it opens pickles, and some malformed texts crash it. So this checks
    the text first.

    Raises:
        ValueError: if it cannot be read, is something else, or holds a pickle (``PythonForce``), which could
            run any code.
    """
    with optional("molecules"):
        import openmm
    if found := _CODE.search(xml):
        raise ValueError(
            f"a serialised OpenMM System must hold no code, got {found[0]!r}: reading it could run any "
            "program; remove that force."
        )
    try:
        root = ElementTree.fromstring(xml)
        kind = root.get("type", root.tag)
        if (root.tag, kind) != ("System", "System"):
            raise ValueError(f"it is a serialised {kind}")
        system: openmm.System = openmm.XmlSerializer.deserialize(xml)
    except (openmm.OpenMMException, ElementTree.ParseError, ValueError) as error:
        raise ValueError(
            f"xml must be a serialised OpenMM System, but cannot be read: {one_line(error)}."
        ) from None
    return system
