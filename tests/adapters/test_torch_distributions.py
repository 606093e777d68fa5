"""What torch promises about its transforms, for every family on every domain."""

import math
import pickle

import pytest
import torch
from torch.distributions import (
    AffineTransform,
    ComposeTransform,
    Independent,
    IndependentTransform,
    Normal,
    TransformedDistribution,
    Uniform,
    constraints,
    kl_divergence,
)

import knotflow as kf
from knotflow.adapters import ElementwiseTransform
from tests.adapters.families import FAMILIES, base_of, on_real_line, parameters, points

EVERY = pytest.mark.parametrize("name", FAMILIES)
CACHES = pytest.mark.parametrize("cache_size", [0, 1], ids=["no-cache", "cache"])


@EVERY
@CACHES
def test_is_a_bijection(name: str, cache_size: int) -> None:
    f = FAMILIES[name]
    x = points(f, 50)
    t = ElementwiseTransform(f, parameters(f, 50), cache_size)
    assert t.bijective and t.sign == 1
    assert t.inv.inv is t
    y = t(x)
    # A clone, so that no cache can answer.
    assert f.domain.distance(t.inv(y.clone()), x).max() <= 1e-11
    assert f.domain.distance(t(t.inv(x)), x).max() <= 1e-11


@EVERY
@CACHES
def test_log_derivative_is_that_of_autograd(name: str, cache_size: int) -> None:
    f = FAMILIES[name]
    t = ElementwiseTransform(f, parameters(f, 50), cache_size)
    x = points(f, 50).requires_grad_()
    y = t(x)
    (slope,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    torch.testing.assert_close(t.log_abs_det_jacobian(x, y), slope.log(), atol=1e-10, rtol=0.0)

    y = y.detach().requires_grad_()
    x = t.inv(y)
    (slope,) = torch.autograd.grad(x.sum(), y, retain_graph=True)
    torch.testing.assert_close(t.inv.log_abs_det_jacobian(y, x), slope.log(), atol=1e-10, rtol=0.0)
    assert torch.equal(t.inv.log_abs_det_jacobian(y, x), -t.log_abs_det_jacobian(x, y))


@EVERY
def test_agrees_with_the_family(name: str) -> None:
    f = FAMILIES[name]
    x, raw = points(f, 4, 3), parameters(f, 3)
    t = ElementwiseTransform(f, raw)
    y, ladj = f.forward(x, raw)
    assert torch.equal(t(x), y)
    assert torch.equal(t.log_abs_det_jacobian(x, y), ladj)
    assert torch.equal(t.inv(y), f.inverse(y, raw)[0])


@EVERY
def test_domain_and_codomain(name: str) -> None:
    f = FAMILIES[name]
    t = ElementwiseTransform(f, parameters(f))
    x = points(f, 50)
    for constraint in (t.domain, t.codomain, t.inv.domain, t.inv.codomain):
        assert constraint.event_dim == 0 and not constraint.is_discrete
        assert constraint.check(t(x)).all()
    outside = torch.tensor([f.domain.low - 0.1, f.domain.high + 0.1], dtype=torch.float64)
    if on_real_line(f):
        assert t.domain is constraints.real and t.codomain is constraints.real
        assert t.codomain.check(outside.nan_to_num(posinf=1e9, neginf=-1e9)).all()
    else:
        assert (t.domain.lower_bound, t.domain.upper_bound) == (f.domain.low, f.domain.high)
        assert not t.codomain.check(outside).any()


@EVERY
@CACHES
def test_shapes_broadcast(name: str, cache_size: int) -> None:
    f = FAMILIES[name]
    t = ElementwiseTransform(f, parameters(f, 4, 1, 3), cache_size)
    for shape in [(), (3,), (1,), (5, 3), (2, 4, 5, 3)]:
        expected = torch.broadcast_shapes(shape, (4, 1, 3))
        x = points(f, *shape)
        for shape_of in (t.forward_shape, t.inverse_shape, t.inv.forward_shape, t.inv.inverse_shape):
            assert shape_of(x.shape) == expected
        assert t(x).shape == t.inv(x).shape == t.log_abs_det_jacobian(x, t(x)).shape == expected
        torch.testing.assert_close(t(x), f.forward(x.expand(expected), t.raw)[0])


def test_equality() -> None:
    f, raw = kf.BSpline(4), torch.randn(3, kf.BSpline(4).n_parameters)
    t = ElementwiseTransform(f, raw)
    assert t == t and t == ElementwiseTransform(f, raw.clone(), cache_size=1)
    assert t.inv == ElementwiseTransform(f, raw).inv
    assert t != t.inv and t != AffineTransform(0.0, 1.0) and t != "t"
    assert t != ElementwiseTransform(f, raw + 1)
    assert t != ElementwiseTransform(f, raw[:1]) and t != ElementwiseTransform(f, raw.double())
    assert t != ElementwiseTransform(kf.BSpline(4, domain=kf.Circle(), phase=True), torch.randn(3, 9))
    base, other = Uniform(0.0, 1.0).expand((3,)), Uniform(-1.0, 2.0).expand((3,))
    p, q = TransformedDistribution(base, [t]), TransformedDistribution(other, [ElementwiseTransform(f, raw)])
    assert torch.equal(kl_divergence(p, q), kl_divergence(base, other))


@EVERY
def test_density_integrates_to_one(name: str) -> None:
    f = FAMILIES[name]
    t = ElementwiseTransform(f, parameters(f, 2))
    distribution = TransformedDistribution(base_of(f), [t])
    assert distribution.batch_shape == (2,)
    ends = [-9.0, 9.0] if on_real_line(f) else [f.domain.low, f.domain.high]
    low, high = torch.tensor(ends, dtype=torch.float64)
    if on_real_line(f):
        low, high = t(low), t(high)
    n = 10_000
    y = low + (high - low) * (torch.arange(n, dtype=torch.float64)[:, None] + 0.5) / n
    density = distribution.log_prob(y).exp()
    assert density.shape == (n, 2)
    mass = density.mean(0) * (high - low)
    # The midpoint rule feels the kinks that the density of a map with one derivative has.
    tolerance = 1e-5 if f.smoothness == 1 else 1e-6
    torch.testing.assert_close(mass, torch.ones_like(mass), atol=tolerance, rtol=0.0)


@EVERY
def test_distribution_function(name: str) -> None:
    f = FAMILIES[name]
    if getattr(f, "phase", False):
        pytest.skip("counting does not begin at the lower end")
    distribution = TransformedDistribution(base_of(f), [ElementwiseTransform(f, parameters(f, 7))])
    y = distribution.sample().requires_grad_()
    chance = distribution.cdf(y)
    (density,) = torch.autograd.grad(chance.sum(), y)
    torch.testing.assert_close(density, distribution.log_prob(y).exp(), atol=0.0, rtol=1e-9)
    torch.testing.assert_close(distribution.icdf(chance), y)


@EVERY
@CACHES
def test_derivatives_of_densities(name: str, cache_size: int) -> None:
    f = FAMILIES[name]

    def log_prob(y: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        return TransformedDistribution(base_of(f), [ElementwiseTransform(f, raw, cache_size)]).log_prob(y)

    y, raw = 0.9 * points(f, 3, seed=3), 0.5 * parameters(f, 3)
    assert torch.autograd.gradcheck(log_prob, (y.requires_grad_(), raw.requires_grad_()))


@EVERY
@CACHES
def test_samples(name: str, cache_size: int) -> None:
    f = FAMILIES[name]
    raw = parameters(f, 2, 3).requires_grad_()
    t = ElementwiseTransform(f, raw, cache_size)
    distribution = TransformedDistribution(base_of(f, 3), t)
    assert distribution.batch_shape == (2, 3) and distribution.has_rsample
    sample, reparametrised = distribution.sample((5,)), distribution.rsample((5,))
    assert sample.shape == reparametrised.shape == (5, 2, 3)
    assert not sample.requires_grad and reparametrised.requires_grad
    assert distribution.support.check(sample).all()
    assert distribution.log_prob(sample).isfinite().all()

    wider = distribution.expand((4, 2, 3))
    assert wider.sample((5,)).shape == (5, 4, 2, 3)
    assert torch.equal(wider.log_prob(sample[0]), distribution.log_prob(sample[0]).expand(4, 2, 3))


@EVERY
@CACHES
def test_events_and_chains(name: str, cache_size: int) -> None:
    f = FAMILIES[name]
    first = ElementwiseTransform(f, parameters(f, 3, seed=0), cache_size)
    second = ElementwiseTransform(f, parameters(f, 3, seed=1), cache_size)
    chain = IndependentTransform(ComposeTransform([first, second]), 1)
    x = points(f, 6, 3)
    y = chain(x)
    middle, ladj = f.forward(x, first.raw)
    expected, more = f.forward(middle, second.raw)
    assert torch.equal(y, expected)
    torch.testing.assert_close(chain.log_abs_det_jacobian(x, y), (ladj + more).sum(-1))
    assert f.domain.distance(chain.inv(y.clone()), x).max() <= 1e-10

    base = Independent(base_of(f, 3), 1)
    single = TransformedDistribution(base, [first, second])
    assert single.batch_shape == () and single.event_shape == (3,)
    assert TransformedDistribution(base_of(f, 3), [chain]).event_shape == (3,)
    torch.testing.assert_close(single.log_prob(y), base.log_prob(x) - (ladj + more).sum(-1))


def test_chain_with_a_transform_of_torch() -> None:
    f = kf.BSpline(4, 4, kf.Interval(0.0, 1.0))
    raw = parameters(f)
    degrees = TransformedDistribution(
        Uniform(torch.zeros((), dtype=torch.float64), 1.0),
        [ElementwiseTransform(f, raw), AffineTransform(0.0, 180.0)],
    )
    y = torch.tensor(90.0, dtype=torch.float64)
    torch.testing.assert_close(degrees.log_prob(y), f.inverse(y / 180, raw)[1] - math.log(180))


def test_follows_the_dtype_of_the_points() -> None:
    f = kf.BSpline(4, 4, kf.Circle(-math.pi, math.pi))
    t = ElementwiseTransform(f, parameters(f))
    x = torch.linspace(-math.pi, math.pi, 9)
    assert t(x).dtype == t.inv(x).dtype == t.log_abs_det_jacobian(x, x).dtype == torch.float32
    assert t.codomain.check(t(x)).all()


def test_uniform_base_whose_upper_end_is_included() -> None:
    """The recipe of docs/adapters.md."""
    f = kf.BSpline(8, 4, kf.Circle(-math.pi, math.pi))
    t = ElementwiseTransform(f, parameters(f))
    low, high = torch.tensor(f.domain.low), torch.tensor(f.domain.high)
    assert TransformedDistribution(Uniform(low, high), [t]).log_prob(high) == -math.inf
    above = torch.nextafter(high, torch.tensor(math.inf))
    distribution = TransformedDistribution(Uniform(low, above), [t])
    torch.testing.assert_close(distribution.log_prob(high), distribution.log_prob(low))


def test_pickles() -> None:
    f = FAMILIES["bspline-line"]
    t = ElementwiseTransform(f, parameters(f))
    x = points(f, 5)
    assert torch.equal(pickle.loads(pickle.dumps(t))(x), t(x))


def test_says_what_it_is() -> None:
    t = ElementwiseTransform(kf.Affine(), torch.zeros(2))
    assert repr(t) == "ElementwiseTransform(Affine(max_slope=1000.0))"


class TestMistakes:
    def test_wrong_number_of_parameters(self) -> None:
        f = kf.BSpline(8)
        for shape in [(), (f.n_parameters + 1,), (f.n_parameters, 3)]:
            with pytest.raises(ValueError, match=r"takes raw parameters of shape \(..., 18\), got"):
                ElementwiseTransform(f, torch.zeros(shape))

    def test_shapes_that_do_not_broadcast(self) -> None:
        f = kf.BSpline(8)
        t = ElementwiseTransform(f, torch.zeros(3, f.n_parameters))
        for call in (t, t.inv, lambda x: t.forward_shape(x.shape)):
            with pytest.raises(ValueError, match=r"points of shape \(4,\) do not broadcast"):
                call(torch.rand(4))
        with pytest.raises(ValueError, match="do not broadcast"):
            TransformedDistribution(Uniform(torch.zeros(4), 1.0), [t])

    def test_whole_numbers(self) -> None:
        t = ElementwiseTransform(kf.Affine(), torch.zeros(2))
        with pytest.raises(ValueError, match="floating-point"):
            t(torch.tensor([1, 2]))

    def test_points_outside(self) -> None:
        f = kf.BSpline(8, 4, kf.Circle(0.0, 1.0))
        distribution = TransformedDistribution(
            Uniform(0.0, 1.0), [ElementwiseTransform(f, torch.zeros(f.n_parameters))], validate_args=True
        )
        with pytest.raises(ValueError, match="support"):
            distribution.log_prob(torch.tensor(1.5))

    def test_cache_size(self) -> None:
        with pytest.raises(ValueError, match="cache_size must be 0 or 1"):
            ElementwiseTransform(kf.Affine(), torch.zeros(2), cache_size=2)


def test_normal_base_on_a_line_keeps_its_tails() -> None:
    f = kf.BSpline(8, 4, kf.Line(-3.0, 3.0))
    normal = Normal(torch.zeros((), dtype=torch.float64), 1.0)
    distribution = TransformedDistribution(normal, [ElementwiseTransform(f, parameters(f))])
    tails = torch.tensor([-5.0, 3.5], dtype=torch.float64)
    assert torch.equal(distribution.log_prob(tails), normal.log_prob(tails))
