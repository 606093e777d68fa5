"""Bad input raises one ValueError that says what was expected, what came, and what to do."""

import re

import pytest
import torch

import knotflow as kf

BAD_ARGUMENTS = {
    "bins 0": (lambda: kf.BSpline(0), "bins must be a whole number of at least 1, got 0"),
    "bins 2.5": (lambda: kf.BSpline(2.5), "bins must be a whole number"),
    "order 2": (lambda: kf.BSpline(8, 2), "order must be a whole number of at least 3, got 2"),
    "low = high": (lambda: kf.Interval(1.0, 1.0), "low < high"),
    "low > high": (lambda: kf.Circle(1.0, -1.0), "low < high"),
    "infinite": (lambda: kf.Line(0.0, float("inf")), "finite"),
    "wide floor": (lambda: kf.BSpline(8, parametrisation=kf.Slopes(min_width=0.2)), "min_width < 1/8"),
    "wide paper floor": (lambda: kf.BSpline(8, parametrisation=kf.Paper(min_rise=0.2)), "min_rise < 1/10"),
    "negative floor": (lambda: kf.BSpline(8, parametrisation=kf.Paper(min_width=-1e-3)), "positive"),
    "slopes": (lambda: kf.BSpline(8, parametrisation=kf.Slopes(min_slope=2.0)), "min_slope < 1 < max_slope"),
    "unknown": (lambda: kf.BSpline(8, parametrisation="cubic"), "'cubic'"),
    "phase": (lambda: kf.BSpline(8, 4, kf.Interval(), phase=True), "Circle"),
    "rq bins": (lambda: kf.RationalQuadratic(0), "bins"),
    "rq floor": (lambda: kf.RationalQuadratic(8, min_height=0.5), "min_height"),
    "rq slope": (lambda: kf.RationalQuadratic(8, min_slope=0.0), "min_slope"),
    "bump components": (lambda: kf.Bump(0), "components"),
    "bump line": (lambda: kf.Bump(4, kf.Line()), "BSpline"),
    "bump slope": (lambda: kf.Bump(4, min_slope=1.5), "min_slope"),
    "affine": (lambda: kf.Affine(max_slope=0.5), "max_slope"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(name: str) -> None:
    make, part = BAD_ARGUMENTS[name]
    with pytest.raises(ValueError, match=re.escape(part)):
        make()


@pytest.mark.parametrize("direction", ["forward", "inverse"])
def test_bad_tensors(direction: str) -> None:
    f = kf.BSpline(8)
    call = getattr(f, direction)
    n = f.n_parameters
    with pytest.raises(ValueError, match=re.escape(f"(..., {n}), got (5, 3)")):
        call(torch.rand(5), torch.zeros(5, 3))
    with pytest.raises(ValueError, match="broadcast"):
        call(torch.rand(5), torch.zeros(4, n))
    with pytest.raises(ValueError, match="broadcast"):
        call(torch.rand(()), torch.zeros(4, n))
    with pytest.raises(ValueError, match="floating-point"):
        call(torch.zeros(5, dtype=torch.long), torch.zeros(5, n))


def test_bad_raw_of_queries() -> None:
    f = kf.BSpline(8)
    for query in (f.slope_bounds, f.knots):
        with pytest.raises(ValueError, match=re.escape(f"(..., {f.n_parameters}), got (5, 3)")):
            query(torch.zeros(5, 3))


@pytest.mark.parametrize("outside", [-0.01, 1.01, 1 + 1e-4, float("inf")])
def test_a_point_outside_an_interval_is_refused(outside: float) -> None:
    f = kf.BSpline(8)
    x = torch.tensor([0.5, outside])
    for direction in (f.forward, f.inverse):
        with pytest.raises(ValueError, match=r"interval \[0.0, 1.0\].*Line"):
            direction(x, torch.zeros(2, f.n_parameters))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_point_outside_by_rounding_is_moved_to_the_end(dtype: torch.dtype) -> None:
    """And keeps its derivative, which plain clamping would set to zero."""
    f = kf.BSpline(8, 4, kf.Interval(-1.0, 1.0))
    raw = torch.randn(2, f.n_parameters, dtype=dtype)
    few_ulps = 4 * torch.finfo(dtype).eps
    x = torch.tensor([-1 - few_ulps, 1 + few_ulps], dtype=dtype, requires_grad=True)
    at_the_ends = torch.tensor([-1.0, 1.0], dtype=dtype)
    for direction in (f.forward, f.inverse):
        y, ladj = direction(x, raw)
        expected, expected_ladj = direction(at_the_ends, raw)
        assert torch.equal(y, expected) and torch.equal(ladj, expected_ladj)
        (slope,) = torch.autograd.grad(y.sum(), x)
        assert torch.allclose(slope.log(), ladj, atol=1e-4)


def test_repr_names_the_settings() -> None:
    assert "bins=8" in repr(kf.BSpline(8)) and "Slopes" in repr(kf.BSpline(8))
    for f in (kf.RationalQuadratic(8), kf.Bump(3), kf.Affine()):
        assert type(f).__name__ in repr(f)


def test_distances_go_the_shorter_way_around_a_circle() -> None:
    a, b = torch.tensor([0.1, 0.1, 2.4]), torch.tensor([0.9, 0.4, 0.3])
    torch.testing.assert_close(kf.Circle().distance(a, b), torch.tensor([0.2, 0.3, 0.1]))
    torch.testing.assert_close(kf.Line().distance(a, b), torch.tensor([0.8, 0.3, 2.1]))


@pytest.mark.parametrize("domain", [kf.Interval(), kf.Circle(), kf.Line()])
def test_nan_in_gives_nan_out_and_spares_the_others(domain: kf.Domain) -> None:
    f = kf.BSpline(4, 4, domain)
    x = torch.tensor([0.2, torch.nan, 0.7])
    for image, ladj in (f.forward(x, torch.zeros(f.n_parameters)), f.inverse(x, torch.zeros(f.n_parameters))):
        assert image.isnan().tolist() == ladj.isnan().tolist() == [False, True, False]
