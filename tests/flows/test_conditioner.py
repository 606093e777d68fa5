"""Conditioners: their derivative along a tangent against forward-mode autodiff, and separate networks."""

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


def _points(domains: list[kf.Domain], *shape: int) -> tuple[Tensor, Tensor]:
    """Points all over their domains, and tangents."""
    random = torch.Generator().manual_seed(1)
    u = torch.rand(*shape, len(domains), generator=random, dtype=torch.float64)
    low = torch.tensor([d.low for d in domains], dtype=torch.float64)
    length = torch.tensor([d.length for d in domains], dtype=torch.float64)
    return low + length * u, torch.randn(u.shape, generator=random, dtype=torch.float64)


def _check(network: torch.nn.Module, x: Tensor, tangent: Tensor, context: Tensor | None) -> None:
    """Values and derivatives, and the gradients of both in the weights, against `torch.func.jvp`."""
    weights = list(network.parameters())
    found = network.with_derivative(x, tangent, context)
    expected = torch.func.jvp(lambda x: network(x, context), (x,), (tangent,))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    random = torch.Generator().manual_seed(2)
    a, b = (torch.randn(found[0].shape, generator=random, dtype=torch.float64) for _ in range(2))
    gradients = [
        torch.autograd.grad((a * value).sum() + (b * derivative).sum(), weights, materialize_grads=True)
        for value, derivative in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("read", DOMAINS)
@pytest.mark.parametrize("context", [0, 3])
def test_derivative_along_a_tangent(read: str, options: str, activation: str, context: int) -> None:
    domains = DOMAINS[read]
    network = _random(kf.Conditioner(domains, 9, activation=activation, context=context, **OPTIONS[options]))
    x, tangent = _points(domains, 11)
    rows = torch.randn(11, context, dtype=torch.float64, generator=torch.manual_seed(5)) if context else None
    _check(network, x, tangent, rows)


def test_an_activation_of_ones_own() -> None:
    def bent(h: Tensor) -> Tensor:
        return h + h.square() / (1 + h.square())

    network = _random(kf.Conditioner(DOMAINS["mixed"], 4, activation=bent, hidden=(5, 5)))
    _check(network, *_points(DOMAINS["mixed"], 6), None)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_any_leading_shape(shape: tuple[int, ...]) -> None:
    domains = DOMAINS["mixed"]
    for network in (
        kf.Conditioner(domains, 6, hidden=(5,)),
        SeparateConditioners(domains, [(2, 3)], (1, 2), hidden=(5,)),
    ):
        network = _random(network)
        x, tangent = _points(domains, *shape)
        value, derivative = network.with_derivative(x, tangent)
        assert value.shape == derivative.shape == (*shape, 6)
        torch.testing.assert_close(value, network(x))


def test_one_context_for_all_points() -> None:
    network = _random(kf.Conditioner(DOMAINS["flat"], 4, context=2, hidden=(5,)))
    _check(network, *_points(DOMAINS["flat"], 8), torch.tensor([0.3, -1.0], dtype=torch.float64))


@pytest.mark.parametrize("read", DOMAINS)
@pytest.mark.parametrize("context", [0, 2])
def test_separate_networks_along_a_tangent(read: str, context: int) -> None:
    domains = DOMAINS[read]
    network = _random(
        SeparateConditioners(domains, [(2, 5), (1, 10)], (1, 1, 3), context=context, hidden=(6, 6))
    )
    x, tangent = _points(domains, 9)
    rows = torch.randn(9, context, dtype=torch.float64, generator=torch.manual_seed(5)) if context else None
    _check(network, x, tangent, rows)


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
