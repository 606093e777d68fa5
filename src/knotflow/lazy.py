"""Lazy imports: names of a package that are imported when first used, so that commands start quickly."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Sequence[str] = (), more: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    The package lists its names in ``__all__`` and imports them under ``if TYPE_CHECKING:``. Type checkers and
    editors follow these imports. Python skips them, so here they are read from the source of the package, to
    find the module of each name.

    Args:
        package: Its ``__name__``.
        modules: Modules of the package that are also attributes.
        more: The modules of further names.
    """

    @cache
    def homes() -> dict[str, tuple[str, str]]:
        """The module of each name, and its name there."""
        tree = ast.parse(vars(sys.modules[package])["__loader__"].get_source(package))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        found = {a.asname or a.name: (str(node.module), a.name) for node in imports for a in node.names}
        listed = {name: found[name] for name in sys.modules[package].__all__ if name in found}
        return listed | {name: (module, name) for name, module in (more or {}).items()}

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes()[name]
        value = getattr(import_module(module), original)
        # From now on Python finds it without calling this function.
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *homes(), *modules})
