"""Pictures of trainings."""

import numpy as np
import pytest

from knotflow.report.curve_plots import draw_curves


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one curve, got none"):
        draw_curves({})


def test_curves_pair_points_with_lines() -> None:
    steps = np.arange(100)
    figure = draw_curves(
        {"a": (steps, -np.sqrt(steps)), "b": (steps, 1.0 - steps)}, {"a": (steps[::10], 0.1 * steps[::10])}
    )
    axis = figure.axes[0]
    assert axis.get_yscale() == "linear"
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["a", "b"]
    points, line, other = axis.lines
    assert points.get_color() == line.get_color() != other.get_color()
    assert points.get_marker() not in ("", "None")
    assert line.get_alpha() < 1


@pytest.mark.parametrize(
    ("values", "log", "expected"),
    [
        ([1e3, 1e2, 1.0], None, "log"),
        ([3.0, 2.0, 1.0], None, "linear"),
        ([1e3, 1.0, -1.0], None, "linear"),
        ([1e3, np.nan, 1.0], None, "log"),
        ([3.0, 2.0, 1.0], True, "log"),
        ([1e3, 1e2, 1.0], False, "linear"),
    ],
)
def test_the_axis_of_curves_fits_the_values(values, log, expected) -> None:
    figure = draw_curves({"loss": (np.arange(3), np.array(values))}, label="loss", log=log)
    assert figure.axes[0].get_yscale() == expected
    assert figure.axes[0].get_ylabel() == "loss"


def test_curves_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'a' needs as many values as steps.*\(3,\) and \(4,\)"):
        draw_curves({"a": (np.arange(3), np.ones(4))})
