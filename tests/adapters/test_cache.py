"""With a cache nothing is computed twice, and nothing stale is returned."""

import pytest
import torch
from torch import Tensor
from torch.distributions import ComposeTransform, Normal, TransformedDistribution

import knotflow as kf
from knotflow.adapters import ElementwiseTransform
from tests.adapters.families import FAMILIES, parameters, points

LINE = FAMILIES["bspline-line"]


class Counted(kf.Affine):
    """Counts its evaluations."""

    evaluations = 0

    def _forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        self.evaluations += 1
        return super()._forward(x, raw)

    def _inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        self.evaluations += 1
        return super()._inverse(y, raw)


@pytest.mark.parametrize("name", FAMILIES)
def test_returns_the_same_objects(name: str) -> None:
    f = FAMILIES[name]
    t = ElementwiseTransform(f, parameters(f, 5), cache_size=1)
    x = points(f, 5)
    y = t(x)
    assert t(x) is y and t.inv(y) is x
    assert t.log_abs_det_jacobian(x, y) is t.log_abs_det_jacobian(x, y)
    assert t(x.clone()) is not y

    y = points(f, 5, seed=2)
    x = t.inv(y)
    assert t.inv(y) is x and t(x) is y


def test_without_one_nothing_is_kept() -> None:
    t = ElementwiseTransform(LINE, parameters(LINE))
    x = points(LINE, 5)
    y = t(x)
    assert t(x) is not y and t.inv(y) is not x


@pytest.mark.parametrize("cache_size, evaluations", [(0, 2), (1, 1)])
def test_value_and_log_derivative_from_one_evaluation(cache_size: int, evaluations: int) -> None:
    f = Counted()
    t = ElementwiseTransform(f, torch.zeros(2), cache_size)
    x = torch.randn(3)
    t.log_abs_det_jacobian(x, t(x))
    assert f.evaluations == evaluations

    f.evaluations = 0
    TransformedDistribution(Normal(0.0, 1.0), [t]).log_prob(torch.randn(3))
    assert f.evaluations == evaluations

    f.evaluations = 0
    t.call_and_ladj(torch.randn(3))
    assert f.evaluations == 1


def test_other_cache_size() -> None:
    t = ElementwiseTransform(LINE, parameters(LINE))
    cached = t.with_cache()
    assert t.with_cache(0) is t and cached.with_cache(1) is cached
    assert cached == t and cached.raw is t.raw
    x = points(LINE, 5)
    assert cached(x) is cached(x)
    inverse = t.inv.with_cache()
    assert inverse(x) is inverse(x)
    chain = ComposeTransform([t, t], cache_size=1)
    assert chain.parts[0](x) is chain.parts[0](x)


def test_clearing() -> None:
    t = ElementwiseTransform(LINE, parameters(LINE), cache_size=1)
    x = points(LINE, 5)
    y = t(x)
    t.clear_cache()
    assert t(x) is not y


@pytest.mark.parametrize("what", ["raw", "x", "y"])
def test_notices_changes_in_place(what: str) -> None:
    t = ElementwiseTransform(LINE, parameters(LINE), cache_size=1)
    x = points(LINE, 5)
    y = t(x)
    ladj = t.log_abs_det_jacobian(x, y)
    {"raw": t.raw, "x": x, "y": y}[what].mul_(0.5)
    fresh = ElementwiseTransform(LINE, t.raw)
    assert torch.equal(t.inv(y), fresh.inv(y))
    assert torch.equal(t(x), fresh(x))
    assert torch.equal(t.log_abs_det_jacobian(x, y), fresh.log_abs_det_jacobian(x, y))
    assert what == "y" or not torch.equal(t.log_abs_det_jacobian(x, y), ladj)


def test_one_distribution_serves_a_whole_training() -> None:
    raw = parameters(LINE).requires_grad_()
    optimiser = torch.optim.Adam([raw], lr=0.1)
    normal = Normal(torch.zeros((), dtype=torch.float64), 1.0)
    distribution = TransformedDistribution(normal, [ElementwiseTransform(LINE, raw, cache_size=1)])
    data = 0.3 * points(LINE, 50)
    losses = []
    for _ in range(20):
        loss = -distribution.log_prob(data).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_sample_without_gradient_has_a_density_with_all_of_it() -> None:
    """The preimage of a given point depends on the parameters, also if the cache knows it already."""
    raw = parameters(LINE).requires_grad_()
    normal = Normal(torch.zeros(9, dtype=torch.float64), 1.0)
    gradients = []
    for cache_size in (0, 1):
        torch.manual_seed(0)
        distribution = TransformedDistribution(normal, [ElementwiseTransform(LINE, raw, cache_size)])
        sample = distribution.sample()
        gradients.append(torch.autograd.grad(distribution.log_prob(sample).sum(), raw)[0])
    torch.testing.assert_close(*gradients)


def test_sample_with_gradient_has_the_same_gradient_as_without_a_cache() -> None:
    raw = parameters(LINE).requires_grad_()
    normal = Normal(torch.zeros(9, dtype=torch.float64), 1.0)
    gradients = []
    for cache_size in (0, 1):
        torch.manual_seed(0)
        distribution = TransformedDistribution(normal, [ElementwiseTransform(LINE, raw, cache_size)])
        sample = distribution.rsample()
        loss = (distribution.log_prob(sample) + sample**2).sum()
        gradients.append(torch.autograd.grad(loss, raw)[0])
    torch.testing.assert_close(*gradients, atol=1e-10, rtol=1e-8)


def test_inference_mode() -> None:
    t = ElementwiseTransform(LINE, parameters(LINE), cache_size=1)
    with torch.inference_mode():
        x = points(LINE, 5)
        y = t(x)
        assert t.inv(y) is x
    assert torch.equal(t(x), y)


@pytest.mark.parametrize("cache_size", [0, 1])
def test_transformed_functions(cache_size: int) -> None:
    t = ElementwiseTransform(LINE, parameters(LINE), cache_size)
    x = points(LINE, 5)
    ladj = t.log_abs_det_jacobian(x, t(x))
    slopes = torch.vmap(torch.func.grad(t))(x)
    torch.testing.assert_close(slopes.log(), ladj, atol=1e-10, rtol=0.0)


@pytest.mark.parametrize("cache_size", [0, 1])
def test_compiles_in_one_piece(cache_size: int) -> None:
    raw = parameters(LINE)

    def density(y: Tensor) -> Tensor:
        t = ElementwiseTransform(LINE, raw, cache_size)
        return t.inv.log_abs_det_jacobian(y, t.inv(y))

    y = points(LINE, 5)
    compiled = torch.compile(density, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(y), density(y))
