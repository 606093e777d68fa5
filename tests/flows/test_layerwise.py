"""Layer by layer a flow has the same density, score, gradients and samples; compiled as well."""

import functools
import logging

import pytest
import torch
from torch import Tensor, nn

import knotflow as kf
from knotflow.flows.layerwise import Layerwise
from tests.flows.registry import ANGLE, BOND, HEIGHT, NAMES, context, distance, make, points

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def eager() -> Layerwise:
    return Layerwise(enabled=False)


def tangents(x: Tensor) -> Tensor:
    return torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(8))


@pytest.fixture(params=NAMES)
def flow(request: pytest.FixtureRequest) -> kf.Flow:
    return make(request.param)


def gradients(flow: kf.Flow, value: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(flow.parameters()), materialize_grads=True))


def test_log_density_and_its_derivatives(flow: kf.Flow) -> None:
    x, c = points(flow, 40), context(flow, 40)
    here, there = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = eager().log_prob(flow, here, c), flow.log_prob(there, c)
    torch.testing.assert_close(found, expected, **CLOSE)
    weight = tangents(expected)
    parameters = list(flow.parameters())
    torch.testing.assert_close(
        torch.autograd.grad((weight * found).sum(), [here, *parameters], materialize_grads=True),
        torch.autograd.grad((weight * expected).sum(), [there, *parameters], materialize_grads=True),
        **CLOSE,
    )


def test_score(flow: kf.Flow) -> None:
    x, c = points(flow, 40), context(flow, 40)
    with torch.no_grad():  # as in validation
        found = eager().log_prob_and_score(flow, x, c)
    assert not found[0].requires_grad and not found[1].requires_grad
    torch.testing.assert_close(found, tuple(part.detach() for part in flow.log_prob_and_score(x, c)), **CLOSE)


def test_derivative_along_a_direction(flow: kf.Flow) -> None:
    x, c = points(flow, 40), context(flow, 40)
    v = tangents(x)
    found = eager().log_prob_and_derivative(flow, x, v, c)
    log_prob, score = flow.log_prob_and_score(x, c)
    torch.testing.assert_close(found, (log_prob, (score * v).sum(-1)), **CLOSE)


def test_gradient_of_a_loss_of_the_score(flow: kf.Flow) -> None:
    """The identity on which all rests, against autograd that differentiates twice, backward over backward."""
    x, c = points(flow, 24), context(flow, 24)
    target = tangents(x)

    def loss(score: Tensor) -> Tensor:
        return (score - target).square().mean() + (0.1 * score).sin().sum()

    log_prob = flow.log_prob(x.requires_grad_(), c)
    (score,) = torch.autograd.grad(log_prob.sum(), x, create_graph=True)
    expected = gradients(flow, loss(score) - log_prob.mean())

    s = eager().log_prob_and_score(flow, x.detach(), c)[1].requires_grad_()
    (v,) = torch.autograd.grad(loss(s), s)
    log_prob, derivative = eager().log_prob_and_derivative(flow, x.detach(), v, c)
    found = gradients(flow, derivative.sum() - log_prob.mean())
    largest = max(float(part.abs().max()) for part in expected)
    assert largest > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10 * max(1.0, largest))


def test_samples(flow: kf.Flow) -> None:
    c = context(flow, 40)
    z = flow.sample_base(40, generator=torch.Generator().manual_seed(4))
    found, found_ladj = eager().inverse(flow, z, c)
    expected, ladj = flow.inverse(z, c)
    assert distance(flow, found, expected) < 1e-10
    torch.testing.assert_close(found_ladj, ladj, **CLOSE)
    # And their gradient in the weights, for the reverse divergence.
    torch.testing.assert_close(
        gradients(flow, (found.sin().sum(-1) - found_ladj).mean()),
        gradients(flow, (expected.sin().sum(-1) - ladj).mean()),
        rtol=1e-7,
        atol=1e-9,
    )
    assert found_ladj.shape == (40,)


def test_in_single_precision(flow: kf.Flow) -> None:
    x, c = points(flow, 200), context(flow, 200)
    exact = flow.log_prob_and_score(x, c)
    flow = flow.float()
    x, c = x.float(), None if c is None else c.float()
    log_prob, score = eager().log_prob_and_score(flow, x, c)
    assert log_prob.dtype == score.dtype == torch.float32
    torch.testing.assert_close(log_prob.double(), exact[0].detach(), rtol=1e-4, atol=2e-3)
    error, size = (score.double() - exact[1]).abs(), exact[1].abs().amax(0)
    # A point next to a knot of a rational-quadratic spline may be on either side of it.
    assert (error <= 1e-3 * size).double().mean() > 0.99


