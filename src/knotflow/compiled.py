"""Functions compiled as one graph by ``torch.compile``, with eager PyTorch as fallback."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import torch

log = logging.getLogger("knotflow")

Options = dict[str, Any]
"""Options of Inductor, as ``torch.compile`` takes them."""

P = ParamSpec("P")
R = TypeVar("R")

VARIANTS = 64
"""A function is compiled for at most this many combinations of shapes and of arguments with gradients."""


class Compiled(Generic[P, R]):
    """A function compiled by ``torch.compile`` as a single graph.

    Derivatives with respect to coordinates must be taken inside the function (``torch.func.grad``), because
    PyTorch cannot differentiate twice through a compiled region. If compilation fails (no C++ compiler, a
    function that is not pure torch), the function runs eagerly and says so once; the results are the same up
    to rounding.

    Args:
        function: The function to compile.
        task: The work that is slower without compilation, for the message.
        enabled: Whether to compile at all.
        options: Options of Inductor.
        dynamic: None: once shapes change, compile for all sizes; False: compile for every shape.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        task: str,
        enabled: bool = True,
        options: Options | None = None,
        dynamic: bool | None = False,
    ) -> None:
        self.function, self.task = function, task
        self._called = False
        self._compiled: Callable[P, R] | None = None
        if enabled:
            use_private_cache()
            self._compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, options=options)

    @property
    def compiled(self) -> bool:
        """Whether the next call runs the compiled graph."""
        return self._compiled is not None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._compiled is None:
            return self.function(*args, **kwargs)
        if self._called:
            # New shapes are compiled here, which may fail; then try again below.
            with contextlib.suppress(Exception):
                return self._compiled(*args, **kwargs)
        self._called = True
        try:
            # Numbers that the function reads, such as the ends of a domain, are constants, not inputs. By
            # default PyTorch stops after 8 variants.
            with torch._dynamo.config.patch(specialize_float=True, recompile_limit=VARIANTS):
                return self._compiled(*args, **kwargs)
        except Exception as error:
            # Dynamo, AOTAutograd and Inductor raise too many types to name. If the error was not theirs, the
            # eager call raises it again, in plain words, and the next call may be compiled.
            result = self.function(*args, **kwargs)
            self._compiled = None
            _warn(error, self.task)
            return result


def _warn(error: Exception, task: str) -> None:
    """Log that compilation failed, and what is slower without it."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    # The first line may only say which backend failed; the next one says why.
    reason = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    log.warning("torch.compile failed (%s); %s continues without it, more slowly.", reason, task)


def use_private_cache() -> None:
    """Keep compiled code where only this user can write, unless ``TORCHINDUCTOR_CACHE_DIR`` says where.

    PyTorch loads what it finds in its cache. By default that is a folder in ``/tmp`` with a known name, which
    another user of the machine could have made first.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    with contextlib.suppress(OSError, RuntimeError):  # no home, or none to write to: as PyTorch does
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "knotflow" / "torch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
