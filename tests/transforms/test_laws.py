"""Laws that every map of every family obeys."""

import math

import pytest
import torch

import knotflow as kf
from tests.transforms.registry import REGISTRY, draw, keeps_ends, parts, rotates

EVERY = pytest.mark.parametrize("name", REGISTRY)
FLOATS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def length(f: kf.Transform) -> float:
    return f.domain.length if math.isfinite(f.domain.length) else 10.0


@EVERY
@FLOATS
def test_round_trip_both_ways(name: str, dtype: torch.dtype) -> None:
    f = REGISTRY[name]
    x, raw = draw(f, 400, 1.5, dtype)
    y, ladj = f.forward(x, raw)
    back, back_ladj = f.inverse(y, raw)
    eps = torch.finfo(dtype).eps
    worst_slope = ladj.exp().clamp(max=1.0)  # an ulp of y is 1 / slope ulps of x
    assert (f.domain.distance(back, x) * worst_slope).max() <= 16 * eps * length(f)
    # The logarithm of the slope changes by curvature times the error of x.
    assert (back_ladj + ladj).abs().max() <= (1e-9 if dtype == torch.float64 else 2e-2)
    assert (back_ladj + ladj).abs().median() <= 1e4 * eps
    preimage, inverse_ladj = f.inverse(x, raw)
    forth, forth_ladj = f.forward(preimage, raw)
    assert (f.domain.distance(forth, x) / (-inverse_ladj).exp().clamp(min=1.0)).max() <= 16 * eps * length(f)
    assert (forth_ladj + inverse_ladj).abs().median() <= 1e4 * eps


