"""A training begins from the product of the marginals: only biases move, and they find it."""

import math

import pytest
import torch
from torch import Tensor

import knotflow as kf
from knotflow.training.marginals import fit_marginals

N = 4000


def correlated(n: int, seed: int = 0, rho: float = 0.95) -> Tensor:
    """Two normal coordinates of deviation 0.05 about 0.5 whose correlation no marginal shows."""
    z = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    z[:, 1] = rho * z[:, 0] + math.sqrt(1 - rho**2) * z[:, 1]
    return 0.5 + 0.05 * z.clamp(-4, 4)


def make(family: str = "bspline", **options: object) -> kf.Flow:
    torch.manual_seed(1)
    transform = {"bins": 16} if family == "bspline" else {"family": family}
    return kf.Flow.on(
        [kf.Interval()] * 2,
        rounds=1,
        transform=transform,
        conditioner={"hidden": [16]},  # whose last weights are zero: outputs are the biases
        **options,
    )


@pytest.mark.parametrize("family", ["bspline", "rq"])
def test_it_finds_the_product_of_the_marginals(family: str) -> None:
    """Its entropy is known, and no product can have a smaller cross-entropy."""
    flow, x, fresh = make(family), correlated(N), correlated(N, 1)
    entropy = 2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.05))
    start = float(-flow.log_prob(fresh).detach().mean())
    fit_marginals(flow, x, 300)
    found = float(-flow.log_prob(fresh).detach().mean())
    assert start > entropy + 2
    assert found == pytest.approx(entropy, abs=0.15)


def test_only_biases_change_and_all_stays_trainable() -> None:
    flow, x = make(), correlated(N)
    frozen = flow.couplings[0].conditioner.layers[0].weight  # type: ignore[union-attr, index]
    frozen.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in flow.named_parameters()}
    wanted = {name: p.requires_grad for name, p in flow.named_parameters()}
    fit_marginals(flow, x, 5)
    changed = {name for name, p in flow.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {f"couplings.{i}.conditioner.layers.1.bias" for i in range(len(flow.couplings))}
    assert {name: p.requires_grad for name, p in flow.named_parameters()} == wanted


def test_the_seed_decides() -> None:
    flows = [make() for _ in range(3)]
    for flow, seed in zip(flows, (4, 4, 5), strict=True):
        fit_marginals(flow, correlated(N), 5, seed=seed)
    first, same, other = (flow.couplings[0].conditioner.layers[-1].bias for flow in flows)  # type: ignore[union-attr, index]
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_what_depends_on_nothing_and_what_depends_on_a_context() -> None:
    """A single coordinate has nothing to read, so all of its parameters are constants."""
    torch.manual_seed(0)
    x = correlated(N)[:, :1]
    single = kf.Flow.on([kf.Interval()], transform={"bins": 16})
    fit_marginals(single, x, 200)
    entropy = 0.5 * math.log(2 * math.pi * math.e) + math.log(0.05)
    assert float(-single.log_prob(x).detach().mean()) == pytest.approx(entropy, abs=0.1)

    flow, c = make(context=1), torch.rand(N, 1)
    before = float(flow.log_prob(correlated(N), c).detach().mean())
    fit_marginals(flow, correlated(N), 20, context=c)
    assert float(flow.log_prob(correlated(N), c).detach().mean()) > before + 1


def test_no_steps_and_networks_of_ones_own_change_nothing() -> None:
    flow = make()
    before = [p.detach().clone() for p in flow.parameters()]
    fit_marginals(flow, correlated(100), 0)
    assert all(torch.equal(p, old) for p, old in zip(flow.parameters(), before, strict=True))

    f = kf.BSpline(4, 4, kf.Interval())
    own = kf.Flow([kf.Interval()] * 2, [kf.Coupling([1], [f], [0], torch.nn.Linear(1, f.n_parameters))])
    fit_marginals(own, correlated(100), 5)
