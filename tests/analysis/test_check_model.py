"""Checks of models: they pass where all is well, and fail where one thing is wrong."""

import math

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

import knotflow as kf
from knotflow.analysis import check_model as check_model_module
from knotflow.analysis.check_model import check_flow, check_model
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import Flow
from knotflow.geometry import InternalCoordinates, internal
from knotflow.transforms import RationalQuadratic
from tests.analysis.test_check import broken, check_of
from tests.flows.generators import NAMES, make

FEW = 60


def flow_of(seed: int = 0, **options) -> Flow:
    """A flow of five coordinates with random weights."""
    torch.manual_seed(seed)
    domains = [kf.Circle(-math.pi, math.pi)] * 2 + [kf.Interval(0.05, 0.3)] * 2
    domains += [] if options.get("transform") == {"family": "bump", "components": 3} else [kf.Line(-2.0, 3.0)]
    flow = Flow.on(domains, conditioner={"hidden": [12]}, rounds=2, **options)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return flow


@pytest.mark.parametrize("name", NAMES)
def test_all_promises_are_kept(name: str) -> None:
    checks = check_model(make(name, torch.float32), FEW)
    assert not broken(checks)
    value = {check.name: check.value for check in checks}
    # Far better than promised, and measured at all.
    for what in ("flow: base there and back", "flow: data there and back", "positions there and back"):
        assert 1e-8 < value[f"{what}, float32"] < 1e-3 and 0 < value[f"{what}, float64"] < 1e-10
    for what in ("flow: volume both ways", "log-density both ways"):
        assert 1e-7 < value[f"{what}, float32"] < 0.05 and 0 < value[f"{what}, float64"] < 1e-9
    assert 0 < value["flow: log-determinant"] < 1e-10 and 0 < value["log-density, by determinants"] < 1e-10
    assert 0 < value["force, by differences"] < 1e-6
    assert 0 < value["flow: jump of the force"] < 1e-6
    assert 0 < value["flow: mass - 1"] < 0.3 and 0 < value["flow: distribution of samples"] < 0.4
    assert 0 < value["flow: least slope"] < 1 < value["flow: largest slope"]
    assert check_of(checks, "flow: least slope").note.count(" to ") == len(make(name).flow.couplings)
    assert value["samples not finite, float32"] == value["flow: not finite at edges, float64"] == 0


def test_the_model_is_not_changed() -> None:
    model = make("no stereocentre", torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    told: list[tuple[str, int, int]] = []
    first = check_model(model, FEW, 1, progress=lambda *now: told.append(now))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) and tensor.dtype == torch.float32
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {doing for doing, _, _ in told} == {
        "flow, float32", "flow, float64", "flow, more closely", "positions, float32", "positions, float64"
    }  # fmt: skip
    assert first == check_model(model, FEW, 1) != check_model(model, FEW, 2)


