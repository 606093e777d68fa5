"""The mixture base against ``torch.distributions.MixtureSameFamily``; fits to data with several modes."""

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import knotflow as kf
from knotflow.errors import ConfigError
from knotflow.flows.mixture import Mixture
from tests.flows.registry import context, make, points


def _mixture(lines: int = 3, components: int = 4) -> Mixture:
    torch.manual_seed(lines)
    mixture = Mixture(lines, components).double()
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter += 0.7 * torch.randn_like(parameter)
    return mixture


def _oracle(mixture: Mixture) -> MixtureSameFamily:
    normals = Independent(Normal(mixture.means, mixture.log_deviations.exp()), 1)
    return MixtureSameFamily(Categorical(logits=mixture.logits), normals)


def test_density_is_that_of_torch() -> None:
    mixture = _mixture()
    z = 3 * torch.randn(200, 3, dtype=torch.float64)
    torch.testing.assert_close(mixture.log_prob(z), _oracle(mixture).log_prob(z))
    torch.testing.assert_close(mixture.log_prob(z[0]), _oracle(mixture).log_prob(z[0]))


def test_density_of_a_flow_without_couplings_is_that_of_torch() -> None:
    flow = kf.Flow([kf.Line(), kf.Line()], [], components=3).double()
    assert flow.mixture is not None
    x = torch.randn(50, 2, dtype=torch.float64)
    torch.testing.assert_close(flow.log_prob(x), _oracle(flow.mixture).log_prob(x))


def test_samples_have_the_moments_of_the_mixture() -> None:
    mixture = _mixture()
    with torch.no_grad():
        z = mixture.sample(100_000, torch.Generator().manual_seed(0))
        oracle = _oracle(mixture)
    assert ((z.mean(0) - oracle.mean).abs() < 5 * oracle.stddev / 100_000**0.5).all()
    torch.testing.assert_close(z.var(0), oracle.variance, rtol=0.03, atol=0.0)


def test_shares_of_the_base_are_those_of_torch() -> None:
    torch.manual_seed(0)
    flow = kf.Flow([kf.Line(), kf.Circle(), kf.Line()], [], components=3).double()
    mixture, z = flow.mixture, torch.rand(50, 3, dtype=torch.float64)
    assert mixture is not None
    for line, coordinate in enumerate((0, 2)):
        normals = Normal(mixture.means[:, line], mixture.log_deviations[:, line].exp())
        one = MixtureSameFamily(Categorical(logits=mixture.logits), normals)
        torch.testing.assert_close(flow.base_cdf(z)[:, coordinate], one.cdf(z[:, coordinate]))
    assert torch.equal(flow.base_cdf(z)[:, 1], z[:, 1])
    plain = kf.Flow([kf.Line()], []).double()
    torch.testing.assert_close(plain.base_cdf(z[:, :1]), Normal(0.0, 1.0).cdf(z[:, :1]))


def test_samples_with_derivatives_are_the_same_points() -> None:
    mixture = _mixture()
    drawn = mixture.sample(100, torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = mixture.sample(100, torch.Generator().manual_seed(1))
    assert torch.equal(drawn.detach(), plain)
    assert drawn.requires_grad


def test_learns_two_modes_by_the_base_alone() -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.randn(500, 2) * 0.1 - 1.0, torch.randn(500, 2) * 0.1 + 1.0])
    flow = kf.Flow([kf.Line(), kf.Line()], [], components=2)
    optimizer = torch.optim.Adam(flow.parameters(), 0.05)
    losses = []
    for _ in range(150):
        loss = -flow.log_prob(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    means = torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    normals = Independent(Normal(means, torch.full((2, 2), 0.1)), 1)
    exact = MixtureSameFamily(Categorical(torch.ones(2)), normals)
    best = -exact.log_prob(x).mean().item()
    assert losses[0] > best + 2
    assert losses[-1] < best + 0.05


@pytest.mark.parametrize("name", ["mixture-3d", "mixture-1d"])
def test_other_couplings_and_contexts_keep_the_base(name: str) -> None:
    flow = make(name)
    x = points(flow, 20)
    same = flow.with_couplings(list(flow.couplings))
    torch.testing.assert_close(same.log_prob(x), flow.log_prob(x))


def test_given_a_context_copies_the_base() -> None:
    torch.manual_seed(0)
    flow = kf.Flow.on(
        [kf.Line(), kf.Circle()], components=2, context=3, conditioner={"identity": False}
    ).double()
    x, c = points(flow, 20), context(flow, 1)
    assert c is not None
    alone = flow.given(c[0])
    torch.testing.assert_close(alone.log_prob(x), flow.log_prob(x, c[0]))
    assert alone.mixture is not None
    assert alone.mixture is not flow.mixture
    assert alone.config is not None
    assert alone.config.components == 2


def test_a_mixture_without_lines_is_refused() -> None:
    with pytest.raises(ConfigError, match="a mixture of normals is for coordinates on a Line"):
        kf.Flow.on([kf.Circle()], components=2)
    with pytest.raises(ValueError, match="got 2 components, leave them out"):
        kf.Flow([kf.Circle()], [], components=2)
