"""Pictures of maps and their slopes."""

import sys

import numpy as np
import pytest

from knotflow.analysis.learned_maps import LearnedMap
from knotflow.report.figures import png
from knotflow.report.map_plots import MapPanel, draw_accumulation, draw_learned, draw_maps


def accumulation(maps: int = 5) -> MapPanel:
    x = np.linspace(0, 1, 101)
    powers = np.linspace(1, 3, maps)[:, None]
    return MapPanel("maps", x, x**powers, powers * np.maximum(x, 1e-3) ** (powers - 1))


@pytest.mark.parametrize("draw", [draw_accumulation, draw_maps])
def test_nothing_to_draw_is_refused(draw) -> None:
    with pytest.raises(ValueError, match="at least one panel, got none"):
        draw([])


def test_accumulation_lays_thin_lines_over_each_other() -> None:
    few, many = accumulation(5), accumulation(200)
    figure = draw_accumulation([few, many])
    maps, slopes = figure.axes[:2], figure.axes[2:]
    assert [len(axis.lines) for axis in maps] == [5 + 1, 200 + 1]  # and the identity
    assert {axis.get_yscale() for axis in slopes} == {"log"}
    assert {axis.get_box_aspect() for axis in figure.axes} == {1}
    assert slopes[0].get_ylim() == slopes[1].get_ylim()
    assert slopes[0].get_ylim()[0] < few.slopes.min() and slopes[0].get_ylim()[1] > few.slopes.max()
    assert maps[0].get_ylim() == (0, 1)
    assert draw_accumulation([few]).axes[0].lines[0].get_alpha() > maps[0].lines[0].get_alpha()
    assert png(figure)


def test_lines_are_broken_at_the_seam_of_a_circle() -> None:
    x = np.linspace(0, 1, 11)
    y = np.stack([x, (x + 0.35) % 1.0])
    lines = draw_accumulation([MapPanel("circle", x, y, np.ones_like(y))]).axes[0].lines
    assert np.isfinite(lines[0].get_ydata()).all()
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(lines[1].get_ydata())), [6])


@pytest.mark.parametrize(("y", "slopes"), [((5,), (5,)), ((2, 4), (2, 4)), ((2, 5), (3, 5))])
def test_wrong_shapes_of_maps_are_refused(y, slopes) -> None:
    with pytest.raises(ValueError, match=r"'bad' needs x of shape .* give one row for each map"):
        MapPanel("bad", np.ones(5), np.ones(y), np.ones(slopes))


def test_learned_maps_show_slopes_that_are_all_the_same_as_such() -> None:
    x = np.linspace(0, 1, 11)
    learned = LearnedMap("bond 0-1", 3, x, np.stack((x, x)), np.ones((2, 11)) + 1e-15)
    above, below = draw_learned(learned).axes
    assert above.get_title() == "bond 0-1, coupling 3" and len(below.lines) == 2
    low, high = below.get_ylim()
    assert low < 0.6 and high > 1.6


def test_without_matplotlib_the_remedy_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"pictures need matplotlib.*knotflow\[plot\]"):
        draw_accumulation([accumulation()])
