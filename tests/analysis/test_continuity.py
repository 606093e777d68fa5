"""Jumps of forces of which everything is known."""

import pytest
import torch
from torch import Tensor

from knotflow.analysis.continuity import largest_jump

START = torch.tensor([[-1.0, 0.3], [-1.0, -0.2]], dtype=torch.float64)
END = torch.tensor([[1.0, 0.5], [0.9, 0.4]], dtype=torch.float64)


def smooth(x: Tensor) -> Tensor:
    return torch.sin(20 * x) + 3 * x.flip(-1) ** 2


def kinked(x: Tensor) -> Tensor:
    """Continuous, with a slope that jumps."""
    return smooth(x) + 40 * (x - 0.1234).abs()


def jumping(x: Tensor) -> Tensor:
    """Two jumps, the larger one of 0.7 in the first and 0.1 in the second component."""
    far = (x[:, :1] > 0.31415) * x.new_tensor([0.7, 0.1])
    return kinked(x) + far - 0.05 * (x[:, :1] > -0.5)


@pytest.mark.parametrize("force", [smooth, kinked])
def test_a_continuous_force_has_no_jump(force) -> None:
    found = largest_jump(force, START, END)
    assert found.size < 1e-8 and found.step > 1e-3
    assert found.typical == pytest.approx(_typical(force), rel=1e-9)


def _typical(force) -> float:
    along = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    lines = [force(a + along * (b - a)) for a, b in zip(START, END, strict=True)]
    return torch.cat(lines).square().sum(-1).mean().sqrt().item()


@pytest.mark.parametrize("points", [40, 200])
def test_a_jump_keeps_its_size(points: int) -> None:
    found = largest_jump(jumping, START, END, points)
    assert found.size == pytest.approx((0.7**2 + 0.1**2) ** 0.5, abs=1e-6)
    assert abs(found.step - found.size) < 40 * 2 * 2 / points


def test_halving_the_spacing_tells_a_jump_from_a_slope() -> None:
    once, twice = (largest_jump(kinked, START, END, depth=depth).size for depth in (9, 10))
    assert once / twice == pytest.approx(2, rel=0.1)
    once, twice = (largest_jump(jumping, START, END, depth=depth).size for depth in (9, 10))
    assert once / twice == pytest.approx(1, rel=0.1)


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="not finite on a line"):
        largest_jump(lambda x: x / 0, START, END)
    with pytest.raises(ValueError, match="points must be a whole number of at least 4, got 3"):
        largest_jump(smooth, START, END, 3)
    with pytest.raises(ValueError, match="the number of lines must be"):
        largest_jump(smooth, START[:0], END[:0])
