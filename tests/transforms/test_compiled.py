"""A compiled graph gives what eager code gives: values, slopes, forces and gradients."""

import pytest
import torch

import knotflow as kf
from tests.transforms.registry import draw

INSTANCES = {
    "bspline-circle": kf.BSpline(9, 4, kf.Circle()),
    "bspline-line-paper": kf.BSpline(4, 3, kf.Line(-1.0, 1.0), parametrisation="paper"),
    "rq-interval": kf.RationalQuadratic(8),
}


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

    def inverse(y: torch.Tensor, raw: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, ladj = f.inverse(y, raw)
        return x, ladj, torch.func.grad(lambda y: f.inverse(y, raw)[1].sum())(y)

    x, ladj, force = inverse(y, raw)
    compiled_x, compiled_ladj, compiled_force = torch.compile(inverse, fullgraph=True)(y, raw)
    assert torch.allclose(compiled_x, x, atol=1e-12)
    assert torch.allclose(compiled_ladj, ladj, atol=1e-9)
    assert torch.allclose(compiled_force, force, rtol=1e-6, atol=1e-9 * float(force.abs().max()))


def test_compiled_interval_moves_outside_points_to_the_end() -> None:
    """A compiled graph cannot look at values, so it cannot refuse them."""
    f = kf.RationalQuadratic(4)
    raw = torch.zeros(2, f.n_parameters)
    y, _ = torch.compile(f.forward, fullgraph=True)(torch.tensor([-0.5, 1.5]), raw)
    assert torch.equal(y, torch.tensor([0.0, 1.0]))
