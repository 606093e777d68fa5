"""What is special to B-splines: certified slopes, parameter counts, phases, and inverses that never fail."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import knotflow as kf
from tests.transforms.registry import BSPLINES, DOMAINS, draw


@pytest.mark.parametrize("name", BSPLINES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_no_sampled_slope_leaves_the_certified_bounds(name: str, dtype: torch.dtype, scale: float) -> None:
    f = BSPLINES[name]
    x, raw = draw(f, 2000, scale, dtype)
    low, high = f.slope_bounds(raw)
    slope = f.forward(x, raw)[1].exp()
    rounding = 8 * torch.finfo(dtype).eps  # of exp(log(slope))
    assert (slope >= low * (1 - rounding)).all()
    assert (slope <= high * (1 + rounding)).all()
    assert (low <= 1).all() and (high >= 1).all()  # a map of the domain onto itself has mean slope 1


@pytest.mark.parametrize("name", [name for name in BSPLINES if "slopes" in name])
def test_slope_bounds_hold_whatever_the_parameters(name: str) -> None:
    f = BSPLINES[name]
    _, raw = draw(f, 500, 30.0)
    low, high = f.slope_bounds(raw)
    ratio = f.parametrisation.max_slope / f.parametrisation.min_slope
    assert low.min() >= 1 / ratio * (1 - 1e-9)
    assert high.max() <= ratio * (1 + 1e-9)


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_certified_bounds_are_close_to_the_true_range(scale: float) -> None:
    """Bounds of zero and infinity would be certified too; these are of use."""
    f = kf.BSpline(8, 4, kf.Circle())
    raw = scale * torch.randn(200, 1, f.n_parameters, dtype=torch.float64, generator=torch.manual_seed(0))
    x = torch.linspace(0, 1, 2001, dtype=torch.float64).expand(200, -1)
    slope = f.forward(x, raw)[1].exp()
    low, high = f.slope_bounds(raw[:, 0])
    assert (low / slope.amin(-1)).median() > 0.3
    assert (high / slope.amax(-1)).median() < 3.0


def test_parameter_counts_of_the_paper() -> None:
    paper = {"parametrisation": "paper"}
    assert kf.BSpline(32, 4, kf.Circle(), **paper).n_parameters == 2 * 32
    assert kf.BSpline(32, 4, kf.Interval(), **paper).n_parameters == 2 * 32 + 6
    assert kf.RationalQuadratic(16, kf.Circle()).n_parameters == 3 * 16
    assert kf.RationalQuadratic(16, kf.Interval()).n_parameters == 3 * 16 + 1
    assert kf.Bump(8, kf.Circle()).n_parameters == kf.Bump(8, kf.Interval()).n_parameters == 5 * 8
    assert kf.BSpline(32, 4, kf.Circle(), phase=True).n_parameters == 2 * 32 + 1


def test_phase_rotates_the_image() -> None:
    f, plain = kf.BSpline(8, 4, kf.Circle(-math.pi, math.pi), phase=True), kf.BSpline(8, 4, DOMAINS["circle"])
    x, raw = draw(f, 100)
    y, ladj = f.forward(x, raw)
    unrotated, plain_ladj = plain.forward(x, raw[:, :-1])
    assert f.domain.distance(y, unrotated + raw[:, -1]).max() < 1e-12
    assert torch.equal(ladj, plain_ladj)
    assert (f.forward(torch.full((100,), -math.pi, dtype=torch.float64), raw)[0] + math.pi).abs().min() > 1e-3


ULP = 2.0**-23


def worst_inversion(f: kf.BSpline, scale: float, n: int, seed: int) -> tuple[float, float]:
    """Backward error in ulps of the domain length, and round-trip error as a fraction of it."""
    x, raw = draw(f, n, scale, torch.float32, seed)
    t, _ = f.knots(raw[: n // 4])
    chosen = torch.randint(t.shape[-1], (n // 4, 1), generator=torch.manual_seed(seed))
    x[: n // 4] = t.gather(-1, chosen).squeeze(-1).clamp(f.domain.low, f.domain.high)
    y, ladj = f.forward(x, raw)
    back, back_ladj = f.inverse(y, raw)
    for found in (y, ladj, back, back_ladj):
        assert torch.isfinite(found).all()
    ulp = ULP * 2.0 ** math.floor(math.log2(f.domain.length))
    backward = f.domain.distance(f.forward(back, raw)[0], y) / ulp
    return float(backward.max()), float(f.domain.distance(back, x).max() / f.domain.length)


@pytest.mark.parametrize("order", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("parametrisation", ["slopes", "paper"])
@pytest.mark.parametrize("domain", DOMAINS)
def test_adversarial_inversion_in_single_precision(order: int, parametrisation: str, domain: str) -> None:
    """`make bench` does the same with ten million elements."""
    f = kf.BSpline(32, order, DOMAINS[domain], parametrisation=parametrisation)
    for scale in (1.0, 5.0, 30.0):
        backward, round_trip = worst_inversion(f, scale, 8000, seed=int(scale))
        assert backward <= 8
        assert round_trip <= 1e-4


@settings(max_examples=200, deadline=None)
@given(
    bins=st.integers(1, 40),
    order=st.integers(3, 7),
    domain=st.sampled_from(sorted(DOMAINS)),
    parametrisation=st.sampled_from(["slopes", "paper", kf.Paper(1e-6, 1e-6), kf.Slopes(1e-6, 1e-4, 1e4)]),
    scale=st.floats(0, 100),
    seed=st.integers(0, 2**31),
)
def test_nothing_finite_gives_anything_else(bins, order, domain, parametrisation, scale, seed) -> None:
    """Any shape, any floors, any parameters: all results are finite and inside the domain."""
    f = kf.BSpline(bins, order, DOMAINS[domain], parametrisation=parametrisation)
    x, raw = draw(f, 60, scale, torch.float32, seed)
    x.requires_grad_()
    raw.requires_grad_()
    for direction in (f.forward, f.inverse):
        y, ladj = direction(x, raw)
        gradients = torch.autograd.grad((y + ladj).sum(), (x, raw))
        for found in (y, ladj, *gradients):
            assert torch.isfinite(found).all()
        assert (y >= f.domain.low).all() and (y <= f.domain.high).all()
