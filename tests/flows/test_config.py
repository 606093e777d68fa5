"""Configurations of transforms and networks: what is built from them."""

import json
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

import knotflow as kf
from knotflow.errors import ConfigError
from knotflow.flows import FlowConfig, FlowOptions, default_config
from knotflow.flows.conditioner import SeparateConditioners
from knotflow.transforms import Chain
from tests.flows.registry import context, make, points

DOMAINS = {"interval": kf.Interval(), "circle": kf.Circle(), "line": kf.Line()}


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("phase", [False, True])
def test_phases_are_for_circles_and_affine_parts_for_lines(domain: str, affine: bool, phase: bool) -> None:
    table = {"family": "bspline", "bins": 5, "order": 5, "affine": affine, "phase": phase}
    f = FlowOptions.parse({"transform": table}).transform.on(DOMAINS[domain])
    assert f.domain == DOMAINS[domain]
    spline = f
    if affine and domain == "line":
        assert isinstance(f, Chain)
        first, spline = f.parts
        assert isinstance(first, kf.Affine) and f.n_parameters == 2 + spline.n_parameters
    assert isinstance(spline, kf.BSpline) and (spline.bins, spline.order) == (5, 5)
    assert spline.phase == (phase and domain == "circle")


def test_an_affine_flow_begins_as_the_base_and_learns_to_shift() -> None:
    """The network of a coupling moves a whole density by one number."""
    torch.manual_seed(0)
    flow = kf.Flow.on([kf.Line(-1.0, 3.0)], transform={"bins": 4, "affine": True}, rounds=1).double()
    x = points(flow, 30)
    normal = torch.distributions.Normal(1.0, 0.4)
    torch.testing.assert_close(flow.log_prob(x), normal.log_prob(x[:, 0]))
    (coupling,) = flow.couplings
    with torch.no_grad():
        coupling.conditioner.layers[-1].weight[0] = -2.5  # in standard deviations of the base
    moved = torch.distributions.Normal(1.0 + 2.5 * 0.4, 0.4)
    middle = x[(x[:, 0] > 0) & (x[:, 0] < 3)]
    torch.testing.assert_close(flow.log_prob(middle), moved.log_prob(middle[:, 0]))


def test_several_networks_are_separate_conditioners() -> None:
    config = default_config(
        [kf.Circle(), kf.Interval()],
        rounds=1,
        transform={"family": "bump", "components": 2},
        conditioner={"hidden": [4], "networks": [1, 1, 3]},
    )
    flow = config.build()
    for coupling in flow.couplings:
        assert isinstance(coupling.conditioner, SeparateConditioners)
        # Weights, shapes, and shift, scale and offset of each component.
        assert [part.layers[-1].out_features for part in coupling.conditioner.parts] == [2, 2, 6]
    one = default_config([kf.Circle(), kf.Interval()], conditioner={"networks": [1]}).build()
    assert all(isinstance(coupling.conditioner, kf.Conditioner) for coupling in one.couplings)


@pytest.mark.parametrize("name", ["affine-3d", "networks-2d", "context-2d"])
def test_what_is_rebuilt_from_json_is_the_same_flow(name: str) -> None:
    flow = make(name)
    assert flow.config is not None
    again = FlowConfig.parse(json.loads(json.dumps(flow.config.plain()))).build().double()
    again.load_state_dict(flow.state_dict())
    x, c = points(flow, 20), context(flow, 20)
    assert torch.equal(again.log_prob(x, c), flow.log_prob(x, c))


@pytest.mark.parametrize(
    "family", [kf.BSpline(5, 3, parametrisation=kf.Paper(0.01)), kf.RationalQuadratic(4), kf.Bump(2)]
)
def test_a_family_is_its_own_configuration(family: kf.Transform) -> None:
    domains = [kf.Circle(0.0, 2.0), kf.Interval(-1, 1)]
    config = default_config(domains, transform=family)
    again = FlowConfig.parse(json.loads(json.dumps(config.plain())))
    assert again == config == pickle.loads(pickle.dumps(config)) and hash(again) == hash(config)
    built = {f for coupling in again.build().couplings for f in coupling.transforms}
    assert built == {replace(family, domain=kf.Circle()), replace(family, domain=kf.Interval())}


