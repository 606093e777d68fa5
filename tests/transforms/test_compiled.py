"""The compiled schedule gives what the eager one gives: values, slopes, forces and gradients."""

import pytest
import torch

import knotflow as kf
from knotflow.transforms.search import _Blocks, _Cumulative
from tests.transforms.registry import draw

INSTANCES = {
    "bspline-circle": kf.BSpline(9, 4, kf.Circle()),
    "bspline-line-paper": kf.BSpline(4, 3, kf.Line(-1.0, 1.0), parametrisation="paper"),
    "rq-interval": kf.RationalQuadratic(8),
}


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 32, 33, 64])
def test_both_schedules_find_the_same_bins_and_knots(n: int) -> None:
    widths = torch.rand(500, n, dtype=torch.float64, generator=torch.manual_seed(n)) + 0.01
    x = torch.rand(500, dtype=torch.float64) * 1.2 * widths.sum(-1) - 1.0
    blocks, cumulative = _Blocks(widths, -0.5), _Cumulative(widths, -0.5)
    (j, left), (i, other_left) = blocks.locate(x), cumulative.locate(x)
    assert torch.equal(i, j)
    assert torch.allclose(left, other_left, atol=1e-13)
    assert torch.equal(blocks.at(j), left)
    assert torch.equal(cumulative.at(i), other_left)
    for k in range(n + 1):
        knot = torch.full((500,), k)
        assert torch.allclose(blocks.at(knot), widths[:, :k].sum(-1) - 0.5, atol=1e-13)
        assert torch.allclose(cumulative.at(knot), widths[:, :k].sum(-1) - 0.5, atol=1e-13)


@pytest.mark.parametrize("name", INSTANCES)
def test_compiled_loss_with_forces_equals_eager(name: str) -> None:
    """Forward map, its score by torch.func.grad, and the gradient of both: one graph without breaks."""
    f = INSTANCES[name]
    x, raw = draw(f, 64, dtype=torch.float64)
    x = 0.98 * x + 0.01 * f.domain.low + 0.01 * f.domain.high

    def log_density(x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        return f.forward(x, raw)[1].sum()

    def loss(raw: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        force = torch.func.grad(log_density)(x, raw)
        return (force**2).mean() - log_density(x, raw) / x.numel()

    step = torch.func.grad_and_value(loss)
    gradient, value = step(raw, x)
    compiled_gradient, compiled_value = torch.compile(step, fullgraph=True)(raw, x)
    assert torch.allclose(compiled_value, value, rtol=1e-9)
    assert torch.allclose(compiled_gradient, gradient, rtol=1e-6, atol=1e-9 * gradient.abs().max())


def test_compiled_inverse_equals_eager() -> None:
    f = INSTANCES["bspline-circle"]
    y, raw = draw(f, 64, dtype=torch.float64)
    x, ladj = f.inverse(y, raw)
    compiled_x, compiled_ladj = torch.compile(f.inverse, fullgraph=True)(y, raw)
    assert torch.allclose(compiled_x, x, atol=1e-12)
    assert torch.allclose(compiled_ladj, ladj, atol=1e-9)


def test_compiled_interval_moves_outside_points_to_the_end() -> None:
    """A compiled graph cannot look at values, so it cannot refuse them."""
    f = kf.RationalQuadratic(4)
    raw = torch.zeros(2, f.n_parameters)
    y, _ = torch.compile(f.forward, fullgraph=True)(torch.tensor([-0.5, 1.5]), raw)
    assert torch.equal(y, torch.tensor([0.0, 1.0]))
