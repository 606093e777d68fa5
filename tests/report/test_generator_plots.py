"""Pictures of a generator hold the numbers they were given, and can be told apart without colours."""

import math

import numpy as np
import pytest

from knotflow.analysis.free_energy_profiles import Profile, marginal, profile
from knotflow.analysis.learned_maps import LearnedMap
from knotflow.report import generator_plots as plots


@pytest.fixture
def angles() -> np.ndarray:
    return np.random.default_rng(0).vonmises(-1.0, 2.0, (500, 2))


def test_a_ramachandran_plot_is_a_density(angles: np.ndarray) -> None:
    axis = plots.draw_ramachandran("MD", np.vstack((angles, [[np.nan, 0]]))).axes[0]
    density = np.ma.filled(axis.images[0].get_array(), np.nan)
    assert np.nansum(density) * (360 / plots.RAMACHANDRAN_BINS) ** 2 == pytest.approx(1)
    assert axis.get_title() == "MD" and axis.get_xlabel() == "phi, degrees"
    # Rows of an image are psi: all weight on one frame is one cell of the right place.
    weight = np.zeros(500)
    weight[7] = 1.0
    one = np.ma.filled(plots.draw_ramachandran("one", angles, weight).axes[0].images[0].get_array(), np.nan)
    ((row, column),) = np.argwhere(np.isfinite(one))
    width = 2 * math.pi / plots.RAMACHANDRAN_BINS
    assert (column, row) == tuple((angles[7] + math.pi) // width)


def test_profiles_have_bands_of_two_errors() -> None:
    x = np.linspace(0, 5, 60)
    figure = plots.draw_profiles(
        "phi", {plots.MD: Profile(x, x / 10), plots.FLOW: Profile(x + 1, x * np.nan)}, 0.5
    )
    axis = figure.axes[0]
    assert np.allclose(axis.lines[0].get_ydata(), x - 0.5) and np.allclose(axis.lines[1].get_ydata(), x + 0.5)
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(4.5 + 1.0) and band.min() == pytest.approx(-0.5)
    assert axis.get_ylabel() == "F(phi), kT"
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["MD", "flow"]


def test_sources_differ_in_more_than_colour() -> None:
    styles = [plots.STYLES[name] for name in (plots.MD, plots.FLOW, plots.REWEIGHTED)]
    assert len({str(style["linestyle"]) for style in styles}) == 3


def test_surfaces_show_values_and_errors(angles: np.ndarray) -> None:
    found = profile(angles)
    value = plots.draw_surface("F", found, 1.0).axes[0].images[0].get_array()
    assert np.allclose(np.ma.filled(value, np.nan), found.value.T - 1, equal_nan=True)
    axis = plots.draw_surface_error("error", found).axes[0]
    assert np.allclose(np.ma.filled(axis.images[0].get_array(), np.nan), found.error.T, equal_nan=True)
    without = np.isfinite(found.value) & np.isnan(found.error)
    assert len(axis.lines[0].get_xdata()) == without.sum() > 0


def test_contours_are_left_out_of_noise(angles: np.ndarray) -> None:
    found = profile(angles)
    calm = Profile(found.value, found.error * 0 + 0.1)
    assert len(plots.draw_surface("F", calm, 1.0).axes[0].collections) == 1
    noise = Profile(found.value, found.error * 0 + 2.0)
    assert len(plots.draw_surface("F", noise, 1.0).axes[0].collections) == 0


def test_forces_count_components() -> None:
    true = np.random.default_rng(0).normal(0, 100, (20, 4, 3))
    axis = plots.draw_forces("on data", true, true).axes[0]
    assert axis.collections[0].get_array().sum() == (np.abs(true) <= axis.get_xlim()[1]).sum() > 200
    huge = plots.draw_forces("on samples", true * 1e12, true).axes[0]
    assert huge.get_xlim()[1] == 5000
    assert plots.draw_forces("none", true[:0], true[:0]).axes[0].get_title() == "none"


def test_energies_say_what_is_beyond() -> None:
    u = np.random.default_rng(0).normal(0, 1, 1000)
    above = np.where(np.arange(1000) < 250, 1e9, u)
    figure = plots.draw_energies("u", {plots.MD: (u, None), plots.FLOW: (above, None)}, "u, kT")
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert texts == ["MD", "flow, 25 % beyond"]
    areas = [step.get_data().values @ np.diff(step.get_data().edges) for step in figure.axes[0].patches]
    assert areas == pytest.approx([1, 0.75], abs=0.005)
    # All weight on frames below makes nothing beyond.
    weight = (above < 1e8).astype(float)
    figure = plots.draw_energies("u", {plots.REWEIGHTED: (above, weight)}, "u", span=(-6, 6))
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["reweighted"]


def test_the_span_of_energies_is_that_of_the_reference() -> None:
    u = np.random.default_rng(0).normal(-20, 5, 10_000)
    low, high = plots.energy_span(u, np.full(10, 1e12), np.array([np.nan, np.inf]))
    assert -45 < low < u.mean() - 10 and 0 < high < 15
    assert plots.energy_span(np.array([np.nan])) == (0.0, 1.0)
    low, high = plots.energy_span(np.zeros(5))
    assert low < high


@pytest.mark.parametrize("data", [True, False])
def test_marginals_are_in_degrees_but_for_bonds(data: bool) -> None:
    values = np.random.default_rng(0).normal(1, 0.1, 1000)
    for name, scale in (("torsion C0-C1-C2-C3", 180 / math.pi), ("bond C0-C1", 1.0)):
        m = marginal(name, values if data else None, values, np.ones(1000))
        axis = plots.draw_marginal(m).axes[0]
        assert axis.get_xlim() == pytest.approx((m.edges[0] * scale, m.edges[-1] * scale))
        assert len(axis.patches) == 1 + data


def test_learned_maps_show_slopes_that_are_all_the_same_as_such() -> None:
    x = np.linspace(0, 1, 11)
    learned = LearnedMap("bond 0-1", 3, x, np.stack((x, x)), np.ones((2, 11)) + 1e-15)
    above, below = plots.draw_learned(learned).axes
    assert above.get_title() == "bond 0-1, coupling 3" and len(below.lines) == 2
    low, high = below.get_ylim()
    assert low < 0.6 and high > 1.6


def test_a_png_is_a_png() -> None:
    figure = plots.draw_forces("none", np.zeros((0, 1, 3)), np.zeros((0, 1, 3)))
    assert plots.png(figure).startswith(b"\x89PNG\r\n\x1a\n")
