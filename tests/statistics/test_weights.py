"""Weights: laws for any of them, closed forms for Gaussians, known tails for Pareto's k."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import special, stats

from knotflow.statistics.weights import (
    RunningShare,
    clipped,
    effective_share,
    log_mean_exp,
    log_weights,
    normalised,
    pareto_k,
    resampled,
    systematic,
)

finite = st.floats(-1e4, 1e4)
some = arrays(np.float64, st.integers(1, 60), elements=st.one_of(finite, st.just(-np.inf)))
usable = some.filter(lambda log_w: np.isfinite(log_w).any())


@given(usable, st.floats(-1e6, 1e6))
def test_effective_share_is_a_share_and_knows_no_scale(log_w: np.ndarray, shift: float) -> None:
    share, n = effective_share(log_w), len(log_w)
    assert 1 / n * (1 - 1e-12) <= share <= 1 + 1e-12
    assert effective_share(log_w + shift) == pytest.approx(share, rel=1e-6)
    assert effective_share(log_w[::-1]) == pytest.approx(share)
    assert effective_share(np.append(log_w, -np.inf)) == pytest.approx(share * n / (n + 1))


@given(usable, st.floats(0, 0.5))
def test_clipping_only_cuts_the_largest_and_helps(log_w: np.ndarray, share: float) -> None:
    cut = clipped(log_w, share)
    assert effective_share(cut) >= effective_share(log_w) * (1 - 1e-12)
    assert (cut <= log_w).all() and (cut < log_w).sum() <= math.ceil(share * len(log_w))
    assert np.array_equal(np.isfinite(cut), np.isfinite(log_w))


def test_clipping_cuts_one_weight_of_ten_thousand() -> None:
    log_w = np.random.default_rng(0).normal(size=10_000)
    cut, ordered = clipped(log_w), np.sort(log_w)
    assert (cut != log_w).sum() == 1 and cut.max() == ordered[-2]


@given(some)
def test_sums_are_those_of_scipy(log_w: np.ndarray) -> None:
    expected = special.logsumexp(log_w) - math.log(len(log_w))
    assert log_mean_exp(log_w) == pytest.approx(expected, rel=1e-12, abs=1e-9)
    if np.isfinite(log_w).any():
        np.testing.assert_allclose(normalised(log_w), special.softmax(log_w), atol=1e-14)


def test_all_weights_zero_is_not_a_crash() -> None:
    nothing = np.full(30, -np.inf)
    assert log_mean_exp(nothing) == -math.inf and log_mean_exp(np.array([])) == -math.inf
    assert math.isnan(effective_share(nothing)) and math.isnan(pareto_k(nothing))
    assert math.isnan(effective_share(np.array([])))
    assert np.array_equal(clipped(nothing), nothing)
    with pytest.raises(ValueError, match="all weights are zero"):
        resampled(nothing, 3, np.random.default_rng(0))


def test_weights_are_zero_for_what_is_not_allowed_or_not_finite() -> None:
    log_p = np.array([1.0, 1.0, np.nan, -np.inf, 1.0, 1.0, -np.inf])
    u = np.array([2.0, 2.0, 2.0, 2.0, np.inf, np.nan, np.inf])
    found = log_weights(log_p, u, np.array([True, False, True, True, True, True, True]))
    assert found[0] == -3.0 and (found[1:] == -np.inf).all()


@pytest.mark.parametrize("scale", [0.5, 0.8, 1.1])
def test_effective_share_of_gaussians_in_closed_form(scale: float) -> None:
    """Samples of N(0, 1) for N(0, s²): the share tends to s sqrt(2 - s²)."""
    x = np.random.default_rng(1).normal(size=400_000)
    log_w = log_weights(stats.norm.logpdf(x), x**2 / (2 * scale**2))
    assert effective_share(log_w) == pytest.approx(scale * math.sqrt(2 - scale**2), rel=0.01)
    assert log_mean_exp(log_w) == pytest.approx(math.log(scale * math.sqrt(2 * math.pi)), abs=0.01)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_pareto_k_of_known_tails(k: float) -> None:
    """Weights U^-k; SciPy's maximum likelihood on the same exceedances is near."""
    u = np.random.default_rng(2).random(200_000)
    log_w = -k * np.log(u)
    found = pareto_k(log_w + 123.0)
    assert found == pytest.approx(k, abs=0.06)
    tail = np.sort(np.exp(log_w))[-1342:]
    by_scipy = stats.genpareto.fit(tail[1:] - tail[0], floc=0)[0]
    assert found == pytest.approx(by_scipy, abs=0.05)


def test_pareto_k_where_there_is_no_tail() -> None:
    assert math.isnan(pareto_k(np.zeros(1000)))
    assert math.isnan(pareto_k(np.arange(24.0)))
    lonely = np.full(1000, -np.inf)
    lonely[:3] = [1.0, 2.0, 0.5]
    assert pareto_k(lonely) == math.inf
    assert pareto_k(3000 * np.random.default_rng(3).normal(size=1000)) == math.inf
    assert 1 < pareto_k(30 * np.random.default_rng(3).normal(size=10_000)) < math.inf
    bounded = np.log(np.random.default_rng(3).random(20_000))
    assert pareto_k(bounded) < 0


@given(usable, st.integers(1, 200), st.integers(0, 5))
def test_resampling_follows_weights_up_to_rounding(log_w: np.ndarray, n: int, seed: int) -> None:
    rows = resampled(log_w, n, np.random.default_rng(seed))
    counts = np.bincount(rows, minlength=len(log_w))
    assert len(rows) == n and (np.abs(counts - n * normalised(log_w)) < 1 + 1e-6).all()
    assert np.isfinite(log_w[rows]).all()


@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_effective_sample_size_of_pieces(shift: float) -> None:
    log_w = np.random.default_rng(0).normal(scale=2.0, size=1000)
    log_w[:3] = np.nan, -np.inf, np.inf
    found = RunningShare()
    for part in np.array_split(log_w + shift, 7):
        found.add(part)
    w = np.exp(log_w[3:])
    assert found.share == pytest.approx(w.sum() ** 2 / (1000 * (w**2).sum()), rel=1e-12)
    assert found.n == 1000 and found.not_finite == 3
    nothing = RunningShare()
    nothing.add(np.full(4, -np.inf))
    assert np.isnan(nothing.share) and nothing.not_finite == 4


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 20)), min_size=1, max_size=40),
    st.floats(0, 1, exclude_max=True),
)
def test_rows_come_as_often_as_their_weights_say(weights: list[float], start: float) -> None:
    weight = np.array(weights if any(weights) else [*weights, 1.0])
    n = len(weight)
    rows = systematic(weight, n, start)
    assert len(rows) == n and (np.diff(rows) >= 0).all()
    counts, expected = np.bincount(rows, minlength=n), n * weight / weight.sum()
    assert (np.abs(counts - expected) < 1 + 1e-9).all()
    assert (counts[weight == 0] == 0).all()
    # Averaged over starts, exactly as often.
    starts = (np.arange(200) + 0.5) / 200
    mean = sum(np.bincount(systematic(weight, n, s), minlength=n) for s in starts) / 200
    np.testing.assert_allclose(mean, expected, rtol=0, atol=0.0101)
