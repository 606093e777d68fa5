"""Flows whose domains are taken from data, and refusals of what no flow can use."""

import math

import numpy as np
import pytest
import torch

import knotflow as kf
from tests.flows.registry import context, make, points


def _data(n: int = 2000) -> torch.Tensor:
    torch.manual_seed(0)
    angle = (torch.randn(n, dtype=torch.float64) + math.pi).remainder(2 * math.pi) - math.pi
    first = 3.0 + 0.5 * torch.randn(n, dtype=torch.float64)
    second = -100 * first + 10 * torch.randn(n, dtype=torch.float64)
    return torch.stack([angle, first, second], -1)


def test_one_call_gives_a_flow_that_fits() -> None:
    """On normal data it begins as the normal distribution of their mean and covariance."""
    x = _data()[:, 1:]
    flow = kf.Flow.for_data(x)
    assert flow.whitened
    assert next(flow.parameters()).dtype == torch.float64
    normal = torch.distributions.MultivariateNormal(x.mean(0), torch.cov(x.T))
    torch.testing.assert_close(flow.log_prob(x), normal.log_prob(x), atol=1e-3, rtol=0)


def test_known_domains_are_kept_and_options_passed_on() -> None:
    x, circle = _data(), kf.Circle(-math.pi, math.pi)
    flow = kf.Flow.for_data(x, {0: circle}, whitened=False, masks="autoregressive", rounds=1, context=2)
    assert flow.domains[0] == circle
    low, high = flow.domains[1].low, flow.domains[1].high
    assert math.isclose((low + high) / 2, float(x[:, 1].mean()))
    assert math.isclose(high - low, 10 * float(x[:, 1].std()))
    assert (flow.whitened, flow.context, len(flow.couplings)) == (False, 2, 1)


@pytest.mark.parametrize(
    ("x", "known", "message"),
    [
        (np.zeros((5, 2)), {}, r"expected data as a torch tensor, got numpy\.ndarray; convert with"),
        (torch.zeros(5), {}, r"expected data of shape \(n, d\)"),
        (torch.zeros(1, 2), {}, "at least two points"),
        (torch.zeros(5, 2, dtype=torch.long), {}, "floating-point"),
        (torch.zeros(5, 2), {}, "coordinate 0 of the data is constant; leave it out"),
        (torch.full((5, 2), math.nan), {}, "coordinate 0 of the data has values that are not finite"),
        (torch.randn(5, 2), {2: kf.Circle()}, "there is no coordinate 2; data have 2, counted from 0"),
        (torch.randn(5, 2), {1: kf.Interval(9.0, 10.0)}, r"coordinate 1 lives on the interval \[9\.0"),
    ],
)
def test_data_that_cannot_be_fitted_are_refused(x: torch.Tensor, known: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kf.Flow.for_data(x, known)


def test_arrays_of_numpy_are_refused_everywhere() -> None:
    flow = make("context-2d")
    x, c = points(flow, 5), context(flow, 5)
    assert c is not None
    calls = [flow.log_prob, flow.score, flow.forward, flow.inverse, flow.check]
    for call in calls:
        with pytest.raises(ValueError, match=r"expected points as a torch tensor, got numpy\.ndarray"):
            call(x.numpy(), c)
        with pytest.raises(ValueError, match=r"expected a context as a torch tensor, got numpy\.ndarray"):
            call(x, c.numpy())
    for wrong in (c.numpy(), c[0].numpy()):
        with pytest.raises(ValueError, match="expected a context as a torch tensor"):
            flow.sample(5, wrong)
    f = kf.BSpline(4)
    with pytest.raises(ValueError, match=r"expected points of BSpline as a torch tensor, got numpy\.ndarray"):
        f.forward(np.zeros(3), torch.zeros(3, f.n_parameters))
    with pytest.raises(ValueError, match=r"raw parameters of BSpline as a torch tensor"):
        f.forward(torch.zeros(3), np.zeros((3, f.n_parameters)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_contexts_that_are_not_finite_are_refused(bad: float) -> None:
    flow = make("context-2d")
    x, c = points(flow, 5), context(flow, 5)
    assert c is not None
    c[3, 1] = bad
    message = "component 1 of the context is NaN or infinite; 1 of 5 contexts"
    for call in (flow.log_prob, flow.score, flow.inverse):
        with pytest.raises(ValueError, match=message):
            call(x, c)
    with pytest.raises(ValueError, match=message):
        flow.sample(5, c)
    with pytest.raises(ValueError, match="1 of 1 contexts"):
        flow.log_prob(x, c[3])
