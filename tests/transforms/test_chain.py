"""What is special to chains: composition, smoothness through all parts, domains that do not fit."""

import math

import pytest
import torch

import knotflow as kf
from knotflow.transforms import Chain
from tests.transforms.registry import CHAINS, DOMAINS, draw
from tests.transforms.test_smoothness import STEP, inner_knots, relative_jumps


@pytest.mark.parametrize("name", CHAINS)
def test_parts_are_applied_one_after_another(name: str) -> None:
    chain = CHAINS[name]
    x, raw = draw(chain, 100)
    assert chain.n_parameters == sum(f.n_parameters for f in chain.parts)
    assert chain.smoothness == min(f.smoothness for f in chain.parts)
    y, ladj, first = x, torch.zeros_like(x), 0
    for f in chain.parts:
        y, more = f.forward(y, raw[:, first : first + f.n_parameters])
        ladj, first = ladj + more, first + f.n_parameters
    # A kernel of the whole chain rounds in other places than those of its parts.
    assert torch.allclose(chain.forward(x, raw)[0], y, rtol=1e-13, atol=1e-13)
    assert torch.allclose(chain.forward(x, raw)[1], ladj, rtol=1e-12, atol=1e-12)
    assert [f for f, _ in chain.split(raw)] == list(chain.parts)
    assert torch.equal(torch.cat([own for _, own in chain.split(raw)], -1), raw)


def test_an_affine_part_moves_and_scales_before_the_spline() -> None:
    """A shift and a scale, no knot moved, standardise a coordinate whose mean depends on others."""
    chain = Chain([kf.Affine(), kf.BSpline(8, 4, kf.Line())])
    raw = torch.zeros(chain.n_parameters, dtype=torch.float64)
    mean, deviation = 40.0, 0.01
    raw[1] = math.log(1e3) * math.atanh(-math.log(deviation) / math.log(1e3))
    raw[0] = -mean / deviation
    x = mean + deviation * torch.linspace(-4, 4, 9, dtype=torch.float64)
    y, ladj = chain.forward(x, raw)
    torch.testing.assert_close(y, torch.linspace(-4, 4, 9, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(ladj, torch.full_like(x, -math.log(deviation)), atol=1e-9, rtol=0)


@pytest.mark.parametrize("domain", ["interval", "circle", "line"])
@pytest.mark.parametrize("orders", [(4, 4), (5, 4), (3, 5)])
def test_smooth_at_the_knots_of_all_parts(domain: str, orders: tuple[int, int]) -> None:
    """Those of the second lie where the first sends them from; only the claimed derivatives match."""
    first, second = (kf.BSpline(4, order, DOMAINS[domain]) for order in orders)
    chain = Chain([first, second])
    raw = 0.5 * torch.randn(chain.n_parameters, dtype=torch.float64, generator=torch.manual_seed(3))
    (_, own), (_, others) = chain.split(raw)
    knots = {
        orders[0]: inner_knots(first, own),
        orders[1]: first.inverse(inner_knots(second, others), own)[0],
    }
    if orders[0] == orders[1]:
        knots = {orders[0]: torch.cat([inner_knots(first, own), knots[orders[0]]])}
    step = STEP * chain.domain.length
    for order, places in knots.items():
        for derivative in range(1, order - 1):
            assert relative_jumps(chain, places - step, places + step, raw, derivative) < 1e-4
        if order - 2 == chain.smoothness:
            assert relative_jumps(chain, places - step, places + step, raw, order - 1) > 1e-2


def test_domains_that_do_not_fit_are_refused() -> None:
    for bad, message in (
        ([], "at least one transform, got none"),
        ([kf.BSpline(4), kf.BSpline(4, 4, kf.Circle())], r"same domain, got Interval\(.*Circle\("),
        ([kf.BSpline(4, 4, kf.Line(-1, 1)), kf.BSpline(4, 4, kf.Line(-2, 2))], "same domain"),
        ([kf.Affine(), kf.BSpline(4)], "same domain, got RealLine.*Interval"),
        ([kf.BSpline(4, 4, kf.Circle()), kf.Affine()], "same domain, got Circle.*RealLine"),
    ):
        with pytest.raises(ValueError, match=message):
            Chain(bad)
    chain = CHAINS["chain-affine-k4-n8"]
    n = chain.n_parameters
    with pytest.raises(ValueError, match=rf"\(\.\.\., {n}\), got \(5, {n - 1}\)"):
        chain.forward(torch.zeros(5), torch.zeros(5, n - 1))
    with pytest.raises(ValueError, match="broadcast"):
        chain.inverse(torch.zeros(5), torch.zeros(4, n))


def test_domain_and_repr() -> None:
    assert CHAINS["chain-affine-k4-n8"].domain == DOMAINS["line"]
    assert CHAINS["chain-affine-twice"].domain == kf.Affine().domain
    assert (
        repr(Chain([kf.Affine(), kf.Affine(2.0)]))
        == "Chain(parts=(Affine(max_slope=1000.0), Affine(max_slope=2.0)))"
    )
    a, b, c = (Chain([kf.Affine(), kf.BSpline(n, 4, kf.Line())]) for n in (4, 5, 4))
    assert a != b and a == c and hash(a) == hash(c)
