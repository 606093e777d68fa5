"""Prefix sums against plain sums, bin by bin."""

import pytest
import torch

from knotflow.transforms.search import PrefixSums


@pytest.mark.parametrize("n", [1, 2, 7, 33])
def test_bins_and_knots(n: int) -> None:
    widths = torch.rand(500, n, dtype=torch.float64, generator=torch.manual_seed(n)) + 0.01
    x = torch.rand(500, dtype=torch.float64) * 1.2 * widths.sum(-1) - 1.0
    sums = PrefixSums(widths, -0.5)
    knots = torch.stack([widths[:, :k].sum(-1) - 0.5 for k in range(n + 1)], -1)
    for k in range(n + 1):
        assert torch.allclose(sums.at(torch.full((500,), k)), knots[:, k], atol=1e-13)
    assert torch.equal(sums.locate(x), (knots[:, 1:-1] <= x[:, None]).sum(-1))
