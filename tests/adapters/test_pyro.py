"""In Pyro: as the likelihood of a model and as a guide, trained by SVI."""

import math

import pytest
import torch
from torch import Tensor

import knotflow as kf
from knotflow.adapters import ElementwiseTransform

pyro = pytest.importorskip("pyro")
dist = pytest.importorskip("pyro.distributions")

CACHES = pytest.mark.parametrize("cache_size", [0, 1], ids=["no-cache", "cache"])
FLOAT = torch.float64


@pytest.fixture(autouse=True)
def _fresh_parameters() -> None:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


@CACHES
def test_learns_a_likelihood(cache_size: int) -> None:
    f = kf.BSpline(8, 4, kf.Interval(0.0, 1.0))
    data = dist.Beta(torch.tensor(2.0, dtype=FLOAT), 5.0).sample((500,))

    def model(data: Tensor) -> None:
        raw = pyro.param("raw", torch.zeros(f.n_parameters, dtype=FLOAT))
        base = dist.Uniform(torch.zeros((), dtype=FLOAT), 1.0)
        flow = dist.TransformedDistribution(base, [ElementwiseTransform(f, raw, cache_size)])
        with pyro.plate("data", len(data)):
            pyro.sample("x", flow, obs=data)

    svi = pyro.infer.SVI(model, lambda data: None, pyro.optim.Adam({"lr": 0.1}), loss=pyro.infer.Trace_ELBO())
    losses = [svi.step(data) / len(data) for _ in range(60)]
    assert losses[0] == pytest.approx(0.0, abs=1e-12)  # zero parameters: the uniform density
    best = -dist.Beta(torch.tensor(2.0, dtype=FLOAT), 5.0).log_prob(data).mean()
    assert losses[-1] == pytest.approx(best.item(), abs=0.03)


@CACHES
def test_learns_a_guide(cache_size: int) -> None:
    """The guide is sampled and scored, in this order: the cache knows the sample."""
    f = kf.BSpline(8, 4, kf.Circle(-math.pi, math.pi), phase=True)

    def model() -> None:
        with pyro.plate("samples", 100):
            pyro.sample("angle", dist.VonMises(torch.tensor(1.0, dtype=FLOAT), 4.0))

    def guide() -> None:
        raw = pyro.param("raw", torch.zeros(f.n_parameters, dtype=FLOAT))
        base = dist.Uniform(torch.tensor(-math.pi, dtype=FLOAT), math.pi)
        with pyro.plate("samples", 100):
            pyro.sample(
                "angle", dist.TransformedDistribution(base, [ElementwiseTransform(f, raw, cache_size)])
            )

    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), loss=pyro.infer.Trace_ELBO())
    losses = [svi.step() / 100 for _ in range(80)]
    assert losses[0] > 1.0
    assert sum(losses[-10:]) / 10 < 0.1  # the divergence of guide and model, at least 0


def test_forgets_on_demand() -> None:
    t = ElementwiseTransform(kf.Affine(), torch.zeros(2), cache_size=1)
    distribution = dist.TransformedDistribution(dist.Normal(0.0, 1.0), [t])
    x = torch.randn(3)
    y = t(x)
    distribution.clear_cache()
    assert t(x) is not y
