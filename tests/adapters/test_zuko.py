"""In zuko: autoregressive flows, couplings, and flows on the torus."""

import copy
import importlib
import math
import sys

import pytest
import torch
from torch import Tensor, nn

import knotflow as kf
import knotflow.adapters.zuko
from knotflow.adapters import ElementwiseTransform
from knotflow.adapters.zuko import univariate
from tests.adapters.families import FAMILIES, parameters, points

zuko = pytest.importorskip("zuko")

LINE = kf.BSpline(6, 4, kf.Line(-4.0, 4.0))
CIRCLE = kf.BSpline(6, 4, kf.Circle(-math.pi, math.pi), phase=True)


def autoregressive() -> nn.Module:
    return zuko.flows.MAF(3, 2, transforms=2, hidden_features=(16,), **univariate(LINE))


def coupling() -> nn.Module:
    return zuko.flows.NICE(3, 2, transforms=2, hidden_features=(16,), **univariate(LINE))


def by_hand() -> nn.Module:
    """A flow put together from zuko's parts, with two different families."""
    mask = torch.tensor([True, False, True])
    return zuko.lazy.Flow(
        [
            zuko.flows.coupling.GeneralCouplingTransform(3, 2, mask, **univariate(LINE)),
            zuko.flows.autoregressive.MaskedAutoregressiveTransform(
                3, 2, passes=2, **univariate(kf.RationalQuadratic(4, kf.Line(-4.0, 4.0)))
            ),
            zuko.flows.gaussianization.ElementWiseTransform(3, 2, **univariate(kf.Affine())),
        ],
        zuko.lazy.UnconditionalDistribution(
            zuko.distributions.DiagNormal, torch.zeros(3), torch.ones(3), buffer=True
        ),
    )


def torus() -> nn.Module:
    flow = zuko.flows.NICE(3, 2, transforms=2, hidden_features=(16,), **univariate(CIRCLE))
    flow.base = zuko.lazy.UnconditionalDistribution(
        zuko.distributions.BoxUniform,
        torch.full((3,), -math.pi, dtype=torch.float64),
        torch.full((3,), math.pi, dtype=torch.float64),
        buffer=True,
    )
    return flow


FLOWS = {"autoregressive": autoregressive, "coupling": coupling, "by-hand": by_hand, "torus": torus}
EVERY = pytest.mark.parametrize("name", FLOWS)


def make(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A flow, contexts and points."""
    torch.manual_seed(0)
    flow = FLOWS[name]().double()
    c = torch.randn(20, 2, dtype=torch.float64)
    x = torch.randn(20, 3, dtype=torch.float64)
    return flow, c, x.clamp(-3.0, 3.0)


@EVERY
def test_round_trip_and_finite_densities(name: str) -> None:
    flow, c, x = make(name)
    transform = flow(c).transform
    z = transform(x)
    torch.testing.assert_close(transform.inv(z), x, atol=1e-10, rtol=0.0)
    assert not torch.allclose(z, x, atol=1e-3)
    assert flow(c).log_prob(x).isfinite().all()
    sample = flow(c).sample((5,))
    assert sample.shape == (5, 20, 3)
    assert flow(c).log_prob(sample).isfinite().all()


@EVERY
def test_log_determinant_is_that_of_the_jacobian(name: str) -> None:
    flow, c, x = make(name)
    forward = flow(c).transform
    for transform, start in [(forward, x), (forward.inv, forward(x))]:
        end, ladj = transform.call_and_ladj(start)
        jacobian = torch.autograd.functional.jacobian(lambda p, t=transform: t(p).sum(0), start)
        expected = torch.linalg.slogdet(jacobian.movedim(1, 0)).logabsdet
        torch.testing.assert_close(ladj, expected, atol=1e-9, rtol=0.0)
        torch.testing.assert_close(ladj, transform.log_abs_det_jacobian(start, end), atol=1e-9, rtol=0.0)


@EVERY
def test_samples_know_their_density(name: str) -> None:
    flow, c, _ = make(name)
    x, log_prob = flow(c).rsample_and_log_prob()
    torch.testing.assert_close(flow(c).log_prob(x), log_prob, atol=1e-8, rtol=0.0)
    assert x.requires_grad


@EVERY
def test_training_lowers_the_loss(name: str) -> None:
    flow, c, _ = make(name)
    x = 0.5 * torch.randn(20, 3, dtype=torch.float64) + 0.5 * c[:, :1]
    optimiser = torch.optim.Adam(flow.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        loss = -flow(c).log_prob(x).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


@EVERY
def test_copies_and_prints(name: str) -> None:
    flow, c, x = make(name)
    assert torch.equal(copy.deepcopy(flow)(c).log_prob(x), flow(c).log_prob(x))
    assert "ElementwiseTransform(" in repr(flow)


def test_density_on_the_torus_integrates_to_one() -> None:
    flow, c, _ = make("torus")
    n = 40
    angles = -math.pi + 2 * math.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n
    grid = torch.cartesian_prod(angles, angles, angles)
    with torch.no_grad():
        mass = flow(c[0]).log_prob(grid).exp().mean() * (2 * math.pi) ** 3
    assert mass.item() == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_value_and_log_derivative_together(name: str) -> None:
    f = FAMILIES[name]
    t = univariate(f)["univariate"](parameters(f, 5))
    x = points(f, 5)
    y, ladj = t.call_and_ladj(x)
    assert torch.equal(y, f.forward(x, t.raw)[0]) and torch.equal(ladj, f.forward(x, t.raw)[1])
    y = points(f, 5, seed=2)
    x, ladj = t.inv.call_and_ladj(y)
    assert torch.equal(x, f.inverse(y, t.raw)[0]) and torch.equal(ladj, f.inverse(y, t.raw)[1])


def test_what_zuko_gets() -> None:
    arguments = univariate(LINE)
    assert arguments["shapes"] == [(LINE.n_parameters,)]
    t = arguments["univariate"](torch.zeros(2, LINE.n_parameters))
    assert isinstance(t, ElementwiseTransform) and t.transform is LINE
    with pytest.raises(ValueError, match="takes raw parameters of shape"):
        arguments["univariate"](torch.zeros(LINE.n_parameters + 1))


def test_needs_no_zuko(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter hands zuko two arguments and never imports it."""
    monkeypatch.setitem(sys.modules, "zuko", None)  # from now on, importing it fails
    importlib.reload(knotflow.adapters.zuko)
