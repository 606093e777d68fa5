"""Laws that every flow obeys, tested on a registry of flows."""

import math

import pytest
import torch

import knotflow as kf
from knotflow.flows import flow as flow_module
from knotflow.transforms import Chain
from tests.flows.registry import NAMES, context, distance, make, points

LOW_DIMENSIONAL = [name for name in NAMES if name.endswith(("1d", "2d"))]


@pytest.fixture(params=NAMES)
def flow(request: pytest.FixtureRequest) -> kf.Flow:
    return make(request.param)


def test_inverse_undoes_forward(flow: kf.Flow) -> None:
    x, c = points(flow, 200), context(flow, 200)
    z, ladj = flow(x, c)
    back, inverse_ladj = flow.inverse(z, c)
    assert distance(flow, back, x) < 1e-9
    torch.testing.assert_close(inverse_ladj, -ladj, atol=1e-7, rtol=0)


def test_float32_round_trip(flow: kf.Flow) -> None:
    x, c = points(flow, 500), context(flow, 500)
    flow = flow.float()
    x, c = x.float(), None if c is None else c.float()
    assert distance(flow, flow.inverse(flow(x, c)[0], c)[0], x) < 2e-4
    assert flow.log_prob(x, c).dtype == torch.float32


def test_log_determinant_is_that_of_the_jacobian(flow: kf.Flow) -> None:
    for row in range(5):
        x = points(flow, 1, seed=row)[0]
        c = context(flow, 1, seed=row)
        c = None if c is None else c[0]
        jacobian = torch.func.jacrev(lambda x, c=c: flow(x, c)[0])(x)
        torch.testing.assert_close(flow(x, c)[1], torch.linalg.slogdet(jacobian)[1], atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", LOW_DIMENSIONAL)
def test_density_integrates_to_one(name: str) -> None:
    flow, n = make(name), 400 if name.endswith("2d") else 20_000
    axes, cell = [], 1.0
    for domain in flow.domains:
        # The tails of a line: its base has a tenth of the length as standard deviation.
        widen = 0.6 * domain.length if isinstance(domain, kf.Line) else 0.0
        low, high = domain.low - widen, domain.high + widen
        axes.append(low + (high - low) * (torch.arange(n, dtype=torch.float64) + 0.5) / n)
        cell *= (high - low) / n
    grid = torch.cartesian_prod(*axes).reshape(-1, flow.dim)
    c = context(flow, 1)
    with torch.no_grad():
        mass = flow.log_prob(grid, None if c is None else c[0]).exp().sum() * cell
    assert abs(mass - 1) < 2e-3


def test_score_is_the_derivative_of_log_prob(flow: kf.Flow) -> None:
    x, c, h = points(flow, 50), context(flow, 50), 1e-6
    score = flow.score(x, c)
    log_prob, same = flow.log_prob_and_score(x, c)
    torch.testing.assert_close(same, score)
    torch.testing.assert_close(log_prob, flow.log_prob(x, c))
    for i, domain in enumerate(flow.domains):
        step = torch.zeros(flow.dim, dtype=torch.float64)
        step[i] = h * domain.length
        inside = x.clone()
        if isinstance(domain, kf.Interval):
            inside[:, i] = inside[:, i].clamp(domain.low + step[i], domain.high - step[i])
        difference = (flow.log_prob(inside + step, c) - flow.log_prob(inside - step, c)) / (2 * step[i])
        exact = flow.score(inside, c)[:, i]
        # Slopes of a rational-quadratic spline have kinks: a point may sit on one.
        close = (difference - exact).abs() * domain.length < 1e-3 * (1 + exact.abs() * domain.length)
        assert close.float().mean() > 0.95


def test_samples_carry_their_own_density(flow: kf.Flow) -> None:
    c = context(flow, 300)
    x, log_prob = flow.sample_and_log_prob(300, c, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(log_prob, flow.log_prob(x, c), atol=1e-6, rtol=0)
    again = flow.sample(300, c, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(again, x, atol=0, rtol=0)


def test_mean_log_ratio_of_samples_is_a_free_energy(flow: kf.Flow) -> None:
    """E_q[p0/q] = 1 for the flow of the base: an identity that fails if sampling and density disagree."""
    if any(isinstance(f, Chain) for coupling in flow.couplings for f in coupling.transforms):
        pytest.skip("an affine part may make q narrower than p0: then the ratio has no variance")
    if flow.whitened:
        pytest.skip("so may a linear map")
    n = 20_000
    c = context(flow, 1)
    c = None if c is None else c[0]
    x, log_q = flow.sample_and_log_prob(n, c, generator=torch.Generator().manual_seed(5))
    volume = math.prod(d.length for d in flow.domains if not isinstance(d, kf.Line))
    target = torch.full((n,), -math.log(volume), dtype=torch.float64)
    for i, d in enumerate(flow.domains):
        if isinstance(d, kf.Line):
            normal = torch.distributions.Normal((d.low + d.high) / 2, d.length / 10)
            target = target + normal.log_prob(x[:, i])
    ratio = (target - log_q).exp()
    error = ratio.std() / math.sqrt(n)
    assert abs(ratio.mean() - 1) < max(5 * error, 0.02)


def test_vmap_gives_the_same(flow: kf.Flow) -> None:
    x, c = points(flow, 20), context(flow, 20)
    arguments = (x,) if c is None else (x, c)
    torch.testing.assert_close(torch.func.vmap(flow.log_prob)(*arguments), flow.log_prob(*arguments))
    torch.testing.assert_close(torch.func.vmap(flow.score)(*arguments), flow.score(*arguments))


def test_any_leading_shape(flow: kf.Flow) -> None:
    x, c = points(flow, 24), context(flow, 24)
    expected = flow.log_prob(x, c)
    shaped = flow.log_prob(x.reshape(2, 3, 4, -1), None if c is None else c.reshape(2, 3, 4, -1))
    torch.testing.assert_close(shaped, expected.reshape(2, 3, 4))


def test_chunks_change_nothing(flow: kf.Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    x, c = points(flow, 50), context(flow, 50)
    with torch.no_grad():
        whole, score = flow.log_prob(x, c), flow.score(x, c)
        monkeypatch.setattr(flow_module, "CHUNK", 7)
        torch.testing.assert_close(flow.log_prob(x, c), whole)
        torch.testing.assert_close(flow.score(x, c), score)
    drawn, log_prob = flow.sample_and_log_prob(50, c)
    assert drawn.shape == (50, flow.dim)
    torch.testing.assert_close(flow.log_prob(drawn, c), log_prob, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["circle-1d", "circle-2d", "mixed-5d", "residual-3d"])
def test_density_and_force_continue_over_the_seam(name: str) -> None:
    flow = make(name)
    x = points(flow, 30)
    left, right = x.clone(), x.clone()
    left[:, 0], right[:, 0] = flow.domains[0].low, flow.domains[0].high
    torch.testing.assert_close(flow.log_prob(left), flow.log_prob(right))
    torch.testing.assert_close(flow.score(left), flow.score(right))
    torch.testing.assert_close(flow.log_prob(x), flow.log_prob(_turned(flow, x)))


def _turned(flow: kf.Flow, x: torch.Tensor) -> torch.Tensor:
    return x + x.new_tensor([d.length if isinstance(d, kf.Circle) else 0.0 for d in flow.domains])


def test_gradients_reach_every_weight(flow: kf.Flow) -> None:
    x, c = points(flow, 64), context(flow, 64)
    log_prob, score = flow.log_prob_and_score(x, c)
    (score.square().mean() - log_prob.mean()).backward()
    for name, parameter in flow.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name