def test_rotations_are_learned_on_circles_unless_a_family_says_no() -> None:
    def phases(**options: Any) -> set[bool]:
        flow = kf.Flow.on([kf.Circle(), kf.Interval(), kf.Circle()], **options)
        pairs = [pair for c in flow.couplings for pair in zip(c.transformed, c.transforms, strict=True)]
        assert not any(f.phase for i, f in pairs if i == 1)
        return {f.phase for i, f in pairs if i != 1}

    assert phases() == phases(transform="bspline") == phases(transform={"bins": 4}) == {True}
    assert phases(transform={"phase": False}) == phases(transform=kf.BSpline(4)) == {False}


@pytest.mark.parametrize("family", ["bspline", "rq"])
@pytest.mark.parametrize(("dim", "bins"), [(1, 32), (8, 32), (16, 16), (32, 8), (64, 8)])
def test_wide_data_get_fewer_bins(family: str, dim: int, bins: int) -> None:
    """Unless a number is given, also by a family; so outputs of networks grow slowly."""

    def found(transform: Any) -> set[int]:
        config = default_config([kf.Line()] * dim, transform=transform)
        return {coupling.transform.bins for coupling in config.couplings}

    assert found(family) == found({"family": family}) == {bins}
    assert found({"family": family, "bins": 20}) == {20}
    assert found(kf.BSpline()) == {32}


@pytest.mark.parametrize(("key", "kind"), [("phase", "Circle"), ("affine", "Line")])
def test_options_without_effect_are_refused(key: str, kind: str) -> None:
    message = f"transform: {key} is for coordinates on a {kind}, and none of these is; leave it out"
    with pytest.raises(ConfigError, match=message):
        kf.Flow.on([kf.Interval()] * 2, transform={key: True})
    plain = default_config([kf.Interval(), kf.Circle(), kf.Line()], transform={"phase": False}).plain()
    plain["couplings"] = [{"transformed": [0], "read": [], "transform": {"family": "bspline", key: True}}]
    with pytest.raises(ConfigError, match=f"couplings.0.{message}"):
        FlowConfig.parse(plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": {"affine": 1}}, r"transform\.affine: .*boolean, got 1"),
        ({"transform": kf.Affine()}, r"transform: expected a table of keys and values, got Affine\("),
        ({"conditioner": {"networks": [1, 0]}}, r"conditioner\.networks\.1: .*got 0"),
        ({"conditioner": {"networks": 3}}, r"conditioner\.networks: .*tuple, got 3"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        default_config([kf.Line(), kf.Circle()], **options)


def test_networks_that_do_not_divide_the_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="must divide the 13 raw parameters of a map"):
        kf.Flow.on(
            [kf.Circle(-math.pi, math.pi)],
            transform={"bins": 6},
            conditioner={"networks": [1, 1, 3]},
        )


@pytest.mark.parametrize("d", [65, 128, 200, 256, 500])
def test_wide_data_have_few_couplings_in_which_all_coordinates_meet(d: int) -> None:
    config = default_config([kf.Line()] * d)
    assert len(config.couplings) == math.ceil(math.log2(d)) + 2
    meets, transformed = torch.eye(d, dtype=torch.bool), set()
    for coupling in config.couplings:
        part, read = torch.tensor(coupling.transformed), torch.tensor(coupling.read)
        meets[part[:, None], read] = True
        transformed |= set(coupling.transformed)
    assert (meets | meets.T).all()
    assert transformed == set(range(d))
    with torch.device("meta"):
        flow = config.build()
    assert sum(parameter.numel() for parameter in flow.parameters()) < 9000 * d


def test_rounds_asked_for_are_whole_even_for_wide_data() -> None:
    assert len(default_config([kf.Line()] * 100, rounds=3).couplings) == 6
    assert len(default_config([kf.Line()] * 64).couplings) == 14
