"""Stereocentres and mirror images."""

import numpy as np
import pytest
import torch

from knotflow.geometry import Chirality, chiral_centres
from knotflow.geometry.graph import neighbours
from tests.geometry.molecules import BUILDERS, molecule


def centres(name: str) -> tuple[int, ...]:
    found = molecule(name)
    return chiral_centres(found.n_atoms, found.bonds, found.elements)


def test_alanine_dipeptide_has_one_centre() -> None:
    assert centres("ala2") == (8,)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name not in ("ala2", "chignolin")])
def test_symmetric_molecules_have_none(name: str) -> None:
    assert centres(name) == ()
    found = molecule(name)
    chirality = Chirality(found.bonds, found.elements, found.positions)
    assert chirality.signs(found.frames(3)).shape == (3, 0)
    assert chirality.matches(-found.frames(3)).all()


def test_peptide_has_one_per_residue_but_glycine_and_two_in_threonine() -> None:
    found = molecule("chignolin")  # GYDPETGTWG
    assert len(centres("chignolin")) == 7 + 2
    # All residues are L amino acids, in both sources of structures: N, C, CB turn the same way around CA.
    ca = [
        i
        for i in centres("chignolin")
        if any(found.elements[j] == "N" for j in neighbours(found.n_atoms, found.bonds)[i])
    ]
    assert len(ca) == 7
    assert {handedness("chignolin", i) for i in ca} == {handedness("ala2", 8)}


def handedness(name: str, ca: int) -> float:
    found = molecule(name)
    near = neighbours(found.n_atoms, found.bonds)
    kind = {}
    for i in near[ca]:
        carbonyl = any(found.elements[j] == "O" and len(near[j]) == 1 for j in near[i]) and len(near[i]) == 3
        kind["C" if carbonyl else {"N": "N", "H": "HA", "C": "CB"}[found.elements[i]]] = found.positions[i]
    n, c, cb = (kind[k] - found.positions[ca] for k in ("N", "C", "CB"))
    return float(np.sign(np.dot(np.cross(n, c), cb)))


@pytest.mark.parametrize("name", ["ala2", "chignolin"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mirror_images_do_not_match(name: str, dtype: torch.dtype) -> None:
    found = molecule(name)
    chirality = Chirality(found.bonds, found.elements, found.positions)
    x = found.frames(6, dtype).reshape(2, 3, -1, 3)
    mirrored = x * torch.tensor([1, 1, -1], dtype=dtype)
    assert chirality.signs(x).shape == (2, 3, len(chirality.centres)) and chirality.signs(x).dtype == dtype
    assert torch.equal(chirality.signs(mirrored), -chirality.signs(x))
    assert chirality.matches(x).shape == (2, 3) and chirality.matches(x).all()
    assert not chirality.matches(mirrored).any()


def test_one_wrong_centre_is_enough() -> None:
    found = molecule("chignolin")
    chirality = Chirality(found.bonds, found.elements, found.positions)
    x = torch.from_numpy(found.positions).clone()
    near = neighbours(found.n_atoms, found.bonds)
    centre = chirality.centres[3]
    i, j = near[centre][:2]
    x[[i, j]] = x[[j, i]]
    expected = torch.ones(len(chirality.centres))
    expected[3] = -1
    assert torch.equal(chirality.signs(x) * chirality.signs(torch.from_numpy(found.positions)), expected)
    assert not chirality.matches(x)


def test_far_differences_count_and_symmetric_rings_do_not() -> None:
    """Two chains that differ at their last atom; a ring whose two ways around are the same."""
    chains = [(0, 1), (0, 2), (0, 3), (3, 4), (4, 5), (0, 6), (6, 7), (7, 8)]
    assert chiral_centres(9, chains, [*"CHFCCCCCN"]) == (0,)
    assert chiral_centres(9, chains, [*"CHFCCCCCC"]) == ()
    ring = [(0, 1), (0, 2), (0, 3), (3, 4), (4, 5), (5, 0)]
    assert chiral_centres(6, ring, [*"CHFCCC"]) == ()
    assert chiral_centres(6, ring, [*"CHFOCC"]) == (0,)


def test_mistakes_are_explained() -> None:
    found = molecule("ala2")
    with pytest.raises(ValueError, match="each of the 22 atoms, got 3"):
        chiral_centres(22, found.bonds, "CHH")
    with pytest.raises(ValueError, match="one reference structure, got 2"):
        Chirality(found.bonds, found.elements, found.frames(2))
    with pytest.raises(ValueError, match=r"shape \(22, 3\)"):
        Chirality(found.bonds, found.elements, found.positions[:5])
    with pytest.raises(ValueError, match="flat"):
        Chirality(found.bonds, found.elements, found.positions * [1, 1, 0])
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 22, 3\), got \(5, 3\)"):
        Chirality(found.bonds, found.elements, found.positions).matches(torch.zeros(5, 3))
