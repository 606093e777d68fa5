"""Wells of angles, found in samples of mixtures of von Mises densities."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knotflow.statistics.wells import BINS, FEWEST, well_edges, well_numbers

Parts = list[tuple[float, float, int]]


def sample(parts: Parts, seed: int = 0) -> np.ndarray:
    """Angles of wells with given middles, concentrations and numbers of points; in an order of no meaning."""
    random = np.random.default_rng(seed)
    return random.permutation(np.concatenate([random.vonmises(m, k, n) for m, k, n in parts]))


@pytest.mark.parametrize(
    "parts",
    [
        [(-1.4, 8.0, 3000), (1.0, 8.0, 2000)],
        [(math.pi, 8.0, 3000), (0.0, 8.0, 2000)],  # across the seam
        [(-2.1, 12.0, 3000), (0.0, 12.0, 500), (2.1, 12.0, 2000)],
        [(-1.4, 6.0, 9900), (1.0, 10.0, 100)],  # one in a hundred
        [(-2.6, 12.0, 5000), (-1.2, 12.0, 5000), (1.0, 10.0, 100)],
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_wells_are_found(parts: Parts, seed: int) -> None:
    x = sample(parts, seed)
    edges = well_edges(x)
    assert len(edges) == len(parts) and (np.diff(edges) > 0).all() and (abs(edges) <= math.pi).all()
    numbers = well_numbers([m for m, _, _ in parts], edges)
    assert sorted(numbers) == list(range(len(parts))), "each middle is in a well of its own"
    counts = np.bincount(well_numbers(x, edges), minlength=len(parts))[numbers]
    expected = np.array([n for _, _, n in parts])
    assert (abs(counts - expected) < 0.25 * expected.min() + 5).all()


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(0).uniform(-math.pi, math.pi, 5000),
        sample([(0.3, 2.0, 5000)]),
        sample([(math.pi, 40.0, 5000)]),
        sample([(-0.4, 4.0, 3000), (0.4, 4.0, 3000)]),  # no gap between them
        sample([(-1.4, 8.0, 3000), (1.0, 30.0, FEWEST // 2)]),  # too few
        np.zeros(100),
        np.zeros(0),
    ],
    ids=["flat", "broad", "narrow", "merged", "few", "constant", "none"],
)
def test_one_well_has_no_edges(x: np.ndarray) -> None:
    edges = well_edges(x)
    assert len(edges) == 0 and edges.dtype == np.float64
    assert (well_numbers(x, edges) == 0).all()


WELLS = st.lists(st.tuples(st.integers(200, 2000), st.floats(8, 30)), min_size=1, max_size=3)


def mixture(wells: list[tuple[int, float]], seed: int) -> np.ndarray:
    """Wells at equal distances on a little background, so that gaps are not empty."""
    parts = [(2 * math.pi * i / len(wells), k, n) for i, (n, k) in enumerate(wells)]
    return sample([*parts, (0.0, 0.0, 100)], seed)


@settings(max_examples=40, deadline=None)
@given(WELLS, st.integers(0, 2**31), st.integers(1, BINS - 1))
def test_wells_turn_with_the_points(wells: list[tuple[int, float]], seed: int, bins: int) -> None:
    """By whole bins of the histogram: the same points are together."""
    x = mixture(wells, seed)
    turned = x + 2 * math.pi * bins / BINS
    first, second = (well_numbers(y, well_edges(y)) for y in (x, turned))
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    assert len(pairs) == len(set(first.tolist())) == len(set(second.tolist()))


@settings(max_examples=40, deadline=None)
@given(WELLS, st.integers(0, 2**31))
def test_wells_are_a_partition(wells: list[tuple[int, float]], seed: int) -> None:
    """Every angle is in one well, the same after a turn; every well is the arc from its edge to the next."""
    x = mixture(wells, seed)
    edges = well_edges(x)
    assert len(edges) != 1 and (len(wells) == 1 or len(edges) >= len(wells))
    numbers = well_numbers(x, edges)
    inside = (x % (2 * math.pi) + math.pi) % (2 * math.pi) - math.pi
    far = np.abs(inside[:, None] - edges).min(-1, initial=9.0) > 1e-9
    assert (well_numbers(x + 2 * math.pi, edges)[far] == numbers[far]).all()
    for number, low in enumerate(edges):
        length = (edges[(number + 1) % len(edges)] - low) % (2 * math.pi)
        expected = (inside - low) % (2 * math.pi) < length
        assert ((numbers == number) == expected)[far].all()
    assert set(numbers.tolist()) == set(range(max(1, len(edges)))), "no well is empty"
    assert np.bincount(numbers).min() >= min(FEWEST, len(x))


def test_shapes_and_edges_by_hand() -> None:
    angles = np.array([[-3.0, -1.0, 0.5], [1.5, 3.1, 7.0]])
    assert well_numbers(angles, [-2.0, 0.0, 1.0]).tolist() == [[2, 0, 1], [2, 2, 1]]
    assert well_numbers(angles, []).tolist() == [[0] * 3] * 2
