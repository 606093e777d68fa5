"""Numbers of the paper's tables: means with two standard errors, and their text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and two standard errors; NaN where there are too few values."""
    n = len(values)
    error = 2 * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return (float(np.mean(values)) if n else math.nan), error


def number(value: float, error: float = math.nan) -> str:
    """Two decimals, three for numbers below one, three digits for huge ones; a dash for NaN."""
    if math.isnan(value):
        return "–"
    known = [x for x in (value, error) if not math.isnan(x)]
    form = ".3g" if max(map(abs, known)) >= 1e5 else ",.3f" if abs(value) < 0.9995 else ",.2f"
    return " ± ".join(f"{x:{form}}" for x in known)
