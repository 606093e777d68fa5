"""The linear map of whitened flows; the laws of all flows are tested on them too (`registry`)."""

from pathlib import Path

import pytest
import torch

import knotflow as kf
from knotflow.training.marginals import fit_marginals
from tests.flows.registry import context, correlated, make, points

NAMES = ["whitened-2d", "whitened-4d", "whitened-context-2d"]


def _lines(flow: kf.Flow) -> list[int]:
    return [i for i, domain in enumerate(flow.domains) if isinstance(domain, kf.Line)]


def _entered(flow: kf.Flow, x: torch.Tensor) -> torch.Tensor:
    """What the first coupling sees of the lines."""
    return next(flow.layers(x, context(flow, len(x))))[1][:, _lines(flow)]


@pytest.mark.parametrize("name", NAMES)
def test_data_are_white(name: str) -> None:
    flow = make(name)
    x = correlated(flow, 800, seed=7)
    flow.whiten(x)
    z = _entered(flow, x)
    covariance = torch.cov(z.T).reshape(z.shape[1], -1)
    torch.testing.assert_close(covariance, torch.eye(len(covariance)).double(), rtol=0, atol=1e-2)
    others = [i for i in range(flow.dim) if i not in _lines(flow)]
    unmapped = kf.Flow(flow.domains, list(flow.couplings), context=flow.context)
    found, expected = (next(f.layers(x, context(f, 800)))[1][:, others] for f in (flow, unmapped))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_map_is_the_cholesky_factor() -> None:
    """Of the covariance in units of the base, by NumPy; without couplings the flow is that normal density."""
    flow = kf.Flow([kf.Line(-2.0, 3.0), kf.Line(1.0, 1.5)], [], whitened=True).double()
    x = correlated(flow, 600)
    before = flow(x)[0]
    torch.testing.assert_close(before, flow.with_couplings([])(x)[0], rtol=0, atol=0)
    flow.whiten(x)
    z, _ = flow(x)
    share = 600**2 / (600**2 + 2**2)
    shrink = torch.tensor([[1.0, share], [share, 1.0]]).double()
    lower = torch.linalg.cholesky(shrink * torch.cov(before.T))
    torch.testing.assert_close(z @ lower.T, before, rtol=1e-4, atol=1e-4)
    middle = torch.tensor([0.5, 1.25]).double()
    normal = torch.distributions.MultivariateNormal(middle, shrink * torch.cov(x.T))
    torch.testing.assert_close(flow.log_prob(x), normal.log_prob(x), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_scores_in_standard_coordinates(name: str) -> None:
    """The gradient with respect to what the first coupling sees, by autograd through the inverse."""
    flow = make(name)
    lines, x = _lines(flow), points(flow, 1)[0]
    coefficients = torch.linspace(-1.0, 2.0, flow.dim, dtype=torch.float64)
    bare = flow.with_couplings([])
    zero = None if not flow.context else torch.zeros(flow.context, dtype=torch.float64)
    z = bare(x, zero)[0]
    gradient = torch.func.grad(lambda z: bare.inverse(z, zero)[0] @ coefficients)(z)
    torch.testing.assert_close(flow.standard_score(coefficients)[lines], gradient[lines])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_keeps_the_map(name: str, tmp_path: Path) -> None:
    flow = make(name).float()
    kf.save(flow, tmp_path / "flow.safetensors")
    loaded = kf.load(tmp_path / "flow.safetensors")
    assert loaded.whitened and loaded.config == flow.config and loaded.config.whitened
    x, c = points(flow, 50).float(), context(flow, 50)
    c = None if c is None else c.float()
    assert torch.equal(loaded.log_prob(x, c), flow.log_prob(x, c))
    assert torch.equal(loaded.inverse(flow(x, c)[0], c)[0], flow.inverse(flow(x, c)[0], c)[0])


def test_configurations_without_the_setting_mean_no_map() -> None:
    """As in files of version 0.2."""
    plain = make("line-1d").config.plain()
    assert plain.pop("whitened") is False
    assert not kf.FlowConfig.read(plain).build().whitened


def test_a_direction_without_spread_does_not_break_it() -> None:
    flow = make("whitened-2d")
    x = correlated(flow, 100)
    x[:, 1] = 1.25 + 0.1 * (x[:, 0] - 0.5)  # a line in the plane
    flow.whiten(x)
    assert flow.log_prob(x).isfinite().all() and _entered(flow, x).abs().max() < 10


def test_refused() -> None:
    with pytest.raises(ValueError, match=r"has no linear map; build it with whitened=True"):
        make("line-1d").whiten(torch.zeros(10, 1, dtype=torch.float64))
    no_lines = kf.Flow([kf.Interval()], [], whitened=True)
    assert not no_lines.whitened
    with pytest.raises(ValueError, match="has no linear map"):
        no_lines.whiten(torch.rand(10, 1))
    flow = make("whitened-4d")
    with pytest.raises(ValueError, match="the spread of data needs at least two points, got 1"):
        flow.whiten(points(flow, 1))
    with pytest.raises(ValueError, match=r"expected points of shape \(\.\.\., 4\)"):
        flow.whiten(points(flow, 50)[:, :3])


def test_few_points_give_a_map_too() -> None:
    """With fewer points than lines the covariance is singular; shrunk, it is not."""
    flow = make("whitened-4d")
    x = correlated(flow, 3)
    flow.whiten(x)
    torch.testing.assert_close(flow.inverse(*_base(flow, x))[0], x, rtol=1e-6, atol=1e-6)


def _base(flow: kf.Flow, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    given = context(flow, len(x))
    return flow(x, given)[0], given


def test_marginals_are_learned_behind_the_map() -> None:
    """Independent skewed coordinates, mixed: with the map undone, single maps can learn all of it."""
    torch.manual_seed(0)
    hidden = torch.distributions.Gamma(4.0, 2.0).sample((4000, 2)) - 2
    x = 0.5 * hidden @ torch.tensor([[1.0, 0.8], [0.0, 0.6]])
    options = {"transform": {"bins": 8}, "conditioner": {"hidden": [8]}, "rounds": 1}
    flow = kf.Flow.on([kf.Line(-5.0, 5.0)] * 2, **options)
    flow = flow.config.model_copy(update={"whitened": True}).build()
    flow.whiten(x)
    start = flow.log_prob(x).mean()
    fit_marginals(flow, x, 150)
    gamma = torch.distributions.Gamma(4.0, 2.0).log_prob(hidden + 2).sum(-1) - torch.tensor(0.25 * 0.6).log()
    assert start < gamma.mean() - 0.15
    assert flow.log_prob(x).mean() > gamma.mean() - 0.06
