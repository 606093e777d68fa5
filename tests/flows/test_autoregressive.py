"""Autoregressive couplings: triangular, inverted coordinate by coordinate, in files, trained."""

import math
from pathlib import Path

import pytest
import torch

import knotflow as kf
from knotflow.analysis.check_model import check_flow
from knotflow.errors import ConfigError
from knotflow.flows.conditioner import MaskedLinear
from knotflow.flows.coupling import autoregressive
from knotflow.flows.flow import STANDARD
from knotflow.training import TrainingConfig, fit
from tests.flows.registry import context, make, points

UNIT, CIRCLE, LINE = STANDARD.values()


def _layer(order: list[int], read: list[int], **options: object) -> kf.Coupling:
    domains = [UNIT, CIRCLE, LINE, UNIT, LINE, CIRCLE]
    torch.manual_seed(0)
    transforms = [kf.BSpline(5, 4, domains[i]) for i in order]
    layer = autoregressive(order, transforms, read, domains, hidden=(20, 20), **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return layer


@pytest.mark.parametrize(
    ("order", "read", "options"),
    [
        ([0, 1, 2, 3, 4, 5], [], {}),
        ([5, 3, 1, 0, 2, 4], [], {"frequencies": 3}),
        ([4, 1, 3], [2, 5], {"residual": True}),
        ([2, 0], [], {"context": 2}),
    ],
    ids=["in-order", "mixed-order", "reads-others", "context"],
)
def test_jacobian_is_triangular_in_the_order_of_the_coordinates(
    order: list[int], read: list[int], options: dict[str, object]
) -> None:
    layer = _layer(order, read, **options)
    x = torch.rand(6, dtype=torch.float64)
    c = torch.randn(2, dtype=torch.float64) if "context" in options else None
    jacobian = torch.func.jacrev(lambda x: layer(x, c)[0])(x)
    own = jacobian[order][:, order]
    assert torch.equal(own, own.tril())
    assert (own.tril(-1) != 0).sum() >= len(order) - 1  # and not diagonal
    assert (jacobian[order][:, read] != 0).all()
    others = [i for i in range(6) if i not in order]
    assert torch.equal(jacobian[others], torch.eye(6, dtype=torch.float64)[others])
    torch.testing.assert_close(layer(x, c)[1], own.diagonal().log())


def test_every_coordinate_reads_all_before_it_in_a_wide_enough_network() -> None:
    layer = _layer([0, 1, 2, 3, 4, 5], [])
    jacobian = torch.func.jacrev(lambda x: layer(x)[0])(torch.rand(6, dtype=torch.float64))
    assert (jacobian.tril() != 0).sum() == 21


def test_inverse_is_exact_after_one_visit_of_each_coordinate() -> None:
    layer = _layer([5, 3, 1, 0, 2, 4], [])
    y = torch.rand(40, 6, dtype=torch.float64)
    x, log_slopes = layer.inverse(y)
    again, forward_slopes = layer(x)
    torch.testing.assert_close(again, y)
    torch.testing.assert_close(log_slopes, -forward_slopes)


def test_both_directions_are_one_graph() -> None:
    layer = _layer([2, 0], []).requires_grad_(False)
    x = torch.rand(4, 6, dtype=torch.float64)
    for direction in (layer.forward, layer.inverse):
        compiled = torch.compile(direction, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), direction(x))


def test_inverse_can_be_differentiated() -> None:
    layer = _layer([4, 1, 3], [2, 5])
    y = torch.rand(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: layer.inverse(y)[0], y)


def test_a_part_of_the_outputs_is_that_part() -> None:
    layer = _layer([0, 1, 2], [5])
    x = torch.rand(7, 3, dtype=torch.float64)
    assert all(isinstance(linear, MaskedLinear) for linear in layer.conditioner.layers)
    part = slice(3, 9)
    torch.testing.assert_close(layer.conditioner(x, None, part), layer.conditioner(x)[:, part])


def test_passes_alternate_and_rounds_count_them() -> None:
    flow = kf.Flow.on([kf.Line()] * 3, masks="autoregressive", rounds=2)
    assert [layer.transformed for layer in flow.couplings] == [[0, 1, 2], [2, 1, 0]]
    assert len(kf.Flow.on([kf.Line()] * 3, masks="autoregressive").couplings) == 3


def test_given_a_context() -> None:
    flow = make("autoregressive-context-5d")
    x, c = points(flow, 20), context(flow, 1)
    assert c is not None
    alone = flow.given(c[0])
    torch.testing.assert_close(alone.log_prob(x), flow.log_prob(x, c[0]))
    z = flow.sample_base(5)
    torch.testing.assert_close(alone.inverse(z)[0], flow.inverse(z, c[0])[0])


@pytest.mark.parametrize("name", ["autoregressive-context-5d", "mixture-whitened-autoregressive-2d"])
def test_files_give_the_same_numbers(name: str, tmp_path: Path) -> None:
    flow = make(name)
    x, c = points(flow, 20), context(flow, 20)
    kf.save(flow, tmp_path / "model.safetensors")
    same = kf.load(tmp_path / "model.safetensors")
    assert torch.equal(same.log_prob(x, c), flow.log_prob(x, c))
    z = flow.sample_base(5)
    c = None if c is None else c[:5]
    assert torch.equal(same.inverse(z, c)[0], flow.inverse(z, c)[0])


def test_fit_trains_one_with_its_marginals_first(tmp_path: Path) -> None:
    """Steps for single coordinates wrap the conditioners; they must stay autoregressive."""
    torch.manual_seed(0)
    x = torch.randn(500, 3) * 0.2
    x[:, 1] += x[:, 0].square() * 5
    flow = kf.Flow.on([kf.Line()] * 3, masks="autoregressive", rounds=2, transform={"bins": 8})
    before = -flow.log_prob(x).mean().item()
    fit(flow, x, TrainingConfig(steps=60, batch_size=100, marginals=60, ema=0.0), tmp_path)
    after = -kf.load(tmp_path / "model.safetensors").log_prob(x).mean().item()
    assert after < before - 1.0


@pytest.mark.parametrize("name", ["autoregressive-1d", "autoregressive-2d"])
def test_passes_all_checks_of_a_model(name: str) -> None:
    failed = [check for check in check_flow(make(name), samples=1000) if not check.ok]
    assert not failed


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="masks: input should be 'coupling' or 'autoregressive'"):
        kf.Flow.on([kf.Line()], masks="maf")
    with pytest.raises(ConfigError, match="an autoregressive coupling has one network; leave networks out"):
        kf.FlowConfig.parse(
            {
                "domains": [{"kind": "interval"}],
                "couplings": [
                    {"transformed": [0], "autoregressive": True, "conditioner": {"networks": [1, 1]}}
                ],
            }
        )
    with pytest.raises(ValueError, match="sees needs a number for each of the 3 outputs, got 1"):
        kf.Conditioner([UNIT], 3, sees=[0])


def test_density_of_two_coordinates_factorises() -> None:
    """In one pass log p(x0, x1) = log p(x0) + log p(x1 | x0): the first marginal by integration."""
    torch.manual_seed(3)
    flow = kf.Flow.on(
        [kf.Interval(), kf.Interval()], masks="autoregressive", rounds=1, conditioner={"identity": False}
    ).double()
    side = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    for first in (0.2, 0.7):
        grid = torch.stack([torch.full_like(side, first), side], -1)
        with torch.no_grad():
            marginal = flow.log_prob(grid).exp().mean().log()
            alone = flow.couplings[0](grid)[1][0, 0]
        assert math.isclose(float(marginal), float(alone), abs_tol=1e-5)