@EVERY
@FLOATS
def test_log_derivative_is_that_of_autograd(name: str, dtype: torch.dtype) -> None:
    f = REGISTRY[name]
    x, raw = draw(f, 200, 1.5, dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-3
    for direction in (f.forward, f.inverse):
        x = x.detach().requires_grad_()
        y, ladj = direction(x, raw)
        (slope,) = torch.autograd.grad(y.sum(), x)
        assert (slope > 0).all()
        assert (slope.log() - ladj).abs().max() <= tolerance


@EVERY
def test_increases_and_is_onto(name: str) -> None:
    f = REGISTRY[name]
    _, raw = draw(f, 5, 2.0)
    raw = raw[:, None]
    low, high = (f.domain.low, f.domain.high) if math.isfinite(f.domain.low) else (-4.0, 4.0)
    x = torch.linspace(low, high, 801, dtype=torch.float64).expand(5, -1)
    y, _ = f.forward(x, raw)
    rises = y.diff(dim=-1)
    if rotates(f):  # one descent, where the image passes the seam
        assert ((rises < 0).sum(-1) == 1).all()
        rises = torch.where(rises < 0, rises + f.domain.length, rises)
    assert (rises > 0).all()
    if keeps_ends(f):
        assert torch.equal(y[:, 0], torch.full_like(y[:, 0], low))
        assert torch.equal(y[:, -1], torch.full_like(y[:, 0], high))


@EVERY
def test_reaches_the_upper_end_without_help(name: str) -> None:
    """The end is sent to itself by fiat; just below it nothing is, so a wrong sum would show."""
    f = REGISTRY[name]
    if not keeps_ends(f):
        pytest.skip("has no fixed ends")
    _, raw = draw(f, 50, 2.0)
    for end in (f.domain.low, f.domain.high):
        inner = end + 1e-9 * (0.5 * (f.domain.low + f.domain.high) - end)
        y, ladj = f.forward(torch.full((50,), inner, dtype=torch.float64), raw)
        predicted = end + ladj.exp() * (inner - end)
        assert (y - predicted).abs().max() <= 1e-12


@EVERY
def test_first_and_second_derivatives(name: str) -> None:
    """Along random directions in x and raw together; `test_full_jacobians` looks at every entry."""
    f = REGISTRY[name]
    x, raw = draw(f, 4, 0.7, seed=3)
    # Away from the ends: finite differences must not step outside the domain.
    x = (0.9 * (x - x.mean()) + x.mean()).requires_grad_()
    raw.requires_grad_()
    for direction in (f.forward, f.inverse):
        assert torch.autograd.gradcheck(direction, (x, raw), atol=1e-5, rtol=1e-3, fast_mode=True)
        if f.smoothness >= 2:
            assert torch.autograd.gradgradcheck(direction, (x, raw), atol=1e-4, rtol=1e-3, fast_mode=True)


@pytest.mark.parametrize("name", [name for name in REGISTRY if name.endswith(("k4-n3", "circle-n3"))])
def test_full_jacobians(name: str) -> None:
    f = REGISTRY[name]
    x, raw = draw(f, 2, 0.7, seed=11)
    x = (0.5 * (x - x.mean()) + x.mean()).requires_grad_()
    raw.requires_grad_()
    for direction in (f.forward, f.inverse):
        assert torch.autograd.gradcheck(direction, (x, raw))
        assert torch.autograd.gradgradcheck(direction, (x, raw), atol=1e-4)


@pytest.mark.parametrize("name", [name for name in REGISTRY if name.startswith("rq")])
def test_second_derivatives_of_rational_quadratics_within_a_bin(name: str) -> None:
    """They jump at knots, so the finite differences must stay clear of them."""
    f = REGISTRY[name]
    raw = 0.3 * torch.randn(3, f.n_parameters, dtype=torch.float64, generator=torch.manual_seed(1))
    bins = f.bins
    x = f.domain.low + f.domain.length * (torch.tensor([0.4, 0.5, 0.6], dtype=torch.float64)) / bins
    for direction in (f.forward, f.inverse):
        inputs = (x.clone().requires_grad_(), (0.1 * raw).requires_grad_())
        assert torch.autograd.gradgradcheck(direction, inputs, atol=1e-4, rtol=1e-3, fast_mode=True)


@pytest.mark.parametrize(
    "name", [name for name, f in REGISTRY.items() if not any(isinstance(part, kf.Bump) for part in parts(f))]
)
@FLOATS
def test_zero_parameters_give_the_identity(name: str, dtype: torch.dtype) -> None:
    f = REGISTRY[name]
    x, raw = draw(f, 100, 0.0, dtype)
    y, ladj = f.forward(x, raw)
    eps = torch.finfo(dtype).eps
    assert (y - x).abs().max() <= 8 * eps * length(f)
    assert ladj.abs().max() <= 32 * eps


@pytest.mark.parametrize("name", [name for name in REGISTRY if "-line-" in name])
def test_line_is_the_identity_outside(name: str) -> None:
    f = REGISTRY[name]
    x = torch.tensor([-1e6, -10.0, -3.0 - 1e-9, 2.0 + 1e-9, 7.0, 1e6], dtype=torch.float64)
    raw = torch.randn(6, f.n_parameters, dtype=torch.float64)
    for direction in (f.forward, f.inverse):
        y, ladj = direction(x, raw)
        assert torch.equal(y, x)
        assert torch.equal(ladj, torch.zeros_like(x))


@pytest.mark.parametrize("name", [name for name in REGISTRY if "-line-" in name])
def test_far_points_of_a_line_leave_gradients_finite(name: str) -> None:
    f = REGISTRY[name]
    raw = torch.zeros(f.n_parameters, requires_grad=True)
    y, ladj = f.forward(torch.tensor([0.5, math.inf, -math.inf, 1e30]), raw)
    (gradient,) = torch.autograd.grad((y[:1] + ladj).sum(), raw)
    assert torch.isfinite(gradient).all()


@EVERY
def test_shapes_dtypes_and_broadcasting(name: str) -> None:
    f = REGISTRY[name]
    x, raw = draw(f, 24)
    full, ladj = f.forward(x, raw)
    shaped, shaped_ladj = f.forward(x.reshape(2, 3, 4), raw.reshape(2, 3, 4, -1))
    assert shaped.shape == shaped_ladj.shape == (2, 3, 4)
    assert torch.allclose(shaped.flatten(), full, atol=1e-14)
    shared, _ = f.forward(x, raw[0])
    assert torch.allclose(shared, f.forward(x, raw[:1].expand(24, -1))[0], atol=1e-14)
    scalar, _ = f.inverse(x[3], raw[3])
    assert scalar.shape == ()
    nothing, _ = f.forward(x[:0], raw[:0])
    assert nothing.shape == (0,)
    assert f.forward(x.float(), raw)[0].dtype == torch.float32
    assert ladj.dtype == torch.float64


@pytest.mark.parametrize("name", [name for name in REGISTRY if "circle" in name or "phase" in name])
def test_circle_takes_points_modulo_its_length(name: str) -> None:
    f = REGISTRY[name]
    x, raw = draw(f, 50)
    y, ladj = f.forward(x, raw)
    for turns in (-2, 1, 3):
        turned, turned_ladj = f.forward(x + turns * f.domain.length, raw)
        assert f.domain.distance(turned, y).max() <= 1e-10
        assert (turned_ladj - ladj).abs().max() <= 1e-8


@pytest.mark.parametrize("name", ["bspline-slopes-circle-k4-n8", "rq-interval-n8", "bump-circle-n3"])
def test_function_transforms(name: str) -> None:
    """grad, vmap and forward mode, also under no_grad, give the derivatives of plain autograd."""
    f = REGISTRY[name]
    x, raw = draw(f, 6)
    x[:2] = x[2:4]
    for direction in (f.forward, f.inverse):
        expected = direction(x, raw)[1].exp()

        def value(x: torch.Tensor, raw: torch.Tensor, direction=direction) -> torch.Tensor:
            return direction(x, raw)[0]

        by_vmap = torch.func.vmap(torch.func.grad(value))(x, raw)
        assert torch.allclose(by_vmap, expected, rtol=1e-9)
        with torch.no_grad():
            _, tangent = torch.func.jvp(lambda x: direction(x, raw)[0], (x,), (torch.ones_like(x),))  # noqa: B023
        assert torch.allclose(tangent, expected, rtol=1e-9)