def test_the_distance_of_distributions_is_that_of_scipy(monkeypatch) -> None:
    flow, kept = flow_of().double(), []
    honest = Flow.forward

    def spy(self: Flow, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        kept.append(honest(self, x, context)[0])
        return honest(self, x, context)

    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(Flow, "forward", spy)
    found = check_model_module._check_distribution(flow, 700, generator)
    z = torch.cat(kept).numpy()
    assert z.shape == (700, 5)
    laws = ["uniform"] * 4 + ["norm"]
    expected = max(kstest(z[:, i], law).statistic for i, law in enumerate(laws))
    assert found.value == pytest.approx(expected, abs=1e-12)


def test_handedness_is_told() -> None:
    share = check_of(check_model(make("ala2, circles"), FEW), "samples of other handedness")
    assert 10 < share.value < 90 and share.ok and share.note == "the molecule has 1 chiral centre"
    assert check_of(check_model(make("no stereocentre"), FEW), "samples of other handedness").value == 0


@pytest.mark.parametrize(
    ("transform", "continuous"),
    [
        ({"bins": 6, "order": 4}, True),
        ({"bins": 6, "order": 5}, True),
        ({"family": "bump", "components": 3}, True),
        ({"bins": 6, "order": 3}, False),
        ({"family": "rq", "bins": 6}, False),
    ],
    ids=str,
)
def test_forces_that_jump_are_told_from_those_that_do_not(transform: dict, continuous: bool) -> None:
    checks = check_flow(flow_of(transform=transform), FEW)
    assert not broken(checks)
    jump = check_of(checks, "flow: jump of the force")
    if continuous:
        assert jump.value < 1e-6 and jump.limit == 1e-3 and "the force is continuous" in jump.note
    else:
        assert jump.value > 1e-2 and jump.limit is None
        assert "DISCONTINUOUS" in jump.note and "1 times continuously differentiable" in jump.note


def test_a_jump_where_none_is_promised_is_found(monkeypatch) -> None:
    flow = flow_of(transform={"family": "rq", "bins": 6})
    for coupling in flow.couplings:
        for f in coupling.transforms:
            assert isinstance(f, RationalQuadratic)
            object.__setattr__(f, "smoothness", 2)
    assert broken(check_flow(flow, FEW)) == {"flow: jump of the force"}


def test_a_wrong_log_determinant_is_found(monkeypatch) -> None:
    honest = Flow.forward

    def wrong(self: Flow, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, ladj = honest(self, x, context)
        return z, ladj + 0.2 * x[..., 0].square() + 0.3

    monkeypatch.setattr(Flow, "forward", wrong)
    assert broken(check_flow(flow_of(), 500)) == {
        "flow: volume both ways, float32", "flow: volume both ways, float64",
        "flow: log-determinant", "flow: mass - 1",
    }  # fmt: skip


def test_an_inverse_that_is_not_one_is_found(monkeypatch) -> None:
    honest = Flow.inverse

    def wrong(self: Flow, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, ladj = honest(self, z, context)
        return torch.cat((q[..., :1] + 0.2, q[..., 1:]), -1), ladj

    monkeypatch.setattr(Flow, "inverse", wrong)
    names = broken(check_flow(flow_of(), FEW))
    assert names >= {
        "flow: base there and back, float32", "flow: base there and back, float64",
        "flow: data there and back, float32", "flow: data there and back, float64",
    }  # fmt: skip


def test_samples_that_leave_out_a_part_of_the_space_are_found(monkeypatch) -> None:
    """Every sample is right, with the right density; only that some never come."""
    honest = Flow.sample_base

    def lazy(self: Flow, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        z = honest(self, n, generator=generator)
        z[:, 0] *= 0.8
        return z

    monkeypatch.setattr(Flow, "sample_base", lazy)
    checks = check_flow(flow_of(), 2000)
    assert broken(checks) == {"flow: distribution of samples"}
    # The fifth that is missing is there, and hardly more.
    assert check_of(checks, "flow: distribution of samples").value == pytest.approx(0.2, abs=0.02)


def test_a_wrong_volume_of_the_coordinates_is_found(monkeypatch) -> None:
    monkeypatch.setattr(internal, "_log_volume", lambda bonds, angles: 2 * bonds.log().sum(0))
    assert broken(check_model(make("ala2, lines"), FEW)) == {"log-density, by determinants"}


def test_a_wrong_force_is_found(monkeypatch) -> None:
    honest = BoltzmannGenerator.force
    monkeypatch.setattr(BoltzmannGenerator, "force", lambda self, x: (1 + 1e-3) * honest(self, x))
    assert broken(check_model(make("ala2, lines"), FEW)) == {"force, by differences"}


def test_mirror_images_on_the_way_back_are_found(monkeypatch) -> None:
    honest = InternalCoordinates.inverse

    def mirrored(self: InternalCoordinates, q: Tensor) -> tuple[Tensor, Tensor]:
        x, ladj = honest(self, q)
        return x * x.new_tensor([1, 1, -1]), ladj

    monkeypatch.setattr(InternalCoordinates, "inverse", mirrored)
    names = broken(check_model(make("ala2, lines"), FEW))
    assert names >= {"positions there and back, float32", "positions there and back, float64"}


def test_a_single_nan_is_counted(monkeypatch) -> None:
    honest = BoltzmannGenerator.force

    def one_nan(self: BoltzmannGenerator, x: Tensor) -> Tensor:
        force = honest(self, x).clone()
        force[0, 2, 1] = math.nan
        return force

    monkeypatch.setattr(BoltzmannGenerator, "force", one_nan)
    checks = check_model(make("no stereocentre"), FEW)
    assert broken(checks) == {
        "samples not finite, float32", "samples not finite, float64", "force, by differences"
    }  # fmt: skip
    assert check_of(checks, "samples not finite, float32").value == 1


def test_a_model_of_nothing_but_nan_breaks_every_promise() -> None:
    model = make("ala2, circles")
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    checks = check_model(model, FEW)
    assert broken(checks) == {check.name for check in checks if check.limit is not None}
    assert check_of(checks, "samples not finite, float64").value == FEW


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="samples must be a whole number of at least 2, got 1"):
        check_flow(flow_of(), 1)
    with pytest.raises(ValueError, match="needs a context of 3 numbers and cannot be checked alone"):
        check_flow(flow_of(context=3))
