"""How long tests with random numbers go on: `make soak` repeats them more often than `make test`.

The environment variable ``KNOTFLOW_SOAK`` is the factor; it is read only here.
"""

import os
from typing import Final

FACTOR: Final = int(os.environ.get("KNOTFLOW_SOAK", "1"))


def times(n: int) -> int:
    """How often to do what `make test` does n times."""
    return n * FACTOR
