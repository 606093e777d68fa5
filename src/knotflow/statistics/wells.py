"""Wells of angles: the arcs between the gaps of their density."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

BINS: Final = 72
"""Bins of the histogram in which gaps are looked for: 5 degrees each."""
BLUR: Final = 2.0
"""Standard deviation, in bins, by which the histogram is smoothed."""
DEPTH: Final = 0.5
"""A gap separates two wells if the density there is below this share of the lower of their peaks."""
FEWEST: Final = 20
"""A well holds at least this many points."""


def well_edges(angles: ArrayLike) -> Floats:
    r"""Angles in $[-\pi, \pi)$, increasing, that separate the wells of a sample; none if there is one well.

    The histogram of the sample is smoothed. Its lowest minima become edges, one after the other, as long as
    on both sides of each a peak is at least twice as high and enough points lie there.

    Args:
        angles: The sample in radians, any shape.
    """
    angles = np.asarray(angles, dtype=np.float64).ravel()
    counts, borders = np.histogram(_wrapped(angles), BINS, (-math.pi, math.pi))
    waves = np.fft.rfftfreq(BINS)
    smooth = np.fft.irfft(np.fft.rfft(counts) * np.exp(-2 * (math.pi * BLUR * waves) ** 2), BINS)
    minima = np.flatnonzero((smooth < np.roll(smooth, 1)) & (smooth <= np.roll(smooth, -1)))
    cuts: list[int] = []
    for cut in minima[np.argsort(smooth[minima], kind="stable")].tolist():
        trial = sorted([*cuts, cut])
        if len(trial) == 1 or all(
            smooth[arc].max() * DEPTH > max(smooth[trial[i]], smooth[trial[(i + 1) % len(trial)]])
            and counts[arc].sum() >= FEWEST
            for i, arc in enumerate(_arcs(trial))
        ):
            cuts = trial
    middles = (borders[:-1] + borders[1:]) / 2
    return np.asarray(middles[cuts] if len(cuts) > 1 else [], dtype=np.float64)


def well_numbers(angles: ArrayLike, edges: ArrayLike) -> NDArray[np.int64]:
    """The well of each angle, counted from 0 at the first edge; the arc before the first edge is the last.

    Without edges all angles are in well 0.
    """
    edges = np.asarray(edges, dtype=np.float64)
    number = np.searchsorted(edges, _wrapped(np.asarray(angles, dtype=np.float64)), side="right") - 1
    return np.asarray(number % max(1, len(edges)), dtype=np.int64)


def _wrapped(angles: Floats) -> Floats:
    wrapped: Floats = (angles + math.pi) % (2 * math.pi) - math.pi
    return wrapped


def _arcs(cuts: list[int]) -> list[NDArray[np.int64]]:
    """The bins between each cut and the next, around the circle."""
    ends = [*cuts[1:], cuts[0] + BINS]
    return [np.arange(first, end) % BINS for first, end in zip(cuts, ends, strict=True)]
