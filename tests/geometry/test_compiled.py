"""One graph without breaks, and the same numbers as without compiling.

What has to be traced and differentiated is the same for all backends; making code of it takes long, so the
fast tests stop before that.
"""

import pytest
import torch
from torch import Tensor

from tests.geometry.molecules import instance

NAMES = ["ala2", "butyne"]
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", NAMES)
def test_traced_maps_equal_eager(name: str) -> None:
    check_maps(name, "aot_eager")


def test_compiled_maps_equal_eager() -> None:
    check_maps("acetonitrile", "inductor")


def check_maps(name: str, backend: str) -> None:
    found, coordinates = instance(name)
    x = found.frames(16)
    q, ladj = coordinates(x)
    compiled = torch.compile(coordinates.forward, fullgraph=True, backend=backend)(x)
    torch.testing.assert_close(compiled, (q, ladj), rtol=1e-12, atol=1e-12)
    compiled = torch.compile(coordinates.inverse, fullgraph=True, backend=backend)(q)
    torch.testing.assert_close(compiled, coordinates.inverse(q), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_loss_with_forces_equals_eager(backend: str) -> None:
    """Density of positions, its score by torch.func.grad, and the gradient of both by a parameter."""
    found, coordinates = instance("ala2")
    x = found.frames(16)
    stiffness = torch.linspace(0.5, 2.0, 60, dtype=x.dtype)

    def log_density(x: Tensor, stiffness: Tensor) -> Tensor:
        q, ladj = coordinates(x)
        return (ladj - 0.5 * (stiffness * q.square()).sum(-1)).sum()

    def loss(stiffness: Tensor, x: Tensor) -> Tensor:
        return torch.func.grad(log_density)(x, stiffness).square().mean() - log_density(x, stiffness) / len(x)

    step = torch.func.grad_and_value(loss)
    gradient, value = step(stiffness, x)
    compiled = torch.compile(step, fullgraph=True, backend=backend)(stiffness, x)
    torch.testing.assert_close(compiled[1], value, rtol=1e-10, atol=0)
    torch.testing.assert_close(compiled[0], gradient, rtol=1e-8, atol=1e-10 * gradient.abs().max().item())


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_gradient_through_samples_equals_eager(backend: str) -> None:
    """Sampling: positions from coordinates, and the gradient of an energy of them."""
    found, coordinates = instance("ala2")
    q = coordinates(found.frames(16))[0]

    def loss(q: Tensor) -> Tensor:
        x, ladj = coordinates.inverse(q)
        return (x[:, :, None] - x[:, None] + 1e-3).square().sum().sqrt() - ladj.sum()

    step = torch.func.grad(loss)
    gradient = step(q)
    compiled = torch.compile(step, fullgraph=True, backend=backend)(q)
    torch.testing.assert_close(compiled, gradient, rtol=1e-8, atol=1e-10 * gradient.abs().max().item())
