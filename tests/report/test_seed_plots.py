"""Pictures of seeds: every value is drawn where it belongs, and none is lost."""

import io
import sys
from dataclasses import replace

import numpy as np
import pytest

from knotflow.report.seed_plots import SeedGroup, draw_seeds


def group(label: str = "B-spline", kind: str = "recipe", n: int = 4, **more) -> SeedGroup:
    values = {"NLL": -210.0 + np.arange(n), "FME": 1.0 + 0.1 * np.arange(n)}
    return SeedGroup(label, kind, values, **more)


def test_a_dot_for_each_seed_and_a_bar_for_the_mean() -> None:
    figure = draw_seeds([group(kind="as published", n=3), group()])
    nll, fme = figure.axes
    assert [axis.get_xlabel() for axis in figure.axes] == ["NLL", "FME"]
    assert [text.get_text() for text in nll.get_yticklabels()] == [
        "B-spline\nas published",
        "B-spline\nrecipe",
    ]
    first, bar, second, other_bar = nll.lines
    np.testing.assert_array_equal(first.get_xdata(), [-210, -209, -208])
    np.testing.assert_array_equal(second.get_xdata(), [-210, -209, -208, -207])
    np.testing.assert_array_equal(bar.get_xdata(), [-209, -209])
    np.testing.assert_array_equal(other_bar.get_xdata(), [-208.5, -208.5])
    assert np.abs(first.get_ydata() - 0).max() < 0.5 > np.abs(second.get_ydata() - 1).max()
    assert len(set(second.get_ydata())) == 4, "seeds lie side by side"
    assert first.get_color() != second.get_color() and first.get_marker() != second.get_marker()
    assert nll.get_ylim()[0] > nll.get_ylim()[1], "the first group is on top"
    np.testing.assert_allclose(fme.lines[0].get_xdata(), [1.0, 1.1, 1.2])
    assert not figure.legends


def test_groups_of_a_kind_look_alike() -> None:
    dots = draw_seeds([group("a"), group("b")]).axes[0].lines[::2]
    assert dots[0].get_color() == dots[1].get_color() and dots[0].get_marker() == dots[1].get_marker()


def test_seeds_without_a_value_are_crosses_on_the_edge() -> None:
    values = {"NLL": np.array([1.0, np.nan, np.inf]), "FME": np.full(3, np.nan)}
    figure = draw_seeds([replace(group(), values=values)])
    dots, bar, crosses = figure.axes[0].lines
    np.testing.assert_array_equal(dots.get_xdata(), [1.0])
    np.testing.assert_array_equal(bar.get_xdata(), [1.0, 1.0])
    np.testing.assert_array_equal(crosses.get_xdata(), [0.98, 0.98])
    assert crosses.get_transform() == figure.axes[0].get_yaxis_transform()
    assert len(figure.axes[1].lines) == 2, "no mean of nothing"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["no result"]


def test_values_to_compare_with() -> None:
    figure = draw_seeds([group(expected={"NLL": (-205.0, 2.0)})], expected="paper")
    (drawn,) = figure.axes[0].containers
    assert drawn.lines[0].get_xdata() == [-205.0]
    np.testing.assert_allclose(drawn.lines[2][0].get_segments()[0][:, 0], [-207.0, -203.0])
    assert not figure.axes[1].containers
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["paper"]
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=40)
    assert content.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("values", "expected", "scale"),
    [
        ([1.0, 200.0], None, "log"),
        ([1.0, 50.0], None, "linear"),
        ([1.0, 50.0], 500.0, "log"),
        ([-1.0, 500.0], None, "linear"),
        ([np.nan, np.nan], None, "linear"),
    ],
)
def test_the_axis_fits_the_values(values, expected, scale) -> None:
    more = {} if expected is None else {"FME": (expected, 1.0)}
    figure = draw_seeds([SeedGroup("a", "b", {"FME": np.array(values)}, more)])
    assert figure.axes[0].get_xscale() == scale


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one group, got none"):
        draw_seeds([])
    for values in ({}, {"NLL": np.ones((2, 2))}, {"NLL": np.ones(2), "FME": np.ones(3)}):
        with pytest.raises(ValueError, match=r"'a' needs a value of each seed .* use NaN for a seed"):
            SeedGroup("a", "b", values)
    with pytest.raises(ValueError, match="all groups need the measures NLL, FME in this order, 'x' has NLL"):
        draw_seeds([group(), SeedGroup("x", "b", {"NLL": np.ones(2)})])


def test_without_matplotlib_the_remedy_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"knotflow\[plot\]"):
        draw_seeds([group()])
