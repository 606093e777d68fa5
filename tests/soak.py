"""How much longer tests of chance run in ``make soak``."""

import os


def times(n: int) -> int:
    """A number of repetitions, many more in ``make soak``."""
    return n * int(os.environ.get("KNOTFLOW_SOAK", "1"))
