"""Pictures of distributions hold all of the numbers they were given."""

import math

import numpy as np
import pytest

from knotflow.analysis.free_energy_profiles import marginal
from knotflow.report.figures import FLOW, MD, REWEIGHTED
from knotflow.report.histogram_plots import draw_energy_histograms, draw_marginal, energy_span


def test_energies_say_what_is_beyond() -> None:
    u = np.random.default_rng(0).normal(0, 1, 1000)
    above = np.where(np.arange(1000) < 250, 1e9, u)
    figure = draw_energy_histograms("u", {MD: (u, None), FLOW: (above, None)}, "u, kT")
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert texts == ["MD", "flow, 25 % beyond"]
    areas = [step.get_data().values @ np.diff(step.get_data().edges) for step in figure.axes[0].patches]
    assert areas == pytest.approx([1, 0.75], abs=0.005)
    # All weight on frames below makes nothing beyond.
    weight = (above < 1e8).astype(float)
    figure = draw_energy_histograms("u", {REWEIGHTED: (above, weight)}, "u", span=(-6, 6))
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["reweighted"]


def test_the_span_of_energies_is_that_of_the_reference() -> None:
    u = np.random.default_rng(0).normal(-20, 5, 10_000)
    low, high = energy_span(u, np.full(10, 1e12), np.array([np.nan, np.inf]))
    assert -45 < low < u.mean() - 10 and 0 < high < 15
    assert energy_span(np.array([np.nan])) == (0.0, 1.0)
    low, high = energy_span(np.zeros(5))
    assert low < high


@pytest.mark.parametrize("data", [True, False])
def test_marginals_are_in_degrees_but_for_bonds(data: bool) -> None:
    values = np.random.default_rng(0).normal(1, 0.1, 1000)
    for name, scale in (("torsion C0-C1-C2-C3", 180 / math.pi), ("bond C0-C1", 1.0)):
        m = marginal(name, values if data else None, values, np.ones(1000))
        axis = draw_marginal(m).axes[0]
        assert axis.get_xlim() == pytest.approx((m.edges[0] * scale, m.edges[-1] * scale))
        assert len(axis.patches) == 1 + data
