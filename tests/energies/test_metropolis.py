"""Metropolis sampling of densities that are known."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from knotflow.energies import Energy, Rings, metropolis
from knotflow.transforms import Circle, Domain, Interval, Line


class Known(Energy):
    """von Mises on a circle, a normal cut off near its top on an interval, a normal on the line."""

    domains = (Circle(-math.pi, math.pi), Interval(0.0, 1.0), Line(-5.0, 5.0))

    def energy(self, x: Tensor) -> Tensor:
        # The circle is wrapped by the sampler, and the interval never left: refuse anything else.
        if ((x[:, :2] < x.new_tensor([-math.pi, 0.0])) | (x[:, :2] > x.new_tensor([math.pi, 1.0]))).any():
            raise RuntimeError("asked for an energy outside the domain")
        angle, bounded, free = x.unbind(-1)
        return -2 * torch.cos(angle - 3) + ((bounded - 0.8) / 0.4).square() / 2 + (free - 4).square() / 2


class Flat(Energy):
    def __init__(self, *domains: Domain) -> None:
        self.domains = domains

    def energy(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x[..., 0])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_known_density() -> None:
    start = torch.tensor([0.0, 0.5, 4.0], dtype=torch.float64).expand(20_000, 3)
    x, rate = metropolis(Known(), start, steps=150, keep=1, step_size=0.8, generator=seeded(0))
    # One state of each chain: independent samples, for which the tests are exact.
    angle = torch.remainder(x[:, 0] - 3 + math.pi, 2 * math.pi) - math.pi
    assert stats.kstest(angle.numpy(), stats.vonmises(2.0).cdf).pvalue > 1e-3
    cut = stats.truncnorm(-0.8 / 0.4, 0.2 / 0.4, loc=0.8, scale=0.4)
    assert stats.kstest(x[:, 1].numpy(), cut.cdf).pvalue > 1e-3
    assert stats.kstest(x[:, 2].numpy(), stats.norm(4.0).cdf).pvalue > 1e-3
    assert x[:, 2].max() > 5.5  # the limits of a line are no limits
    assert 0.2 < rate < 0.5


def test_flat_density_stays_flat_and_loses_only_the_edges() -> None:
    energy = Flat(Interval(), Circle())
    start = torch.rand(20_000, 2, generator=seeded(1), dtype=torch.float64)
    x, rate = metropolis(energy, start, steps=50, keep=1, step_size=0.1, generator=seeded(2))
    assert all(stats.kstest(column.numpy(), "uniform").pvalue > 1e-3 for column in x.T)
    # A uniform point leaves the unit interval by a step ξ with probability |ξ|, of mean s √(2/π).
    assert rate == pytest.approx(1 - 0.1 * math.sqrt(2 / math.pi), abs=2e-3)
    _, rate = metropolis(Flat(Circle(), Line()), start, steps=5, keep=1, step_size=3.0, generator=seeded(2))
    assert rate == 1.0


def test_rings_keep_to_their_rings() -> None:
    start = torch.rand(2000, 2, generator=seeded(3))
    x, _ = metropolis(Rings(), start, steps=400, keep=2, step_size=0.1, generator=seeded(4))
    radius = (2 * math.pi * x - math.pi).norm(dim=-1)
    nearest = (radius[:, None] - radius.new_tensor([1.0, 2.0, 1.5, 2.5])).abs().argmin(-1)
    share = torch.bincount(nearest, minlength=4) / len(x)
    # The weight of a ring is its height times its length.
    weight = radius.new_tensor([1.0, 0.8 * 2.0, 0.6 * 1.5, 0.4 * 2.5])
    torch.testing.assert_close(share, weight / weight.sum(), rtol=0, atol=0.05)


def test_results_follow_generator_dtype_and_order() -> None:
    start = torch.rand(7, 2, generator=seeded(5))
    calls: list[int] = []

    def run(keep: int, seed: int) -> Tensor:
        return metropolis(
            Rings(True),
            start,
            steps=3,
            keep=keep,
            step_size=0.1,
            generator=seeded(seed),
            progress=calls.append,
        )[0]

    x = run(4, 0)
    assert x.shape == (28, 2) and x.dtype == torch.float32 and not x.requires_grad
    assert calls == [1, 2, 3, 4, 5, 6, 7]
    assert torch.equal(x, run(4, 0)) and not torch.equal(x, run(4, 1))
    assert torch.equal(x[:14], run(2, 0))  # step by step, all chains at each


def test_not_a_number_is_never_accepted() -> None:
    class Hole(Flat):
        def energy(self, x: Tensor) -> Tensor:
            return torch.where(x[..., 0] > 0.5, math.nan, 0.0)

    x, _ = metropolis(Hole(Interval()), torch.full((100, 1), 0.4), steps=20, keep=5, step_size=0.2)
    assert x.max() <= 0.5
    with pytest.raises(ValueError, match="start where the energy is finite"):
        metropolis(Hole(Interval()), torch.full((100, 1), 0.6), steps=20, keep=5, step_size=0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": -1}, "steps must be a whole number of at least 0"),
        ({"keep": 0}, "keep must be a whole number of at least 1"),
        ({"step_size": 0.0}, "step_size must be a positive number"),
        ({"step_size": math.nan}, "step_size must be a positive number"),
        ({"start": torch.rand(2)}, r"shape \(chains, 2\)"),
        ({"start": torch.rand(5, 3)}, r"got torch.float32 of shape \(5, 3\)"),
        ({"start": torch.rand(0, 2)}, "at least one chain"),
        ({"start": torch.zeros(5, 2, dtype=torch.int64)}, "floating-point"),
        ({"start": torch.tensor([[0.5, 0.5], [0.5, 1.5]])}, "1 of 2 do not"),
        ({"start": torch.tensor([[0.5, math.nan]])}, "1 of 1 do not"),
    ],
)
def test_mistakes_are_explained(change: dict[str, object], message: str) -> None:
    arguments = {"start": torch.rand(5, 2), "steps": 1, "keep": 1, "step_size": 0.1} | change
    with pytest.raises(ValueError, match=message):
        metropolis(Rings(), **arguments)
