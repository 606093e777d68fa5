"""Names of a package that are imported when first used, so that commands and workers start at once."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    The package lists its names in ``__all__``, and imports them under ``if TYPE_CHECKING:``. Type checkers
    and editors follow these imports. Python skips them: here they are read from the source of the package,
    to know where each name lives.

    Args:
        package: Its ``__name__``.
        modules: Modules inside the package that can be reached as its attributes, too.
    """

    @cache
    def homes() -> dict[str, tuple[str, str]]:
        """Module of each name, and what it is called there."""
        tree = ast.parse(vars(sys.modules[package])["__loader__"].get_source(package))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        found = {a.asname or a.name: (str(node.module), a.name) for node in imports for a in node.names}
        return {name: found[name] for name in sys.modules[package].__all__}

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes()[name]
        value = getattr(import_module(module), original)
        # From now on Python finds it without asking here.
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *homes(), *modules})
