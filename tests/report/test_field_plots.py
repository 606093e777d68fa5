"""Pictures of densities and forces: what is drawn, on which scales."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from knotflow.energies import Rings
from knotflow.report.field_plots import FieldPanel, draw_fields
from knotflow.report.figures import png


def rings(n: int = 48) -> FieldPanel:
    side = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    x = torch.stack(torch.meshgrid(side, side, indexing="ij"), dim=-1)
    density = torch.exp(-Rings().energy(x))
    return FieldPanel("truth", (density / density.mean()).numpy(), Rings().force(x).numpy())


def test_fields_share_the_scales_of_the_truth() -> None:
    truth = rings()
    model = FieldPanel("model", 3 * truth.density, 50 * truth.force)
    figure = draw_fields([truth, model], caption="rings")
    above, below = figure.axes[:2], figure.axes[2:4]
    assert [axis.get_title() for axis in above] == ["truth", "model"]
    assert figure.get_suptitle() == "rings"
    assert {axis.images[0].get_clim() for axis in above} == {(0.0, truth.density.max())}
    lively = truth.density > 0.01 * truth.density.max()
    strongest = np.linalg.norm(truth.force, axis=-1)[lively].max()
    for axis in below:
        np.testing.assert_allclose(axis.images[0].get_clim(), (strongest / 100, strongest))
    assert above[0].images[0].norm is above[1].images[0].norm
    assert below[0].images[0].norm is below[1].images[0].norm
    assert [axis.get_ylabel() for axis in figure.axes[4:]] == ["density", "|force|"]
    for axis in (*above, *below):
        assert axis.get_aspect() == 1
        assert list(axis.get_xticks()) == list(axis.get_yticks()) == [0, 0.5, 1]
    assert png(figure).startswith(b"\x89PNG")


def test_axes_are_not_swapped() -> None:
    n = 24
    density, force = np.full((n, n), 0.5), np.ones((n, n, 2))
    density[-1, 0] = 2.0  # x = 1, y = 0: the lower right corner
    force[..., 0], force[..., 1] = 3.0, 0.0  # to the right
    figure = draw_fields([FieldPanel("corner", density, force)])
    image = figure.axes[0].images[0]
    assert image.get_array()[0, -1] == 2.0
    assert image.origin == "lower" and image.get_extent() == [0, 1, 0, 1]
    arrows = figure.axes[1].collections[0]
    np.testing.assert_array_equal(arrows.U, 1.0)
    np.testing.assert_array_equal(arrows.V, 0.0)


@pytest.mark.filterwarnings("error")
def test_singular_forces_are_clipped_and_missing_ones_left_out() -> None:
    truth = rings()
    force = truth.force.copy()
    force[10] = 1e9
    force[11] = np.inf
    force[12] = np.nan
    force[13] = 0.0
    figure = draw_fields([truth, replace(truth, title="rough", force=force)])
    image = figure.axes[3].images[0]
    weakest, strongest = image.get_clim()
    columns = image.get_array().T
    assert image.get_clim() == figure.axes[2].images[0].get_clim()
    assert (columns[10:12] == strongest).all()
    assert np.ma.getmaskarray(columns)[12].all()
    assert (columns[13] == weakest).all()
    png(figure)


def test_arrows_have_one_length_and_none_stands_where_there_is_no_direction() -> None:
    truth = rings()
    force = truth.force.copy()
    force[:24] = 0.0
    figure = draw_fields([truth, replace(truth, force=force)])
    for axis, expected in zip(figure.axes[2:4], (144, 72), strict=True):
        arrows = axis.collections[0]
        length = np.hypot(arrows.U, arrows.V)
        np.testing.assert_allclose(length, np.ones(expected))


@pytest.mark.parametrize(
    ("density", "force"),
    [((4, 5), (4, 5, 2)), ((4, 4), (4, 4)), ((4, 4), (5, 5, 2)), ((16,), (16, 2)), ((0, 0), (0, 0, 2))],
)
def test_wrong_shapes_of_fields_are_refused(density, force) -> None:
    with pytest.raises(ValueError, match=r"'bad' needs a density of shape \(n, n\).* got .*; evaluate both"):
        FieldPanel("bad", np.ones(density), np.ones(force))


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_a_truth_without_scale_is_refused(value: float) -> None:
    truth = rings()
    for changed in (replace(truth, density=truth.density * value), replace(truth, force=truth.force * value)):
        with pytest.raises(ValueError, match="put the truth first"):
            draw_fields([changed, truth])


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one panel, got none"):
        draw_fields([])


def test_without_matplotlib_the_remedy_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"pictures need matplotlib.*knotflow\[plot\]"):
        draw_fields([rings(8)])
