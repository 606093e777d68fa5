"""Error bars: those of textbooks where there are some, and as wide as the truth is far elsewhere."""

import math

import numpy as np
import pytest
from scipy import stats

from knotflow.statistics.estimates import (
    FEWEST_BLOCKS,
    Estimate,
    blocks,
    bootstrap,
    mean,
    over_replicas,
    share_interval,
    spread,
    student,
)


def correlated(random: np.random.Generator, replicas: int = 20, length: int = 30) -> tuple:
    """Values that share most of their noise with their replica."""
    replica = np.repeat(np.arange(replicas), length)
    return random.normal(size=len(replica)) + random.normal(size=replicas)[replica], replica


def test_many_replicas_are_the_blocks() -> None:
    replica = np.array([7, 3, 7, *range(20, 30)])
    label = blocks(replica)
    assert label[0] == label[2] != label[1]
    assert sorted(np.unique(label)) == list(range(12))


@pytest.mark.parametrize("replicas", [1, 3, 9])
def test_few_replicas_are_cut_into_pieces_in_order(replicas: int) -> None:
    replica = np.tile(np.arange(replicas), 100)  # rows of replicas take turns, as in files
    label = blocks(replica)
    assert len(np.unique(label)) >= FEWEST_BLOCKS
    for number in range(replicas):
        own = label[replica == number]
        assert (np.diff(own) >= 0).all() and len(np.unique(own)) == math.ceil(FEWEST_BLOCKS / replicas)
        assert not set(own) & set(label[replica != number])
        assert np.ptp(np.bincount(own - own[0])) <= 1


def test_hardly_any_rows() -> None:
    assert list(blocks(np.array([5]))) == [0]
    assert list(blocks(np.array([], dtype=int))) == []
    assert math.isnan(mean(np.array([])).value)
    one = mean(np.array([2.0]))
    assert one.value == 2.0 and math.isnan(one.error)


def test_mean_of_independent_values_has_the_textbook_error() -> None:
    values = np.random.default_rng(0).normal(size=50)
    found = mean(values)
    assert found.error == pytest.approx(student(50) * values.std(ddof=1) / math.sqrt(50))
    assert found.value == values.mean()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 10, 20, 1000])
def test_errors_of_few_blocks_are_those_of_student(n: int) -> None:
    exact = stats.t.ppf(0.975, n - 1) / stats.norm.ppf(0.975)
    assert student(n) == pytest.approx(exact, rel={2: 1e-6, 3: 0.04, 4: 0.01}.get(n, 0.003))
    assert math.isnan(student(1))


def test_error_over_replicas_is_that_of_their_means_weighted_by_length() -> None:
    values, replica = correlated(np.random.default_rng(1))
    keep = np.random.default_rng(2).random(len(values)) < 0.6  # of unequal length
    values, replica = values[keep], replica[keep]
    parts = [values[replica == k] for k in range(20)]
    squares = [(len(part) / len(values) * (part.mean() - values.mean())) ** 2 for part in parts]
    found = over_replicas(values, 3 * replica + 7)
    assert found.value == values.mean() and found.error == pytest.approx(
        student(20) * math.sqrt(sum(squares) * 20 / 19)
    )


def test_bootstrap_agrees_with_linearisation() -> None:
    values, replica = correlated(np.random.default_rng(3))
    (error,) = bootstrap(lambda rows: [values[rows].mean()], replica, repeats=2000)
    assert error == pytest.approx(mean(values, replica).error, rel=0.1)
    ratio = values.mean() / (values**2).mean()
    influence = (values - values.mean()) / values.mean() - (values**2 - (values**2).mean()) / (
        values**2
    ).mean()
    shuffled = np.arange(len(values))
    by_bootstrap = bootstrap(lambda rows: values[rows].mean() / (values[rows] ** 2).mean(), shuffled)
    assert by_bootstrap == pytest.approx(abs(ratio) * spread(influence / len(values)), rel=0.15)


def test_two_sets_are_resampled_independently() -> None:
    random = np.random.default_rng(4)
    a, b = random.normal(size=300), 2 * random.normal(size=200)
    error = bootstrap(lambda i, j: a[i].mean() - b[j].mean(), np.arange(300), np.arange(200), repeats=2000)
    assert error == pytest.approx(math.hypot(mean(a).error, mean(b).error), rel=0.08)


