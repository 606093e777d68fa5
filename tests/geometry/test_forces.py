"""Forces along the coordinates and on the atoms."""

import pytest
import torch
from torch import Tensor

from knotflow.geometry import InternalCoordinates
from tests.geometry.molecules import instance

NAMES = ["ala2", "ala2-paper", "cyclohexane", "butyne", "water", "chignolin"]


def energy(x: Tensor) -> Tensor:
    """Springs between all atoms, and something that a mirror image changes: no rigid motion does."""
    i, j = torch.triu_indices(x.shape[-2], x.shape[-2], 1)
    lengths = (x[..., i, :] - x[..., j, :]).norm(dim=-1)
    u, v, w = x[..., 0, :] - x[..., 1, :], x[..., 1, :] - x[..., 2, :], x[..., -1, :] - x[..., 0, :]
    return (50 * (lengths - 0.2) ** 2).sum(-1) + 1e3 * (torch.linalg.cross(u, v) * w).sum(-1)


def force_of(x: Tensor) -> Tensor:
    return -torch.func.grad(lambda x: energy(x).sum())(x)


def numerical(f, at: Tensor, h: float = 1e-6) -> Tensor:
    """Gradient of a scalar function at one point by central differences."""
    steps = h * torch.eye(at.numel(), dtype=at.dtype).reshape(-1, *at.shape)
    return torch.stack([(f(at + s) - f(at - s)) / (2 * h) for s in steps]).reshape(at.shape)


@pytest.mark.parametrize("name", NAMES)
def test_forces_of_an_invariant_energy_go_both_ways(name: str) -> None:
    found, coordinates = instance(name)
    x = found.frames(6).reshape(2, 3, -1, 3)
    force = force_of(x)
    internal = coordinates.internal_force(x, force)
    assert internal.shape == (2, 3, coordinates.n_coordinates)
    back = coordinates.cartesian_force(x, internal)
    torch.testing.assert_close(back, force, rtol=1e-9, atol=1e-9 * force.abs().max().item())


@pytest.mark.parametrize("name", ["ala2", "butyne", "water"])
def test_internal_force_is_the_slope_of_the_energy(name: str) -> None:
    found, coordinates = instance(name)
    x = found.frames(1)[0]
    internal = coordinates.internal_force(x, force_of(x))
    oracle = -numerical(lambda q: energy(coordinates.inverse(q)[0]), coordinates(x)[0])
    torch.testing.assert_close(internal, oracle, rtol=1e-6, atol=1e-6 * oracle.abs().max().item())


def test_cartesian_force_is_the_slope_of_the_energy() -> None:
    found, coordinates = instance("ala2")
    x = found.frames(1)[0]
    pull = torch.randn(60, generator=torch.manual_seed(0), dtype=x.dtype)
    force = coordinates.cartesian_force(x, pull)
    oracle = numerical(lambda x: (coordinates(x)[0] * pull).sum(), x)
    torch.testing.assert_close(force, oracle, rtol=1e-6, atol=1e-6 * oracle.abs().max().item())


@pytest.mark.parametrize("name", NAMES)
def test_cartesian_force_is_what_autograd_finds_derivatives_included(name: str) -> None:
    found, coordinates = instance(name)
    x = found.frames(3).requires_grad_()
    random = torch.Generator().manual_seed(0)
    pull = torch.randn(3, coordinates.n_coordinates, generator=random, dtype=x.dtype, requires_grad=True)
    push = torch.randn(x.shape, generator=random, dtype=x.dtype)
    oracle = torch.func.vjp(lambda x: coordinates(x)[0], x)[1](pull)[0]
    pairs = []
    for force in (coordinates.cartesian_force(x, pull), oracle):
        pairs.append((force, *torch.autograd.grad((force * push).sum(), (x, pull))))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10 * other.abs().max().item())


@pytest.mark.parametrize("name", NAMES)
def test_any_internal_force_has_no_net_force_or_torque_and_comes_back(name: str) -> None:
    found, coordinates = instance(name)
    x = found.frames(5)
    pull = torch.randn(5, coordinates.n_coordinates, generator=torch.manual_seed(1), dtype=x.dtype)
    force = coordinates.cartesian_force(x, pull)
    scale = force.abs().max().item()
    assert force.sum(-2).abs().max() < 1e-10 * scale
    assert torch.linalg.cross(x, force).sum(-2).abs().max() < 1e-10 * scale
    torch.testing.assert_close(coordinates.internal_force(x, force), pull, rtol=0, atol=1e-9)


def test_score_of_a_density_has_the_gradient_of_the_volume_besides() -> None:
    found, coordinates = instance("ala2")
    x = found.frames(4)
    centre = coordinates(found.frames(1, seed=1)[0])[0]

    def log_density(x: Tensor) -> Tensor:
        q, ladj = coordinates(x)
        return -0.5 * (q - centre).square().sum(-1) + ladj

    score = torch.func.grad(lambda x: log_density(x).sum())(x)
    volume = torch.func.grad(lambda x: coordinates(x)[1].sum())(x)
    torch.testing.assert_close(score, coordinates.cartesian_force(x, centre - coordinates(x)[0]) + volume)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forces_can_be_differentiated_batched_and_taken_without_gradients(dtype: torch.dtype) -> None:
    found, coordinates = instance("ala2")
    x = found.frames(3, dtype)
    with torch.no_grad():
        internal = coordinates.internal_force(x, force_of(x))
        back = coordinates.cartesian_force(x, internal)
    assert internal.dtype == back.dtype == dtype
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(back, force_of(x), rtol=tolerance, atol=tolerance * back.abs().max().item())
    each = torch.vmap(coordinates.internal_force)(x, force_of(x))
    torch.testing.assert_close(each, internal, rtol=tolerance, atol=tolerance * each.abs().max().item())
    gradient = torch.func.grad(lambda x: coordinates.internal_force(x, force_of(x)).square().sum())(x)
    assert torch.isfinite(gradient).all() and gradient.abs().max() > 0


def test_mistakes_are_explained() -> None:
    coordinates: InternalCoordinates = instance("ala2")[1]
    x = torch.rand(2, 22, 3)
    with pytest.raises(ValueError, match=r"forces must have shape \(\.\.\., 22, 3\)"):
        coordinates.internal_force(x, torch.zeros(2, 60))
    with pytest.raises(ValueError, match=r"same frames, got shapes \(3, 22, 3\) and \(2, 22, 3\)"):
        coordinates.internal_force(x, torch.zeros(3, 22, 3))
    with pytest.raises(ValueError, match=r"forces must have shape \(\.\.\., 60\)"):
        coordinates.cartesian_force(x, torch.zeros(2, 22, 3))
    with pytest.raises(ValueError, match="floating-point"):
        coordinates.cartesian_force(x, torch.zeros(2, 60, dtype=torch.int64))
