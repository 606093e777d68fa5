"""What ends a command before its time: Ctrl-C, or SIGTERM from a queueing system or a container."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from knotflow.cli.output import plain_console, print_line

TERMINATED: Final = 128 + signal.SIGTERM
INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit statuses, as shells give them."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came; commands end as with Ctrl-C, but for the exit status."""


def exit_status(stop: KeyboardInterrupt) -> int:
    """The exit status of a command that was stopped."""
    return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED


@contextmanager
def terminable() -> Iterator[None]:
    """Answer SIGTERM at once, like Ctrl-C; a second one ends the process without any clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def stop(number: int, frame: Any) -> None:
        nonlocal came
        came = True
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except SystemExit as end:
        if came and end.code != TERMINATED:  # between pieces of work, or a library caught it
            print_line(plain_console(stderr=True), "Stopped.")
            sys.exit(TERMINATED)
        raise
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
