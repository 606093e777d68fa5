"""Values and gradients from one pass: the same wherever they are asked for."""

import torch
from torch import Tensor

import knotflow as kf
from knotflow.flows.gradient import with_gradient
from tests.flows.registry import make, points


def cubes(x: Tensor) -> Tensor:
    return (x**3).sum(-1)


def test_values_and_gradients_of_first_and_second_order() -> None:
    x = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    values, gradient = with_gradient(cubes, x, ())
    torch.testing.assert_close((values, gradient), (cubes(x), 3 * x**2))
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x, retain_graph=True)[0], 6 * x)
    torch.testing.assert_close(torch.autograd.grad(values.sum(), x)[0], 3 * x**2)


def test_points_in_the_middle_of_a_graph_pass_derivatives_on() -> None:
    y = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    _, gradient = with_gradient(cubes, 2 * y, ())
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), y)[0], 24 * y)


def test_no_graph_unless_somebody_wants_it() -> None:
    flow, x = make("mixed-5d"), points(make("mixed-5d"), 4)
    log_prob, score = flow.log_prob_and_score(x)
    assert log_prob.requires_grad and score.requires_grad and x.grad is None
    with torch.no_grad():
        again = flow.log_prob_and_score(x.requires_grad_())
    assert not any(part.requires_grad for part in again)
    flow.requires_grad_(False)
    frozen = flow.log_prob_and_score(x.detach())
    assert not any(part.requires_grad for part in frozen)
    torch.testing.assert_close((again, frozen), ((log_prob, score), (log_prob, score)))


def test_inside_torch_func_and_inference_mode() -> None:
    flow = make("mixed-5d")
    x = points(flow, 4)
    log_prob, score = flow.log_prob_and_score(x)
    torch.testing.assert_close(torch.func.vmap(flow.log_prob_and_score)(x), (log_prob, score))
    weights = dict(flow.named_parameters())

    def loss(weights: dict[str, Tensor]) -> Tensor:
        def squares(flow_: kf.Flow) -> Tensor:
            return flow_.log_prob_and_score(x)[1].square().sum()

        return torch.func.functional_call(
            _Called(flow, squares), {f"flow.{k}": v for k, v in weights.items()}
        )

    found = torch.func.grad(loss)(weights)
    expected = torch.autograd.grad(score.square().sum(), list(weights.values()), materialize_grads=True)
    scale = max(float(part.abs().max()) for part in expected)
    torch.testing.assert_close(list(found.values()), list(expected), rtol=1e-8, atol=1e-10 * scale)
    with torch.inference_mode():
        torch.testing.assert_close(flow.log_prob_and_score(x), (log_prob, score))


class _Called(torch.nn.Module):
    """A function of a flow as a module, for ``functional_call``."""

    def __init__(self, flow: kf.Flow, function) -> None:
        super().__init__()
        self.flow, self.function = flow, function

    def forward(self) -> Tensor:
        return self.function(self.flow)


def test_inside_a_graph() -> None:
    flow = make("mixed-5d")
    x = points(flow, 4)
    compiled = torch.compile(flow.log_prob_and_score, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), flow.log_prob_and_score(x))
