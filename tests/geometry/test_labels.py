"""Labels of equivalent hydrogens: groups, orientations, and the way back to the order of a structure."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from knotflow.geometry import HydrogenLabels
from knotflow.geometry.graph import neighbours
from tests.geometry.molecules import BUILDERS, molecule

GROUPS = {
    "ala2": 3, "cyclohexane": 6, "benzene": 0, "acetonitrile": 1, "propyne": 1, "butyne": 2, "water": 0,
    # GYDPETGTWG: caps, threonines, glycines, tyrosine, aspartate, proline, glutamate, tryptophan.
    "chignolin": 2 + 2 + 3 + 1 + 1 + 3 + 2 + 1,
}  # fmt: skip


def labels(name: str) -> HydrogenLabels:
    found = molecule(name)
    return HydrogenLabels(found.bonds, found.elements, found.positions)


def orientation(name: str, frame: np.ndarray, hydrogens: tuple[int, ...]) -> float:
    """The slow way: the determinant of the neighbours' directions, seen from the atom between them."""
    found = molecule(name)
    near = neighbours(found.n_atoms, found.bonds)
    (centre,) = near[hydrogens[0]]
    directions = [frame[i] - frame[centre] for i in near[centre]]
    a, b, c, d = (v / np.linalg.norm(v) for v in directions)
    return float(np.sign(np.linalg.det([a - d, b - d, c - d])))


def applied(order: Tensor, x: Tensor) -> Tensor:
    return x.gather(-2, order[..., None].expand_as(x))


@pytest.mark.parametrize("name", BUILDERS)
def test_groups_are_hydrogens_of_one_atom_with_four_neighbours(name: str) -> None:
    found, near = molecule(name), neighbours(molecule(name).n_atoms, molecule(name).bonds)
    groups = labels(name).groups
    assert len(groups) == GROUPS[name]
    for group in groups:
        assert len(group) in (2, 3) and all(found.elements[i] == "H" for i in group)
        assert len({near[i][0] for i in group}) == 1 and len(near[near[group[0]][0]]) == 4
    assert len({i for group in groups for i in group}) == sum(map(len, groups))


@pytest.mark.parametrize("name", [name for name in BUILDERS if GROUPS[name]])
def test_any_exchange_of_labels_is_undone(name: str) -> None:
    """Random exchanges, also of other pairs than the last: orientations return, and so do all other atoms."""
    found, known = molecule(name), labels(name)
    random = np.random.default_rng(0)
    x = found.frames(20).numpy().copy()
    original = x.copy()
    moved = random.random((20, len(known.groups))) < 0.5
    for frame, group in zip(*np.nonzero(moved), strict=True):
        a, b = random.choice(known.groups[group], 2, replace=False)
        x[frame, [a, b]] = x[frame, [b, a]]
    tensor = torch.from_numpy(x)
    assert np.array_equal(known.differs(tensor).numpy(), moved)
    back = applied(known.order(known.differs(tensor)), tensor)
    for frame, group in itertools.product(range(20), known.groups):
        expected = orientation(name, original[frame], group)
        assert orientation(name, back[frame].numpy(), group) == expected
    assert not known.differs(back).any(), "done once, it is done"
    # Only hydrogens of these groups move, and only within their group.
    free = [i for i in range(found.n_atoms) if i not in {j for group in known.groups for j in group}]
    assert np.array_equal(back[:, free].numpy(), original[:, free])
    for group in map(list, known.groups):
        atoms = [sorted(map(tuple, frames[0, group].tolist())) for frames in (back.numpy(), original)]
        assert atoms[0] == atoms[1]


def test_last_two_labels_come_back_exactly() -> None:
    known, x = labels("ala2"), molecule("ala2").frames(4)
    assert known.pairs == ((2, 3), (12, 13), (20, 21))
    swapped = x.clone()
    swapped[1:, [2, 3]] = x[1:, [3, 2]]
    differs = known.differs(swapped)
    assert differs.tolist() == [[False, False, False]] + [[True, False, False]] * 3
    assert torch.equal(applied(known.order(differs), swapped), x)


def test_turning_a_methyl_group_is_left_to_dynamics() -> None:
    known, x = labels("ala2"), molecule("ala2").frames(3)
    for group in map(list, known.groups):
        x[:, group] = x[:, group[1:] + group[:1]]
    assert not known.differs(x).any()
    assert torch.equal(known.order(known.differs(x)), torch.arange(22).repeat(3, 1))


@pytest.mark.parametrize("name", ["ala2", "cyclohexane", "propyne", "chignolin"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_mirror_reverses_all_and_rigid_motion_none(name: str, dtype: torch.dtype) -> None:
    known, x = labels(name), molecule(name).frames(6, dtype).reshape(2, 3, -1, 3)
    assert known.differs(x).shape == (2, 3, GROUPS[name]) and not known.differs(x).any()
    mirror = torch.tensor([1, 1, -1], dtype=dtype)
    assert known.differs(x * mirror).all()
    assert known.order(known.differs(x)).shape == (2, 3, molecule(name).n_atoms)


def test_methane_and_ammonium_have_an_order_but_amines_have_none() -> None:
    corners = np.array([[0, 0, 0], [1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) * 0.06
    star = [(0, i) for i in range(1, 5)]
    for centre in "CN":
        known = HydrogenLabels(star, [centre, *"HHHH"], corners)
        assert known.groups == ((1, 2, 3, 4),)
        for order in itertools.permutations(range(1, 5)):
            odd = np.linalg.det(np.eye(5)[[0, *order]]) < 0
            assert known.differs(torch.from_numpy(corners[[0, *order]])).item() == odd
    # NH2 turns inside out, hydrogens between two atoms belong to none, a flat group has no orientation.
    assert HydrogenLabels(star[:3], [*"NCHH"], corners[:4]).groups == ()
    assert (
        HydrogenLabels([*star, (3, 5), (4, 5)], [*"CFHHHC"], np.vstack([corners, [[0, 0, 1]]])).groups == ()
    )
    assert HydrogenLabels(star, [*"CHHHH"], corners * [1, 1, 0]).groups == ()


def test_the_order_may_be_that_of_frames() -> None:
    """Samples of a model show its order; frames of both kinds show none."""
    known, x = labels("ala2"), molecule("ala2").frames(10)
    swapped = x.clone()
    swapped[:, [20, 21]] = x[:, [21, 20]]
    swapped[:5, [2, 3]] = x[:5, [3, 2]]
    like = known.as_in(swapped)
    assert like.differs(x).tolist() == [[False, False, True]] * 10
    assert not known.differs(x).any(), "the original is unchanged"
    assert not like.as_in(x).differs(x).any()


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 22, 3\), got \(5, 3\)"):
        labels("ala2").differs(torch.zeros(5, 3))
    found = molecule("ala2")
    with pytest.raises(ValueError, match=r"shape \(22, 3\)"):
        HydrogenLabels(found.bonds, found.elements, found.positions[:5])
