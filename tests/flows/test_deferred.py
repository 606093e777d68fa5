"""Flows on the meta device: built without weights, filled later."""

from pathlib import Path

import pytest
import torch

import knotflow as kf
from tests.flows.registry import BUILDERS, NAMES, context, make, points


@pytest.mark.parametrize("name", NAMES)
def test_weights_assigned_later_give_the_same_numbers(name: str) -> None:
    flow = make(name)
    x, c = points(flow, 20), context(flow, 20)
    with torch.device("meta"):
        empty = BUILDERS[name]()
    assert {parameter.device.type for parameter in empty.parameters()} <= {"meta"}
    empty.load_state_dict(flow.state_dict(), assign=True)
    assert torch.equal(empty.log_prob(x, c), flow.log_prob(x, c))
    z = flow.sample_base(5)
    c = None if c is None else c[:5]
    assert torch.equal(empty.inverse(z, c)[0], flow.inverse(z, c)[0])
    assert torch.equal(empty.score(x[:5], c), flow.score(x[:5], c))


@pytest.mark.parametrize("name", NAMES)
def test_memory_given_later_is_filled_by_weights(name: str) -> None:
    flow = make(name)
    x, c = points(flow, 20), context(flow, 20)
    with torch.device("meta"):
        empty = BUILDERS[name]().double()
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(flow.state_dict())
    assert {buffer.device.type for buffer in empty.buffers()} <= {"cpu"}
    assert torch.equal(empty.log_prob(x, c), flow.log_prob(x, c))


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    kf.save(make("mixture-3d"), tmp_path / "model.safetensors")
    torch.manual_seed(7)
    kf.load(tmp_path / "model.safetensors")
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(3))


def test_shapes_without_numbers() -> None:
    """Sizes of a flow and of its results can be asked before there is memory for it."""
    with torch.device("meta"):
        flow = kf.Flow.on([kf.Line()] * 2000)
        z = torch.randn(100_000, 2000)
        assert flow.base_log_prob(z).shape == (100_000,)
    assert sum(parameter.numel() for parameter in flow.parameters()) > 1_000_000
