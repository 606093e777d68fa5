"""What single parts of flows promise: defaults, contexts, errors, conditioners."""

import math

import pytest
import torch

import knotflow as kf
from tests.flows.registry import make, points


def test_the_default_flow_begins_as_the_base() -> None:
    flow = kf.Flow.on([kf.Circle(-math.pi, math.pi), kf.Interval(0.0, 4.0), kf.Line(-1.0, 3.0)]).double()
    x = points(flow, 40)
    normal = torch.distributions.Normal(1.0, 0.4)
    expected = -math.log(2 * math.pi) - math.log(4.0) + normal.log_prob(x[:, 2])
    torch.testing.assert_close(flow.log_prob(x), expected)


def test_every_coordinate_is_read_by_every_other() -> None:
    """After the default rounds each base coordinate depends on each data coordinate."""
    torch.manual_seed(0)
    flow = kf.Flow.on([kf.Circle()] * 2 + [kf.Interval()] * 3).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    jacobian = torch.func.jacrev(lambda x: flow(x)[0])(points(flow, 1)[0])
    assert (jacobian.abs() > 1e-12).all()


def test_a_context_conditions_the_density() -> None:
    flow = make("context-2d")
    x = points(flow, 10)
    one, two = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    assert (flow.log_prob(x, one) - flow.log_prob(x, two)).abs().max() > 1e-3
    rows = torch.stack([one, two] * 5)
    torch.testing.assert_close(flow.log_prob(x, rows)[::2], flow.log_prob(x, one)[::2])
    assert flow.sample(7, one).shape == (7, 2)
    with pytest.raises(ValueError, match="context for each of 4 points, got 10"):
        flow.sample(4, rows)
    with pytest.raises(ValueError, match="conditional: give a context of shape"):
        flow.log_prob(x)
    with pytest.raises(ValueError, match="expected no context"):
        make("circle-2d").log_prob(x, one)
    with pytest.raises(ValueError, match=r"one for each point, of shape \(10, 3\), got \(4, 3\)"):
        flow.log_prob(x, rows[:4])
    with pytest.raises(ValueError, match=r"expected a context of shape \(\.\.\., 3\)"):
        flow.log_prob(x, one[:2])


def test_points_outside_an_interval_are_named() -> None:
    flow = make("mixed-5d")
    x = points(flow, 10)
    x[3, 2] = 0.4
    with pytest.raises(ValueError, match=r"coordinate 2 lives on the interval \[0.05, 0.3\], got .* to 0.4"):
        flow.log_prob(x)


def test_points_that_are_no_numbers_are_named() -> None:
    for name in ("mixed-5d", "line-1d", "circle-1d"):
        flow = make(name)
        x = points(flow, 10)
        x[3, -1] = torch.nan
        with pytest.raises(ValueError, match=f"coordinate {flow.dim - 1} is NaN"):
            flow.log_prob(x)


def test_dtypes_must_agree() -> None:
    flow = make("circle-2d")
    with pytest.raises(ValueError, match=r"computes in torch.float64, got points in torch.float32"):
        flow.log_prob(points(flow, 3).float())


def test_float32_samples_lie_in_their_intervals() -> None:
    torch.manual_seed(1)
    flow = kf.Flow.on([kf.Interval(100.0, 100.1), kf.Interval(0.05, 0.3)], transform={"bins": 4})
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    x = flow.sample(5000)
    assert flow.log_prob(x).isfinite().all()
    assert (x[:, 0] >= 100.0).all() and (x[:, 1] <= torch.tensor(0.3)).all()


