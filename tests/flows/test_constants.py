"""Numbers of a module follow its dtype, are not rounded twice and are in no file."""

import copy

import torch

import knotflow as kf
from knotflow.flows.constants import Constants

THIRDS = (1 / 3, -2 / 3)


def test_they_follow_the_module_and_are_rounded_once() -> None:
    module = torch.nn.Sequential(Constants(THIRDS))
    for dtype in (torch.float32, torch.float64, torch.float16, torch.float64):
        module.to(dtype)
        x = torch.zeros(2, dtype=dtype)
        assert torch.equal(module[0](x), torch.tensor(THIRDS, dtype=dtype))
        assert torch.equal(copy.deepcopy(module)[0](x), torch.tensor(THIRDS, dtype=dtype))
    assert not module.state_dict() and not list(module.parameters())


def test_others_than_the_module_are_served_as_well() -> None:
    constants = Constants(THIRDS)
    x = torch.zeros(3, 2, dtype=torch.float64)
    assert torch.equal(constants(x), torch.tensor(THIRDS, dtype=torch.float64))
    assert constants(x.to("meta")).device.type == "meta"


def test_a_flow_without_weights_of_its_own_keeps_all_digits() -> None:
    flow = kf.Flow([kf.Interval(0.1, 0.7)], [])
    x = torch.tensor([[0.1], [0.35], [0.7]], dtype=torch.float64)
    z, _ = flow(x)
    torch.testing.assert_close(z, (x - 0.1) / 0.6, rtol=0, atol=1e-15)
    assert torch.equal(flow.inverse(z)[0], x)
