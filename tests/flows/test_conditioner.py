"""Conditioners: what they see and compute, written out; and separate networks."""

import math

import pytest
import torch
from torch import Tensor

import knotflow as kf
from knotflow.flows.conditioner import ACTIVATIONS, SeparateConditioners
from knotflow.flows.coupling import Coupling

DOMAINS = {
    "flat": [kf.Interval(0.05, 0.3), kf.Line(-2.0, 3.0)],
    "round": [kf.Circle(-math.pi, math.pi), kf.Circle()],
    "mixed": [kf.Circle(-math.pi, math.pi), kf.Interval(-1.0, 4.0), kf.Line(), kf.Circle(2.0, 5.0)],
    "nothing": [],
}
OPTIONS = {
    "one layer": {"hidden": ()},
    "plain": {"hidden": (7, 5)},
    "residual": {"hidden": (6, 6, 6), "residual": True},
    "frequencies": {"hidden": (6,), "frequencies": 3},
    "residual, frequencies": {"hidden": (5, 5), "frequencies": 2, "residual": True},
}


def _random(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """In float64, with random weights all over."""
    torch.manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module


def _points(domains: list[kf.Domain], *shape: int) -> Tensor:
    """Points all over their domains."""
    random = torch.Generator().manual_seed(1)
    u = torch.rand(*shape, len(domains), generator=random, dtype=torch.float64)
    low = torch.tensor([d.low for d in domains], dtype=torch.float64)
    length = torch.tensor([d.length for d in domains], dtype=torch.float64)
    return low + length * u


def _expected(network: kf.Conditioner, domains: list[kf.Domain], x: Tensor, rows: Tensor | None) -> Tensor:
    """The formulas of the docstring, point by point and layer by layer."""
    u = [(x[:, i] - d.low) / d.length for i, d in enumerate(domains)]
    half = [5.0 if isinstance(d, kf.Line) else 1.0 for d in domains]
    straight = [i for i, d in enumerate(domains) if not isinstance(d, kf.Circle)]
    flat = torch.stack([half[i] * (2 * u[i] - 1) for i in straight], 1)
    turns = torch.stack([u[i] for i, d in enumerate(domains) if isinstance(d, kf.Circle)], 1)
    seen = [flat]
    bounded = flat[:, [k for k, i in enumerate(straight) if isinstance(domains[i], kf.Interval)]]
    for j in range(1, network.frequencies):
        seen += [torch.cos(math.pi / 2 * j * bounded), torch.sin(math.pi / 2 * j * bounded)]
    for j in range(1, network.frequencies + 1):
        # The fraction of a turn is counted from the middle of the domain.
        seen += [torch.cos(2 * math.pi * j * (turns - 0.5)), torch.sin(2 * math.pi * j * (turns - 0.5))]
    h = torch.cat(seen if rows is None else [*seen, rows.expand(len(x), -1)], 1)
    first, *others = network.layers
    h = h @ first.weight.T + first.bias
    for number, layer in enumerate(others, 1):
        update = network.activation(h) @ layer.weight.T + layer.bias
        h = h + update if network.residual and number < len(others) else update
    return h


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("context", [None, (3,), (11, 3)])
def test_networks_are_as_documented(options: str, context: tuple[int, ...] | None) -> None:
    domains = DOMAINS["mixed"]
    network = kf.Conditioner(domains, 9, context=context[-1] if context else 0, **OPTIONS[options])
    network = _random(network)
    x = _points(domains, 11)
    rows = torch.randn(context, dtype=torch.float64, generator=torch.manual_seed(5)) if context else None
    torch.testing.assert_close(network(x, rows), _expected(network, domains, x, rows), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("unit_spread", "deviation"), [(True, 1.0), (False, 0.2)])
def test_a_normal_coordinate_on_a_line_enters_with_unit_spread(unit_spread: bool, deviation: float) -> None:
    """The base of a flow, on any line: mean 0 and deviation 1; up to version 0.2 the deviation was 0.2."""
    flow = kf.Flow.on([kf.Line(), kf.Line(3.0, 3.5), kf.Line(-100.0, 700.0)], rounds=1).double()
    x = flow.inverse(flow.sample_base(20_000, generator=torch.Generator().manual_seed(0)))[0]
    seen = kf.Conditioner(flow.domains, 1, unit_spread=unit_spread).double().features(x, None)
    torch.testing.assert_close(seen.mean(0), torch.zeros(3).double(), rtol=0, atol=0.03)
    torch.testing.assert_close(seen.std(0), torch.full((3,), deviation).double(), rtol=0.02, atol=0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("read", DOMAINS)
def test_they_are_smooth(read: str, activation: str) -> None:
    """First and second derivatives exist, and are what differences say."""
    domains = DOMAINS[read]
    network = _random(kf.Conditioner(domains, 2, activation=activation, hidden=(5, 5), frequencies=2))
    x = _points(domains, 3).requires_grad_()
    assert torch.autograd.gradcheck(network, (x,)) and torch.autograd.gradgradcheck(network, (x,))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_any_leading_shape(shape: tuple[int, ...]) -> None:
    domains = DOMAINS["mixed"]
    for network in (
        kf.Conditioner(domains, 6, hidden=(5,)),
        SeparateConditioners(domains, [(2, 3)], (1, 2), hidden=(5,)),
    ):
        assert _random(network)(_points(domains, *shape)).shape == (*shape, 6)


def test_separate_networks_give_each_map_a_share_from_each() -> None:
    """Two groups of maps: what the network number i gives is found in part i of every map, nowhere else."""
    circle, unit = kf.Circle(), kf.Interval()
    transforms = [kf.Bump(3, unit), kf.Bump(2, circle), kf.Bump(3, unit)]
    sizes = Coupling.sizes(transforms)
    assert sizes == [(2, 15), (1, 10)]
    network = _random(SeparateConditioners([unit, circle], sizes, (1, 1, 3), hidden=(4,)))
    coupling = Coupling([0, 1, 2], transforms, [3, 4], network)
    x = torch.rand(6, 5, dtype=torch.float64)
    before = coupling.raw(x)
    assert [len(part.layers[-1].bias) for part in network.parts] == [8, 8, 24]
    for number, (first, last) in enumerate([(0, 1), (1, 2), (2, 5)]):
        with torch.no_grad():
            network.parts[number].layers[-1].bias += 1
        for map_before, map_after, f in zip(before, coupling.raw(x), transforms, strict=True):
            own = torch.zeros(5, dtype=torch.float64)
            own[first:last] = 1
            changed = own.repeat_interleave(f.n_parameters // 5)
            torch.testing.assert_close(map_after - map_before, changed.expand_as(map_after))
        before = coupling.raw(x)


def test_shares_must_divide_the_parameters() -> None:
    with pytest.raises(
        ValueError, match=r"networks \(1, 1, 3\) must divide the 9 raw parameters .* 5, is no"
    ):
        SeparateConditioners([kf.Interval()], [(1, 10), (2, 9)], (1, 1, 3))
    with pytest.raises(ValueError, match=r"the number of networks must be .* at least 1, got 0"):
        SeparateConditioners([kf.Interval()], [(1, 10)], ())
    with pytest.raises(ValueError, match="networks must be a whole number of at least 1, got 0"):
        SeparateConditioners([kf.Interval()], [(1, 10)], (1, 0))