def test_wrong_points_are_refused() -> None:
    flow = make("circle-2d")
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 2\), got \(4, 3\)"):
        flow.log_prob(torch.rand(4, 3))
    with pytest.raises(ValueError, match="floating-point"):
        flow.log_prob(torch.zeros(4, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="n must be a whole number"):
        flow.sample(-1)
    assert flow.sample(0).shape == (0, 2)


def test_wrong_couplings_are_refused() -> None:
    unit, spline = kf.Interval(), kf.BSpline(4)
    network = kf.Conditioner([unit], spline.n_parameters)
    with pytest.raises(ValueError, match="different and counted from 0"):
        kf.Coupling([0], [spline], [0], network)
    with pytest.raises(ValueError, match="a transform for each of the 2"):
        kf.Coupling([0, 1], [spline], [2], network)
    with pytest.raises(ValueError, match="at least one coordinate"):
        kf.Coupling([], [], [0], network)
    small = kf.Coupling([0], [spline], [1], kf.Conditioner([unit], 5))
    with pytest.raises(ValueError, match=f"take {spline.n_parameters} raw parameters, its conditioner"):
        small(torch.rand(3, 2))
    coupling = kf.Coupling([0], [spline], [1], network)
    with pytest.raises(ValueError, match="uses coordinate 1, but there are 1"):
        kf.Flow([unit], [coupling])
    with pytest.raises(ValueError, match=r"standard domain Circle\(low=0.0, high=1.0\) of coordinate 0"):
        kf.Flow([kf.Circle(), unit], [coupling])


def test_conditioners_see_circles_as_circles() -> None:
    circle = kf.Circle(-2.0, 1.0)
    network = kf.Conditioner([circle, kf.Interval()], 5, frequencies=2, identity=False).double()
    x = torch.tensor([[-2.0, 0.3]], dtype=torch.float64)
    y = torch.tensor([[1.0, 0.3]], dtype=torch.float64)
    torch.testing.assert_close(network(x), network(y))


def test_a_conditioner_without_inputs_is_a_parameter() -> None:
    network = kf.Conditioner([], 7)
    assert [tuple(p.shape) for p in network.parameters()] == [(7, 1)]
    assert network(torch.empty(3, 0)).shape == (3, 7)


def test_kinked_activations_are_refused() -> None:
    with pytest.raises(ValueError, match="one of gelu, silu, sin, softplus, tanh"):
        kf.Conditioner([kf.Interval()], 3, activation="relu")
    assert kf.Conditioner([kf.Interval()], 3, activation=torch.relu)(torch.rand(2, 1)).shape == (2, 3)


def test_equal_transforms_share_a_call_and_others_do_not() -> None:
    flow = make("mixed-5d")
    widths = [len(coupling._groups) for coupling in flow.couplings]
    assert max(widths) <= 3
    strict = kf.Coupling(
        [0, 1],
        [kf.BSpline(4), kf.BSpline(4, parametrisation=kf.Slopes(min_slope=0.01))],
        [2],
        kf.Conditioner([kf.Interval()], 2 * kf.BSpline(4).n_parameters),
    )
    assert len(strict._groups) == 2


def test_a_subclass_is_not_taken_for_its_parent() -> None:
    class Turned(kf.Affine):
        def define_forward(self, x: torch.Tensor, raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return super().define_forward(x, -raw)

    transforms = [kf.Affine(), Turned(), kf.Affine()]
    coupling = kf.Coupling([0, 1, 2], transforms, [], kf.Conditioner([], 6))
    with torch.no_grad():
        coupling.conditioner.layers[0].weight[:] = 1.0
    image, _ = coupling(torch.zeros(3))
    assert image.tolist() == [1.0, -1.0, 1.0] and len(coupling._groups) == 2


def test_raw_parameters_belong_to_their_coordinates() -> None:
    flow = make("by-hand-4d")
    coupling = flow.couplings[0]
    z = torch.rand(6, 4, dtype=torch.float64)
    image, log_slopes = coupling(z)
    for place, (i, f, raw) in enumerate(
        zip(coupling.transformed, coupling.transforms, coupling.raw(z), strict=True)
    ):
        y, ladj = f.forward(z[:, i], raw)
        torch.testing.assert_close(image[:, i], y)
        torch.testing.assert_close(log_slopes[:, place], ladj)
    torch.testing.assert_close(image[:, [1, 3]], z[:, [1, 3]])
