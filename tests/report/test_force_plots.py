"""Figure 3: the same axes and colours for all flows, and nothing that is beyond them is lost."""

import numpy as np
import pytest

from knotflow.report.figures import png
from knotflow.report.force_plots import ForceColumn, draw_force_columns, draw_forces, reach_of


def column(title: str = "B-spline", scale: float = 1.0, clash: float = 1e9) -> ForceColumn:
    rng = np.random.default_rng(0)
    true = 100 * rng.normal(size=(200, 5, 3))
    samples = true.copy()
    samples[:2] *= clash
    return ForceColumn(title, {"test frames": (true, scale * true), "samples": (samples, scale * true)})


def test_axes_are_those_of_the_true_forces_on_data() -> None:
    one, other = column(), column("RQ-spline", scale=50.0)
    sizes = np.sort(np.abs(one.panels["test frames"][0]).ravel())
    reach = reach_of([one, other])
    assert 1.1 * sizes[-10] < reach < 1.1 * sizes[-1], "99.9 % of 2 x 3,000 components"
    figures = draw_force_columns([one, other])
    assert [figure.get_suptitle() for figure in figures] == ["B-spline", "RQ-spline"]
    panels = [axis for figure in figures for axis in figure.axes]
    assert [axis.get_title() for axis in panels] == ["test frames", "samples"] * 2
    assert {axis.get_ylim() for axis in panels} == {axis.get_xlim() for axis in panels} == {(-reach, reach)}
    limits = {image.get_clim() for axis in panels for image in axis.collections}
    assert len(limits) == 1


def test_what_is_beyond_is_counted() -> None:
    (figure,) = draw_force_columns([column()])
    above, below = figure.axes
    true = np.abs(column().panels["samples"][0])
    share = 100 * (true > above.get_xlim()[1]).mean()
    assert [text.get_text() for text in below.texts] == [f"{share:.2g} % beyond"]
    counts = below.collections[0].get_array()
    assert counts.sum() == round(3000 * (1 - share / 100))


def test_without_forces() -> None:
    empty = ForceColumn("none", {"test frames": (np.empty((0, 5, 3)), np.empty((0, 5, 3)))})
    assert reach_of([empty]) == 1.0
    (figure,) = draw_force_columns([empty])
    assert not figure.axes[0].texts
    with pytest.raises(ValueError, match="at least one flow"):
        draw_force_columns([])


def test_forces_count_components() -> None:
    true = np.random.default_rng(0).normal(0, 100, (20, 4, 3))
    axis = draw_forces("on data", true, true).axes[0]
    assert axis.collections[0].get_array().sum() == (np.abs(true) <= axis.get_xlim()[1]).sum() > 200
    huge = draw_forces("on samples", true * 1e12, true).axes[0]
    assert huge.get_xlim()[1] == 5000
    assert draw_forces("none", true[:0], true[:0]).axes[0].get_title() == "none"


def test_a_png_is_a_png() -> None:
    figure = draw_forces("none", np.zeros((0, 1, 3)), np.zeros((0, 1, 3)))
    assert png(figure).startswith(b"\x89PNG\r\n\x1a\n")
