"""Laws of internal coordinates, over all molecules of the registry."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from knotflow.geometry import InternalCoordinates, ZMatrix, paper_zmatrix
from tests.geometry.molecules import INSTANCES, deviation, instance, molecule, place

SMALL = [name for name in INSTANCES if name != "chignolin"]


def wrapped(torsions: Tensor) -> Tensor:
    return torch.remainder(torsions + math.pi, 2 * math.pi) - math.pi


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", INSTANCES)
def test_positions_come_back(name: str, dtype: torch.dtype, tolerance: float) -> None:
    found, coordinates = instance(name)
    x = found.frames(2000, dtype)
    q, ladj = coordinates(x)
    y, back = coordinates.inverse(q)
    assert q.shape == (2000, 3 * found.n_atoms - 6) and q.dtype == y.dtype == ladj.dtype == dtype
    assert deviation(x, y) < tolerance / 5
    torch.testing.assert_close(back, -ladj)


@pytest.mark.parametrize("name", INSTANCES)
def test_coordinates_come_back(name: str) -> None:
    """From random coordinates, over their full range."""
    _, coordinates = instance(name)
    q = random_coordinates(coordinates, 200)
    x, ladj = coordinates.inverse(q)
    again, back = coordinates(x)
    difference = torch.cat((again - q)[:, : coordinates.torsions.start].abs().unbind())
    assert difference.max() < 1e-10
    assert (wrapped((again - q)[:, coordinates.torsions]).abs() < 1e-10).all()
    torch.testing.assert_close(back, -ladj, rtol=1e-10, atol=1e-9)


def random_coordinates(coordinates: InternalCoordinates, n: int, seed: int = 0) -> Tensor:
    q = torch.rand(n, coordinates.n_coordinates, generator=torch.manual_seed(seed), dtype=torch.float64)
    q[:, coordinates.bonds] = 0.1 + 0.1 * q[:, coordinates.bonds]
    q[:, coordinates.angles] = 0.4 + 2.2 * q[:, coordinates.angles]
    q[:, coordinates.torsions] = math.pi * (2 * q[:, coordinates.torsions] - 1)
    return q


@pytest.mark.parametrize("name", ["ala2", "ala2-paper", "chignolin", "butyne"])
def test_placement_is_that_of_the_textbook(name: str) -> None:
    """Atom by atom with numpy, which also shows the standard pose."""
    _, coordinates = instance(name)
    q = random_coordinates(coordinates, 1)[0]
    value = dict(zip(coordinates.atoms, q.tolist(), strict=True))
    zmatrix = coordinates.zmatrix
    a, b, c = zmatrix.frame
    rows: list[tuple[int, ...]] = [(a,), (b, a), (c, b, a)]
    rows += [zmatrix.rows[number] for level in zmatrix.levels() for number in level]
    slot = {row[0]: number for number, row in enumerate(rows)}
    values = [[value.get(row[:size], 0.0) for size in (2, 3, 4)] for row in rows]
    references = [[slot[atom] for atom in row[1:]] + [0] * (4 - len(row)) for row in rows]
    oracle = place(*((*r, v[0], *np.degrees(v[1:])) for r, v in zip(references, values, strict=True)))
    x = coordinates.inverse(q)[0].numpy()
    np.testing.assert_allclose(x[[row[0] for row in rows]], oracle, atol=1e-11)
    np.testing.assert_allclose(x[a], 0)
    assert x[b, 0] > 0 and x[c, 1] > 0
    np.testing.assert_allclose([*x[b, 1:], x[c, 2]], 0)


def test_torsions_are_those_of_mdtraj() -> None:
    mdtraj = pytest.importorskip("mdtraj")
    found, coordinates = instance("ala2")
    x = found.frames(50, torch.float32)
    trajectory = mdtraj.Trajectory(x.numpy(), None)
    q, _ = coordinates(x)
    rows = coordinates.zmatrix.rows
    oracle = torch.from_numpy(mdtraj.compute_dihedrals(trajectory, rows, opt=False))
    assert wrapped(q[:, coordinates.torsions] - oracle).abs().max() < 1e-4
    oracle = torch.from_numpy(mdtraj.compute_angles(trajectory, [r[:3] for r in rows], opt=False))
    assert (q[:, coordinates.angles][:, 1:] - oracle).abs().max() < 1e-4
    oracle = torch.from_numpy(mdtraj.compute_distances(trajectory, [r[:2] for r in rows], opt=False))
    assert (q[:, coordinates.bonds][:, 2:] - oracle).abs().max() < 1e-6


def test_names_and_order() -> None:
    _, coordinates = instance("ala2-paper")
    assert coordinates.names[0] == "bond 8-14" and coordinates.names[21] == "angle 6-8-14"
    assert coordinates.atoms[coordinates.torsions] == paper_zmatrix().rows
    assert [len(coordinates.names[part]) for part in (coordinates.bonds, coordinates.angles)] == [21, 20]
    q, _ = coordinates(torch.from_numpy(molecule("ala2").positions))
    value = dict(zip(coordinates.names, q.tolist(), strict=True))
    assert math.degrees(value["torsion 4-6-8-14"]) == pytest.approx(-80)  # phi
    assert math.degrees(value["torsion 16-14-8-6"]) == pytest.approx(75)  # psi
    assert value["bond 16-14"] == pytest.approx(0.1335)


def all_positions(coordinates: InternalCoordinates, everything: Tensor) -> Tensor:
    """Positions by 3 translations, 3 rotations (rotation vector) and the coordinates.

    At the identity the rotation vector measures rotations as the invariant measure does, with factor 1.
    """
    move, (x, y, z), q = everything[:3], everything[3:6], everything[6:]
    zero = torch.zeros_like(x)
    turn = torch.linalg.matrix_exp(torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3))
    return (coordinates.inverse(q)[0] @ turn.T + move).flatten()


@pytest.mark.parametrize("name", INSTANCES)
def test_volume_is_the_determinant_of_the_jacobian(name: str) -> None:
    found, coordinates = instance(name)
    q, ladj = coordinates(found.frames(1)[0])
    everything = torch.cat([q.new_zeros(6), q])
    jacobian = torch.func.jacrev(lambda e: all_positions(coordinates, e))(everything)
    assert jacobian.shape == (3 * found.n_atoms, 3 * found.n_atoms)
    volume = torch.linalg.slogdet(jacobian).logabsdet
    assert volume.item() == pytest.approx(coordinates.inverse(q)[1].item(), abs=1e-8)
    assert volume.item() == pytest.approx(-ladj.item(), abs=1e-8)


def test_volume_by_finite_differences() -> None:
    found, coordinates = instance("ala2")
    q, ladj = coordinates(found.frames(1)[0])
    everything, h = torch.cat([q.new_zeros(6), q]), 1e-5
    steps = h * torch.eye(len(everything), dtype=q.dtype)
    columns = [
        (all_positions(coordinates, everything + step) - all_positions(coordinates, everything - step))
        / (2 * h)
        for step in steps
    ]
    assert torch.linalg.slogdet(torch.stack(columns)).logabsdet.item() == pytest.approx(
        -ladj.item(), abs=1e-6
    )


def test_measure_of_the_paper_leaves_out_the_frame() -> None:
    found, coordinates = instance("ala2-paper")
    x = found.frames(10)
    q, ladj = coordinates(x)
    a, b, c = (x[:, atom] for atom in coordinates.zmatrix.frame)
    u, v = a - b, c - b
    sine = torch.linalg.cross(u, v).norm(dim=-1) / (u.norm(dim=-1) * v.norm(dim=-1))
    missing = u.norm(dim=-1) ** 2 * v.norm(dim=-1) * sine
    torch.testing.assert_close(coordinates.paper_ladj(q), -ladj - missing.log(), rtol=0, atol=1e-12)
    q, ladj = coordinates(torch.from_numpy(found.positions))
    difference = coordinates.paper_ladj(q) + ladj
    assert difference.item() == pytest.approx(5.73, abs=0.05)  # by how much the paper's NLL is too high


@pytest.mark.parametrize("name", ["ala2", "ala2-paper", "acetonitrile", "cyclohexane", "water"])
def test_derivatives(name: str) -> None:
    found, coordinates = instance(name)
    x = found.frames(2).requires_grad_()
    q = coordinates(x)[0].detach().requires_grad_()
    for f, at in ((coordinates.forward, x), (coordinates.inverse, q)):
        assert torch.autograd.gradcheck(f, at, fast_mode=True)
        assert torch.autograd.gradgradcheck(f, at, fast_mode=True)


def test_derivatives_one_by_one() -> None:
    found, coordinates = instance("acetonitrile")
    x = found.frames(1).requires_grad_()
    q = coordinates(x)[0].detach().requires_grad_()
    for f, at in ((coordinates.forward, x), (coordinates.inverse, q)):
        assert torch.autograd.gradcheck(f, at)
        assert torch.autograd.gradgradcheck(f, at)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_finite_in_single_precision(name: str) -> None:
    """Also exactly at flat and symmetric structures, the first frame."""
    found, coordinates = instance(name)
    x = torch.cat([torch.from_numpy(found.positions)[None].float(), found.frames(500, torch.float32)])
    q, _ = coordinates(x)
    for f, at in ((coordinates.forward, x), (coordinates.inverse, q)):
        gradient = torch.func.grad(lambda at, f=f: f(at)[0].square().sum() + f(at)[1].sum())(at)
        assert torch.isfinite(gradient).all()


def stretched(angle: float) -> tuple[InternalCoordinates, Tensor, Tensor]:
    """An atom whose own angle, in radians, is close to 0 or π, and the coordinates it was made of."""
    coordinates = InternalCoordinates(ZMatrix((0, 1, 2), ((3, 2, 1, 0),)))
    q = torch.tensor([0.15, 0.15, 0.15, 1.9, angle, 1.0], dtype=torch.float64)
    return coordinates, q, coordinates.inverse(q)[0].float()


@pytest.mark.parametrize("gap", [1e-2, 1e-3])
@pytest.mark.parametrize("end", [0.0, math.pi])
def test_angles_near_their_ends_keep_their_digits(end: float, gap: float) -> None:
    """An arc cosine would lose half of the digits: its error is 1e-7 / gap."""
    coordinates, q, x = stretched(abs(end - gap))
    assert abs(coordinates(x)[0][4].item() - q[4].item()) < 1e-6


def test_long_chains_keep_their_digits() -> None:
    """300 atoms stretched to 30 nm: directions must not come from differences of far positions."""
    n = 300
    zmatrix = ZMatrix(
        (149, 150, 151),
        (
            *((i, i - 1, i - 2, i - 3) for i in range(152, n)),
            *((i, i + 1, i + 2, i + 3) for i in range(148, -1, -1)),
        ),
    )
    coordinates = InternalCoordinates(zmatrix)
    generator = torch.manual_seed(0)
    q = torch.cat(
        [
            torch.full((n - 1,), 0.15),
            torch.full((n - 2,), 1.9),
            torch.full((n - 3,), math.pi),
        ]
    ) + torch.cat([torch.full((n - 1,), 0.003), torch.full((2 * n - 5,), 0.05)]) * torch.randn(
        20, 3 * n - 6, generator=generator
    )
    exact = coordinates.inverse(q.double())[0]
    assert (exact[:, 0] - exact[:, -1]).norm(dim=-1).min() > 20
    assert deviation(coordinates.inverse(q)[0], exact) < 5e-5
    x = exact.float()
    assert deviation(coordinates.inverse(coordinates(x)[0])[0], x) < 1e-4


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3), (2, 0, 3)])
def test_any_leading_shape(shape: tuple[int, ...]) -> None:
    found, coordinates = instance("ala2")
    x = found.frames(math.prod(shape)).reshape(*shape, 22, 3)
    q, ladj = coordinates(x)
    assert q.shape == (*shape, 60) and ladj.shape == shape
    y, back = coordinates.inverse(q)
    assert y.shape == (*shape, 22, 3) and back.shape == shape == coordinates.paper_ladj(q).shape
    if math.prod(shape):
        each = torch.stack([coordinates(frame)[0] for frame in x.reshape(-1, 22, 3)])
        torch.testing.assert_close(q.reshape(-1, 60), each, rtol=0, atol=1e-13)


def test_vmap() -> None:
    found, coordinates = instance("ala2")
    x = found.frames(4)
    q, ladj = coordinates(x)
    torch.testing.assert_close(torch.vmap(coordinates)(x), (q, ladj), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.vmap(coordinates.inverse)(q), coordinates.inverse(q), rtol=0, atol=1e-12)


def test_device_and_dtype_are_those_of_the_input() -> None:
    found, coordinates = instance("ala2")
    x = found.frames(3, torch.float32)
    moved = copy.deepcopy(coordinates).to(torch.float64)
    assert moved.inverse(moved(x)[0])[0].dtype == torch.float32
    assert torch.equal(moved.inverse(moved(x)[0])[0], coordinates.inverse(coordinates(x)[0])[0])
    elsewhere = moved.to("meta")
    y, ladj = elsewhere.inverse(elsewhere(x.to("meta"))[0])
    assert y.device.type == ladj.device.type == "meta" and y.shape == x.shape
    assert not coordinates.state_dict()


@pytest.mark.parametrize(
    ("method", "argument", "message"),
    [
        ("forward", torch.zeros(22, 3, dtype=torch.int64), "floating-point tensor, got torch.int64"),
        ("forward", torch.zeros(2, 21, 3), r"shape \(\.\.\., 22, 3\) for 22 atoms, got \(2, 21, 3\)"),
        ("forward", torch.zeros(66), r"got \(66,\)"),
        ("inverse", torch.zeros(2, 66), r"shape \(\.\.\., 60\) for 22 atoms, got \(2, 66\)"),
        ("inverse", torch.zeros(()), r"got \(\)"),
        ("paper_ladj", torch.zeros(60, dtype=torch.int32), "coordinates must be a floating-point"),
    ],
)
def test_mistakes_are_explained(method: str, argument: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(instance("ala2")[1], method)(argument)
