"""`select` and `at` are `forward`, and `select_inverse` and `inverse_at` are `inverse`, in two steps each."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import knotflow as kf
from tests.transforms.registry import REGISTRY, draw

EVERY = pytest.mark.parametrize("name", REGISTRY)
FLOATS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
N = 160
ON_KNOTS = slice(2, 50)


def in_two_steps(f: kf.Transform) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda x, raw: f.at(x, f.select(x, raw))


def back_in_two_steps(f: kf.Transform) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda y, raw: f.inverse_at(y, f.select_inverse(y, raw))


def everywhere(f: kf.Transform, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Points all over the domain, at its ends and on knots; outside a line, turns around a circle."""
    x, raw = draw(f, N, dtype=dtype)
    random = torch.Generator().manual_seed(1)
    if isinstance(f, kf.BSpline):
        t, _ = f.knots(raw[ON_KNOTS])
        chosen = torch.randint(t.shape[-1], (48, 1), generator=random)
        x[ON_KNOTS] = t.gather(-1, chosen).squeeze(-1).clamp(f.domain.low, f.domain.high)
    if isinstance(f.domain, kf.Line):
        beyond = torch.tensor([f.domain.low - 2.0, f.domain.low - 1e-3, f.domain.high + 1e-3, 1e6])
        x[50:54] = beyond.to(dtype)
    if isinstance(f.domain, kf.Circle):
        x[50:80] += f.domain.length * torch.randint(-3, 4, (30,), generator=random)
    return x, raw


def derivatives(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], x: Tensor, raw: Tensor
) -> list[Tensor]:
    """Image and log-slope, a random combination of their gradients, and one of the second derivatives."""
    random = torch.Generator().manual_seed(2)
    weights = [torch.randn(x.shape, generator=random).to(x) for _ in range(3)]
    last = torch.randn(raw.shape, generator=random).to(x)
    x, raw = x.clone().requires_grad_(), raw.clone().requires_grad_()
    y, ladj = function(x, raw)
    first = torch.autograd.grad((weights[0] * y + weights[1] * ladj).sum(), (x, raw), create_graph=True)
    total = (weights[2] * first[0]).sum() + (last * first[1]).sum()
    second = torch.autograd.grad(total, (x, raw), materialize_grads=True)
    return [part.detach() for part in (y, ladj, *first, *second)]


@EVERY
@FLOATS
def test_values_gradients_and_second_derivatives(name: str, dtype: torch.dtype) -> None:
    f = REGISTRY[name]
    x, raw = everywhere(f, dtype)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3
    expected, found = derivatives(f.forward, x, raw), derivatives(in_two_steps(f), x, raw)
    # On a knot, rounding decides on which side of it a point is, and higher derivatives jump there.
    smooth = torch.ones(N, dtype=torch.bool)
    smooth[ON_KNOTS] = not isinstance(f, kf.BSpline)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert b.isfinite().all()
        rows = smooth if number >= 2 else slice(None)
        torch.testing.assert_close(a[rows], b[rows], rtol=0, atol=tolerance * max(1.0, float(b.abs().max())))


@EVERY
@FLOATS
def test_values_and_gradients_of_the_inverse(name: str, dtype: torch.dtype) -> None:
    f = REGISTRY[name]
    x, raw = everywhere(f, dtype)
    y, log_slope = f.forward(x, raw)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    expected, found = derivatives(f.inverse, y, raw)[:4], derivatives(back_in_two_steps(f), y, raw)[:4]
    # What rounding of an image changes of its preimage: much where the map is flat.
    spread = torch.exp(-log_slope).clamp(min=1.0)
    distance = found[0] - expected[0]
    if isinstance(f.domain, kf.Circle):
        distance = torch.remainder(distance + f.domain.length / 2, f.domain.length) - f.domain.length / 2
    assert (distance.abs() <= tolerance * f.domain.length * spread).all()
    smooth = torch.ones(N, dtype=torch.bool)
    smooth[ON_KNOTS] = not isinstance(f, kf.BSpline)
    for a, b in zip(found[1:], expected[1:], strict=True):
        assert b.isfinite().all()
        torch.testing.assert_close(
            a[smooth], b[smooth], rtol=0, atol=tolerance * max(1.0, float(b.abs().max()))
        )


@EVERY
def test_ends_and_parameters_of_the_inverse(name: str) -> None:
    f = REGISTRY[name]
    x, raw = draw(f, 24)
    y, _ = f.forward(x, raw)
    back = back_in_two_steps(f)
    for points, parameters in (
        (y, raw[0]),
        (y, raw[:1]),
        (y.reshape(2, 3, 4), raw[:4]),
        (y[0], raw[0]),
        (y[:0], raw[:0]),
    ):
        torch.testing.assert_close(
            back(points, parameters), f.inverse(points, parameters), rtol=1e-8, atol=1e-9
        )
    with pytest.raises(ValueError, match="takes raw parameters"):
        f.select_inverse(y, raw[:, :-1])


@EVERY
def test_parameters_are_shared_by_points_and_cast_to_their_dtype(name: str) -> None:
    f = REGISTRY[name]
    x, raw = draw(f, 24)
    for points, parameters in (
        (x, raw[0]),
        (x, raw[:1]),
        (x.reshape(2, 3, 4), raw[:4]),
        (x[0], raw[0]),
        (x[:0], raw[:0]),
    ):
        torch.testing.assert_close(
            in_two_steps(f)(points, parameters), f.forward(points, parameters), rtol=1e-9, atol=1e-11
        )
    assert [part.dtype for part in in_two_steps(f)(x.float(), raw)] == [torch.float32] * 2
    with pytest.raises(ValueError, match="takes raw parameters"):
        f.select(x, raw[:, :-1])


@pytest.mark.parametrize(
    "name", ["bspline-slopes-circle-k4-n8", "bspline-phase-k4-n8", "bspline-paper-line-k5-n3"]
)
def test_forward_mode_along_a_tangent(name: str) -> None:
    """As training takes it: each step a Jacobian times a vector, the points held fixed in the first."""
    f = REGISTRY[name]
    x, raw = everywhere(f, torch.float64)
    torch.manual_seed(0)
    dx, d_raw = torch.randn_like(x), torch.randn_like(raw)
    selected, d_selected = torch.func.jvp(lambda raw: f.select(x, raw), (raw,), (d_raw,))
    found = torch.func.jvp(f.at, (x, selected), (dx, d_selected))
    expected = torch.func.jvp(f.forward, (x, raw), (dx, d_raw))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("bins", [8, 64])
def test_a_spline_needs_only_what_is_around_a_bin(bins: int) -> None:
    """The number of what is selected does not grow with the bins."""
    for domain in (kf.Interval(), kf.Circle(), kf.Line()):
        f = kf.BSpline(bins, 4, domain)
        x, raw = draw(f, 5)
        assert f.select(x, raw).shape == (5, 18 if isinstance(domain, kf.Circle) else 12)
