"""A whole flow as a distribution: shapes, densities, derivatives of samples, Pyro."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import biject_to, kl_divergence

import knotflow as kf
from knotflow.adapters import FlowDistribution
from tests.flows.registry import NAMES, context, make

FLOAT = torch.float64
LINE = kf.Line(-2.0, 3.0)


@pytest.fixture(params=NAMES)
def flow(request: pytest.FixtureRequest) -> kf.Flow:
    return make(request.param)


def test_points_contexts_and_densities_have_their_shapes(flow: kf.Flow) -> None:
    """Three draws for each of four contexts; each density is that of the flow at its own context."""
    contexts = context(flow, 4)
    own = FlowDistribution(flow, contexts, validate_args=True)
    batch = () if contexts is None else (4,)
    assert (own.batch_shape, own.event_shape) == (batch, (flow.dim,))
    for x in (own.sample((3, 2)), own.rsample((3, 2))):
        assert x.shape == (3, 2, *batch, flow.dim)
        log_prob = own.log_prob(x)
        assert log_prob.shape == (3, 2, *batch)
        for i in range(len(contexts) if contexts is not None else 1):
            c = None if contexts is None else contexts[i]
            expected = flow.log_prob(x[:, :, i] if batch else x, c)
            torch.testing.assert_close(log_prob[:, :, i] if batch else log_prob, expected)


def test_draws_carry_their_own_density(flow: kf.Flow) -> None:
    own = FlowDistribution(flow, context(flow, 4))
    x, log_prob = own.rsample_and_log_prob((5,))
    torch.testing.assert_close(own.log_prob(x), log_prob, atol=1e-6, rtol=0)


def test_one_context_and_expand() -> None:
    flow = make("context-2d")
    one = torch.randn(3, dtype=FLOAT)
    single = FlowDistribution(flow, one)
    assert single.sample((6,)).shape == (6, 2)
    many = single.expand((5, 4))
    assert many.sample((2,)).shape == (2, 5, 4, 2)
    x = single.sample()
    torch.testing.assert_close(many.log_prob(x), flow.log_prob(x, one).expand(5, 4))
    assert FlowDistribution(make("line-1d")).expand((3,)).sample((2,)).shape == (2, 3, 1)


def test_support_is_where_points_are() -> None:
    flow = make("mixed-5d")
    own = FlowDistribution(flow)
    x = own.sample((2000,))
    assert own.support.check(x).all()
    outside = x[0].clone()
    outside[2] = 0.4
    assert not own.support.check(outside)
    with pytest.raises(ValueError, match="support"):
        FlowDistribution(flow, validate_args=True).log_prob(outside)
    # Pyro's NUTS and automatic guides move to the real numbers and back.
    back = biject_to(own.support)
    torch.testing.assert_close(back(back.inv(x[:50])), x[:50])
    assert FlowDistribution(make("line-1d")).support.event_dim == 1


@pytest.mark.parametrize("name", ["mixed-5d", "context-2d", "autoregressive-2d"])
def test_derivatives_of_draws_are_those_of_finite_differences(name: str) -> None:
    """By a weight of a network, with the same random numbers on both sides."""
    flow = make(name)
    own = FlowDistribution(flow, context(flow, 3))
    weight = max(flow.parameters(), key=Tensor.numel)
    with torch.no_grad():
        direction = torch.randn_like(weight)
    index = torch.arange(flow.dim, dtype=FLOAT) + 1

    def mean() -> Tensor:
        torch.manual_seed(1)
        return (own.rsample((20,)).sin() * index).mean()

    exact = (torch.autograd.grad(mean(), weight)[0] * direction).sum()
    values = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            weight += step * direction
            values.append(mean())
            weight -= step * direction
    torch.testing.assert_close(exact, (values[0] - values[1]) / 2e-6, rtol=1e-4, atol=1e-8)


def test_derivatives_of_draws_by_the_context() -> None:
    flow, c = make("context-2d"), torch.randn(4, 3, dtype=FLOAT)

    def draws(c: Tensor) -> Tensor:
        torch.manual_seed(2)
        return FlowDistribution(flow, c).rsample()

    assert torch.autograd.gradcheck(draws, c.requires_grad_())


def test_draws_of_a_mixture_learn_a_mean_as_the_score_function_says() -> None:
    """Implicit derivatives against E[f d log p / d theta] by quadrature, in one and two dimensions."""
    for lines in (1, 2):
        torch.manual_seed(lines)
        flow = kf.Flow([kf.Line()] * lines, [], components=3).double()
        mixture = flow.mixture
        assert mixture is not None
        with torch.no_grad():
            for parameter in mixture.parameters():
                parameter += 0.5 * torch.randn_like(parameter)
        side = torch.linspace(-9.0, 9.0, 20_001 if lines == 1 else 301, dtype=FLOAT)
        grid = torch.cartesian_prod(*[side] * lines).reshape(-1, lines)
        cell = (side[1] - side[0]) ** lines
        exact = (flow.log_prob(grid).exp() * _test_function(grid)).sum() * cell
        wanted = torch.autograd.grad(exact, list(mixture.parameters()))
        n = 200_000
        values = _test_function(FlowDistribution(flow).rsample((n,)))
        found = torch.autograd.grad(values.mean(), list(mixture.parameters()))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=0.01)


def _test_function(x: Tensor) -> Tensor:
    return torch.sin(x[..., 0]) * x[..., -1].square().neg().exp() + 0.3 * x[..., 0]


def test_is_a_base_of_other_distributions() -> None:
    """In a TransformedDistribution and a KL divergence by samples, as any distribution."""
    own = FlowDistribution(kf.Flow.on([LINE]).double())  # not trained: the normal distribution
    moved = torch.distributions.TransformedDistribution(own, [torch.distributions.AffineTransform(1.0, 2.0)])
    x = moved.sample((10,))
    normal = torch.distributions.Normal(torch.tensor([2.0], dtype=FLOAT), 1.0)
    torch.testing.assert_close(moved.log_prob(x), normal.log_prob(x)[:, 0])
    with pytest.raises(NotImplementedError):
        kl_divergence(own, torch.distributions.Independent(normal, 1))


def test_refusals_say_what_to_do() -> None:
    flow = make("context-2d")
    with pytest.raises(ValueError, match=r"this flow is conditional: give a context of shape \(\.\.\., 3\)"):
        FlowDistribution(flow)
    with pytest.raises(ValueError, match="component 1 of the context is NaN or infinite; 1 of 2 contexts"):
        FlowDistribution(flow, torch.tensor([[0.0, 1.0, 2.0], [0.0, math.nan, 0.0]]))
    with pytest.raises(ValueError, match=r"got numpy\.ndarray"):
        FlowDistribution(make("line-1d"), validate_args=True).log_prob(torch.zeros(3, 1).numpy())


def test_pyro_learns_a_likelihood_of_many_contexts() -> None:
    pyro = pytest.importorskip("pyro")
    from knotflow.adapters.pyro import PyroFlow

    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    contexts = torch.linspace(-1.0, 1.0, 200).unsqueeze(-1)
    data = contexts + 0.3 * torch.randn(200, 1)
    flow = kf.Flow.on([LINE], context=1, transform={"bins": 8, "affine": True})

    def model() -> None:
        pyro.module("flow", flow)
        with pyro.plate("data", len(data)):
            pyro.sample("x", PyroFlow(flow, contexts), obs=data)

    svi = pyro.infer.SVI(model, lambda: None, pyro.optim.Adam({"lr": 0.01}), loss=pyro.infer.Trace_ELBO())
    losses = [svi.step() / len(data) for _ in range(150)]
    best = -torch.distributions.Normal(contexts, 0.3).log_prob(data).mean().item()
    assert losses[0] > best + 0.3
    assert losses[-1] < best + 0.03  # it may know its few points better than the law behind them


@pytest.mark.parametrize("options", [{}, {"components": 2}, {"masks": "autoregressive"}], ids=str)
def test_pyro_learns_a_guide(options: dict[str, object]) -> None:
    """SVI needs derivatives of draws; the evidence is reached when the guide is the posterior."""
    pyro = pytest.importorskip("pyro")
    from knotflow.adapters.pyro import PyroFlow

    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    covariance = torch.tensor([[1.0, 0.6], [0.6, 1.0]])
    target = pyro.distributions.MultivariateNormal(torch.tensor([0.5, -0.3]), covariance)
    lines = [kf.Line(-5.0, 5.0)] * 2
    flow = kf.Flow.on(lines, rounds=1, transform={"bins": 8, "affine": True}, **options)

    def model() -> None:
        with pyro.plate("draws", 128):
            pyro.sample("z", target)

    def guide() -> None:
        pyro.module("flow", flow)
        with pyro.plate("draws", 128):
            pyro.sample("z", PyroFlow(flow))

    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), loss=pyro.infer.Trace_ELBO())
    losses = [svi.step() / 128 for _ in range(150)]
    assert losses[0] > 0.15
    assert sum(losses[-20:]) / 20 == pytest.approx(0.0, abs=0.05)