def test_bootstrap_covers_the_truth_as_often_as_it_should() -> None:
    """Medians of correlated values: deviations in units of the error have a spread of one."""
    random = np.random.default_rng(5)
    z = []
    for trial in range(150):
        values, replica = correlated(random)
        error = bootstrap(lambda rows, v=values: np.median(v[rows]), replica, seed=trial, repeats=40)
        z.append(float(np.median(values) / error))
    assert np.std(z) == pytest.approx(1.0, abs=0.2)
    assert np.mean(np.abs(z) < 2) > 0.9


def test_bootstrap_is_seeded() -> None:
    values = np.random.default_rng(6).normal(size=40)
    errors = [bootstrap(lambda rows: values[rows].mean(), np.arange(40), seed=seed) for seed in (0, 0, 1)]
    assert errors[0] == errors[1] != errors[2]


def test_no_error_bar_where_it_could_not_be_honest() -> None:
    rare = np.zeros(30)
    rare[0] = 1.0  # missing from a third of the repeats
    with np.errstate(divide="ignore"):
        errors = bootstrap(lambda rows: [np.log(rare[rows].mean()), rare[rows].mean()], np.arange(30))
    assert math.isnan(errors[0]) and errors[1] > 0
    assert math.isnan(bootstrap(lambda rows: rows.mean(), np.zeros(30, dtype=int)))


def test_scaling_an_estimate_scales_its_error() -> None:
    scaled = Estimate(2.0, 0.5) * -3.0
    assert (scaled.value, scaled.error) == (-6.0, 1.5)


def test_error_bars_are_those_of_independent_replicas() -> None:
    """Replicas of unequal length with common shifts: the error bar covers the truth as often as it should."""
    random = np.random.default_rng(0)
    lengths = random.integers(5, 40, size=30)
    replica = np.repeat(np.arange(30), lengths)
    z = []
    for _ in range(400):
        values = random.normal(size=len(replica)) + random.normal(size=30)[replica]
        average = over_replicas(values, replica)
        z.append(average.value / average.error)
    assert np.std(z) == pytest.approx(1.0, abs=0.15)


def test_one_replica_has_no_error_bar() -> None:
    average = over_replicas(np.arange(5.0), np.zeros(5, dtype=np.int32))
    assert average.value == 2.0 and math.isnan(average.error) and str(average) == "2"
    assert str(Estimate(-23.8412, 0.0214)) == "-23.841 ± 0.021"
    assert str(mean(np.array([1.0, 3.0]))) == "2.0 ± 6.5", "two values hardly have a spread"


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (math.nan, math.nan, "–"),
        (math.nan, 1.0, "–"),
        (math.inf, math.nan, "inf"),
        (3.14159, math.nan, "3.142"),
        (10_032.0, math.nan, "10,032"),
        (301.234, 2.345, "301.2 ± 2.3"),
        (283.2, 12.7, "283 ± 13"),
        (1234.0, 234.0, "1234 ± 234"),
        (3.0e-4, 2.0e-5, "(3.00 ± 0.20)e-4"),
        (-2.0e-6, 1.3e-6, "(-2.0 ± 1.3)e-6"),
        (1.0e-7, 2.0e-5, "(0.0 ± 2.0)e-5"),
        (3.21e9, 2.1e8, "(3.21 ± 0.21)e9"),
        (0.0023, 0.0027, "0.0023 ± 0.0027"),
        (5.0, 0.0, "5"),
    ],
)
def test_numbers_as_text(value: float, error: float, text: str) -> None:
    assert str(Estimate(value, error)) == text


def test_estimates_from_json() -> None:
    assert Estimate.read({"value": 1, "error": 0.5}) == Estimate(1.0, 0.5)
    found = Estimate.read({"slope": None}, "slope", "slope_error")
    assert math.isnan(found.value) and math.isnan(found.error)


@pytest.mark.parametrize("count", [0, 1, 7, 50, 100])
def test_share_interval_is_that_of_wilson(count: int) -> None:
    interval = stats.binomtest(count, 100).proportion_ci(2 * stats.norm.cdf(2) - 1, method="wilson")
    assert share_interval(count, 100, 2.0) == pytest.approx((interval.low, interval.high))
