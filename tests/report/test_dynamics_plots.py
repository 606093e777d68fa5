"""Pictures of energies over time, and the drift score as text."""

import io
from dataclasses import replace

import numpy as np
import pytest

from knotflow.report.dynamics_plots import BROKEN, WHOLE, EnergyPanel, draw_energies, reasons


def panel(title: str = "flow", offset: float = 0.0) -> EnergyPanel:
    """Three replicas: one whole, one that runs away, one that stops."""
    time = np.linspace(0.0, 2.0, 21)
    potential = offset + np.stack([np.sin(time), 100 * time, np.cos(time)], 1)
    kinetic = np.ones_like(potential)
    potential[12:, 2] = kinetic[12:, 2] = np.nan
    return EnergyPanel(title, time, potential, kinetic, np.array([False, True, True]), 0.5)


def test_a_line_for_each_replica_in_its_colour() -> None:
    figure = draw_energies([panel("a"), panel("b", offset=-200.0)])
    assert len(figure.axes) == 6
    total, other = figure.axes[:2]
    assert (total.get_title(), other.get_title()) == ("a", "b")
    assert [axis.get_ylabel() for axis in figure.axes[::2]] == [
        "total energy, kT",
        "potential energy, kT",
        "kinetic energy, kT",
    ]
    assert [line.get_color() for line in total.lines] == [WHOLE, BROKEN, BROKEN, BROKEN]
    assert figure.axes[-1].get_xlabel() == "time, ps"
    # The constant of an energy has no meaning: both columns show the same.
    for mine, theirs in zip(total.lines, other.lines, strict=True):
        np.testing.assert_allclose(mine.get_ydata(), theirs.get_ydata(), atol=1e-12)
    found = panel()
    np.testing.assert_allclose(total.lines[0].get_ydata(), found.potential[:, 0] + found.kinetic[:, 0])
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=40)
    assert content.getvalue().startswith(b"\x89PNG")


def test_the_range_is_that_of_the_whole_ones() -> None:
    figure = draw_energies([panel()], ("potential",))
    low, high = figure.axes[0].get_ylim()
    values = np.sin(np.linspace(0, 2, 21))
    assert -1.0 < low < values.min() and values.max() < high < 2.0
    cross = figure.axes[0].lines[-1]
    assert cross.get_marker() == "x" and cross.get_xdata() == pytest.approx([1.1])
    assert low <= cross.get_ydata()[0] <= high
    (shade,) = figure.axes[0].patches
    assert shade.get_extents().width > 0


def test_nothing_whole_is_drawn_too() -> None:
    broken = replace(panel(), broken=np.ones(3, dtype=bool), thermostat=0.0)
    figure = draw_energies([broken], ("total",))
    assert np.isfinite(figure.axes[0].get_ylim()).all() and not figure.axes[0].patches
    nothing = replace(broken, potential=np.full((21, 3), np.nan))
    assert np.isfinite(draw_energies([nothing]).axes[0].get_ylim()).all()


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one panel"):
        draw_energies([])
    with pytest.raises(ValueError, match="total, potential, kinetic, got heat"):
        draw_energies([panel()], ("total", "heat"))
    with pytest.raises(ValueError, match=r"panel 'flow' needs energies of shape \(records, replicas\)"):
        replace(panel(), broken=np.zeros(2, dtype=bool))


def test_reasons_as_text() -> None:
    assert reasons({}) == "–"
    assert (
        reasons({"a broken bond": 3, "not a finite number": 1})
        == "a broken bond (3), not a finite number (1)"
    )
