"""Derivatives match at knots, at the seam and at the joins, up to the claimed order and no further."""

import math

import pytest
import torch

import knotflow as kf
from tests.transforms.registry import BSPLINES, BUMPS, RATIONAL_QUADRATICS

MANY_BINS = {
    name: f for name, f in {**BSPLINES, **RATIONAL_QUADRATICS}.items() if name.endswith(("n3", "n5", "n8"))
}
STEP = 1e-7


def derivatives(f: kf.Transform, x: torch.Tensor, raw: torch.Tensor, orders: int) -> list[torch.Tensor]:
    """Derivatives of order 0 to ``orders`` at each point, by repeated automatic differentiation."""
    x = x.clone().requires_grad_()
    found = [f.forward(x, raw)[0]]
    for _ in range(orders):
        (next_,) = torch.autograd.grad(found[-1].sum(), x, create_graph=True)
        found.append(next_)
    return [d.detach() for d in found]


def inner_knots(f: kf.Transform, raw: torch.Tensor) -> torch.Tensor:
    if isinstance(f, kf.BSpline):
        t, _ = f.knots(raw)
        return t[f.order : -f.order]
    assert isinstance(f, kf.RationalQuadratic)
    spline = f._spline(raw, torch.zeros(()))
    return spline.knots.right_knots[:-1]


def relative_jumps(f: kf.Transform, left: torch.Tensor, right: torch.Tensor, raw: torch.Tensor, order: int):
    """Largest relative jump between the derivatives of one order at pairs of points."""
    everywhere = torch.linspace(f.domain.low, f.domain.high, 999, dtype=torch.float64)[1:-1]
    scale = derivatives(f, everywhere, raw, order)[order].abs().max()
    a, b = derivatives(f, left, raw, order)[order], derivatives(f, right, raw, order)[order]
    return ((a - b).abs() / scale).max()


@pytest.mark.parametrize("name", MANY_BINS)
def test_smooth_at_knots_up_to_the_claimed_order_only(name: str) -> None:
    f = MANY_BINS[name]
    raw = 0.5 * torch.randn(f.n_parameters, dtype=torch.float64, generator=torch.manual_seed(2))
    knots = inner_knots(f, raw)
    step = STEP * f.domain.length
    claimed = int(f.smoothness)
    for order in range(1, claimed + 1):
        assert relative_jumps(f, knots - step, knots + step, raw, order) < 1e-4
    assert relative_jumps(f, knots - step, knots + step, raw, claimed + 1) > 1e-2


@pytest.mark.parametrize(
    "name", [n for n in {**BSPLINES, **BUMPS, **RATIONAL_QUADRATICS} if "circle" in n and "n33" not in n]
)
def test_smooth_at_the_seam(name: str) -> None:
    """Also for one bin, where every derivative is constant, and for fewer bins than the order."""
    f = {**BSPLINES, **BUMPS, **RATIONAL_QUADRATICS}[name]
    raw = 0.5 * torch.randn(f.n_parameters, dtype=torch.float64, generator=torch.manual_seed(5))
    step = STEP * f.domain.length
    low = torch.tensor([f.domain.low + step], dtype=torch.float64)
    high = torch.tensor([f.domain.high - step], dtype=torch.float64)
    claimed = int(min(f.smoothness, 5))
    for order in range(1, claimed + 1):
        # Beyond floating-point noise in derivatives that vanish identically (one bin).
        scale = derivatives(f, torch.linspace(-3, 3, 999, dtype=torch.float64), raw, order)[order].abs().max()
        a, b = derivatives(f, low, raw, order)[order], derivatives(f, high, raw, order)[order]
        assert (a - b).abs() <= 1e-4 * scale + 1e-6
    if math.isfinite(f.smoothness) and getattr(f, "bins", 0) >= 5:
        assert relative_jumps(f, low, high, raw, claimed + 1) > 1e-3


@pytest.mark.parametrize("name", [n for n in {**BSPLINES, **RATIONAL_QUADRATICS} if "-line-" in n])
def test_joins_the_identity_smoothly(name: str) -> None:
    f = {**BSPLINES, **RATIONAL_QUADRATICS}[name]
    raw = torch.randn(f.n_parameters, dtype=torch.float64, generator=torch.manual_seed(7))
    ends = torch.tensor([f.domain.low, f.domain.high], dtype=torch.float64)
    inner = ends + 1e-9 * (ends.flip(0) - ends)
    claimed = int(f.smoothness)
    found = derivatives(f, inner, raw, claimed)
    assert (found[1] - 1).abs().max() < 1e-5
    everywhere = torch.linspace(f.domain.low, f.domain.high, 999, dtype=torch.float64)[1:-1]
    for order in range(2, claimed + 1):
        scale = derivatives(f, everywhere, raw, order)[order].abs().max()
        assert found[order].abs().max() < 1e-4 * scale
