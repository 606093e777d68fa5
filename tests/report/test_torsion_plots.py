"""Pictures of torsions hold the numbers they were given, and can be told apart without colours."""

import math

import numpy as np
import pytest

from knotflow.analysis.free_energy_profiles import Profile, profile
from knotflow.report.figures import FLOW, MD, REWEIGHTED, STYLES
from knotflow.report.torsion_plots import (
    RAMACHANDRAN_BINS,
    draw_profiles,
    draw_ramachandran,
    draw_surface,
    draw_surface_error,
)


@pytest.fixture
def angles() -> np.ndarray:
    return np.random.default_rng(0).vonmises(-1.0, 2.0, (500, 2))


def test_a_ramachandran_plot_is_a_density(angles: np.ndarray) -> None:
    axis = draw_ramachandran("MD", np.vstack((angles, [[np.nan, 0]]))).axes[0]
    density = np.ma.filled(axis.images[0].get_array(), np.nan)
    assert np.nansum(density) * (360 / RAMACHANDRAN_BINS) ** 2 == pytest.approx(1)
    assert axis.get_title() == "MD" and axis.get_xlabel() == "phi, degrees"
    # Rows of an image are psi: all weight on one frame is one cell of the right place.
    weight = np.zeros(500)
    weight[7] = 1.0
    one = np.ma.filled(draw_ramachandran("one", angles, weight).axes[0].images[0].get_array(), np.nan)
    ((row, column),) = np.argwhere(np.isfinite(one))
    width = 2 * math.pi / RAMACHANDRAN_BINS
    assert (column, row) == tuple((angles[7] + math.pi) // width)


def test_profiles_have_bands_of_two_errors() -> None:
    x = np.linspace(0, 5, 60)
    figure = draw_profiles("phi", {MD: Profile(x, x / 10), FLOW: Profile(x + 1, x * np.nan)}, 0.5)
    axis = figure.axes[0]
    assert np.allclose(axis.lines[0].get_ydata(), x - 0.5) and np.allclose(axis.lines[1].get_ydata(), x + 0.5)
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(4.5 + 1.0) and band.min() == pytest.approx(-0.5)
    assert axis.get_ylabel() == "F(phi), kT"
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["MD", "flow"]


def test_sources_differ_in_more_than_colour() -> None:
    styles = [STYLES[name] for name in (MD, FLOW, REWEIGHTED)]
    assert len({str(style["linestyle"]) for style in styles}) == 3


def test_surfaces_show_values_and_errors(angles: np.ndarray) -> None:
    found = profile(angles)
    value = draw_surface("F", found, 1.0).axes[0].images[0].get_array()
    assert np.allclose(np.ma.filled(value, np.nan), found.value.T - 1, equal_nan=True)
    axis = draw_surface_error("error", found).axes[0]
    assert np.allclose(np.ma.filled(axis.images[0].get_array(), np.nan), found.error.T, equal_nan=True)
    without = np.isfinite(found.value) & np.isnan(found.error)
    assert len(axis.lines[0].get_xdata()) == without.sum() > 0


def test_contours_are_left_out_of_noise(angles: np.ndarray) -> None:
    found = profile(angles)
    calm = Profile(found.value, found.error * 0 + 0.1)
    assert len(draw_surface("F", calm, 1.0).axes[0].collections) == 1
    noise = Profile(found.value, found.error * 0 + 2.0)
    assert len(draw_surface("F", noise, 1.0).axes[0].collections) == 0