def test_points_outside_are_refused() -> None:
    flow = make("mixed-5d")
    x = points(flow, 10)
    x[3, 2] = 0.4
    for use in (
        lambda: eager().log_prob(flow, x),
        lambda: eager().log_prob_and_score(flow, x),
        lambda: eager().log_prob_and_derivative(flow, x, x),
    ):
        with pytest.raises(ValueError, match="coordinate 2 lives on the interval"):
            use()


def test_a_network_of_ones_own() -> None:
    """Without a derivative written out, that of its parts is taken."""

    class Mine(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.linear = nn.Linear(1, n)

        def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
            return torch.tanh(3 * self.linear(x.square()))

    torch.manual_seed(0)
    f = kf.BSpline(5, 4, kf.Interval())
    flow = kf.Flow([BOND, BOND], [kf.Coupling([1], [f], [0], Mine(f.n_parameters))]).double()
    x = points(flow, 20)
    v = tangents(x)
    found = eager().log_prob_and_derivative(flow, x, v)
    log_prob, score = flow.log_prob_and_score(x)
    torch.testing.assert_close(found, (log_prob, (score * v).sum(-1)), **CLOSE)


def test_a_flow_without_couplings_is_its_base() -> None:
    flow = kf.Flow([ANGLE, HEIGHT], []).double()
    x = points(flow, 10)
    v = tangents(x)
    log_prob, derivative = eager().log_prob_and_derivative(flow, x, v)
    torch.testing.assert_close(log_prob, flow.log_prob(x), **CLOSE)
    torch.testing.assert_close(derivative, (flow.score(x) * v).sum(-1), **CLOSE)
    torch.testing.assert_close(eager().inverse(flow, flow(x)[0])[0], x, **CLOSE)


def test_equal_couplings_share_their_pieces() -> None:
    """Also those of different flows: what was compiled once is not compiled again."""
    layers = eager()
    for seed in range(2):
        torch.manual_seed(seed)
        flow = kf.Flow.on(
            [HEIGHT, ANGLE],
            rounds=2,
            transform={"bins": 4, "affine": True},
            conditioner={"hidden": [4]},
        ).double()
        x = points(flow, 5)
        layers.log_prob_and_derivative(flow, x, x)
        layers.log_prob(flow, x)
        layers.inverse(flow, flow(x)[0])
    kinds = {(tuple(map(repr, c.transforms)), len(c.read)) for c in flow.couplings}
    assert len(kinds) < len(flow.couplings)
    assert len(layers._pieces) == 3 * len(kinds)


TRACED = {
    "splines": ([ANGLE, HEIGHT], {"bins": 4, "order": 3, "affine": True}),
    "rq": ([BOND], {"family": "rq", "bins": 3}),
    "smooth": ([ANGLE], {"family": "smooth", "components": 2}),
}


def check_compiled(flow: kf.Flow, caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    layers = Layerwise()
    assert layers.compiled
    x = points(flow, 8)
    v = tangents(x)
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        log_prob, derivative = layers.log_prob_and_derivative(flow, x, v)
        found = gradients(flow, derivative.sum() - log_prob.sum())
        score = layers.log_prob_and_score(flow, x)[1]
    assert layers.compiled and "torch.compile failed" not in caplog.text
    expected, expected_score = flow.log_prob_and_score(x)
    torch.testing.assert_close(log_prob, expected, **CLOSE)
    torch.testing.assert_close(score, expected_score.detach(), **CLOSE)
    torch.testing.assert_close(derivative, (expected_score * v).sum(-1), **CLOSE)
    wanted = gradients(flow, (expected_score * v).sum() - expected.sum())
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_traced(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """All of PyTorch's compilation but its last, slow step, which needs a C++ compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch.manual_seed(0)
    domains, transform = TRACED[name]
    flow = kf.Flow.on(domains, rounds=1, transform=transform, conditioner={"hidden": [6]}).double()
    check_compiled(flow, caplog)


@pytest.mark.slow
def test_compiled(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    flow = kf.Flow.on([HEIGHT], rounds=1, transform={"bins": 3, "order": 3}).double()
    check_compiled(flow, caplog)
