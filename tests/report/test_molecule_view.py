"""Structures in a page: superposed, exact to a pm, harmless as text."""

import base64
import json

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from knotflow.report.molecule_view import MoleculeView, view_of
from tests.molecules.molecules import molecule


def decoded(view: MoleculeView) -> np.ndarray:
    content = json.loads(view.json())
    whole = np.frombuffer(base64.b64decode(content["positions"]), "<i2")
    return whole.reshape(content["frames"], len(content["elements"]), 3) / 1000


def test_moved_and_turned_copies_lie_upon_the_structure() -> None:
    system = molecule("ala2")
    turns = Rotation.random(5, random_state=0).as_matrix()
    shifts = np.random.default_rng(0).normal(0, 3, (5, 1, 3))
    copies = system.positions @ turns.transpose(0, 2, 1) + shifts
    view = view_of(system.plain(), copies, [f"frame {k}" for k in range(5)])
    centred = system.positions - system.positions.mean(0)
    assert np.abs(decoded(view) - centred).max() <= 0.00051
    content = json.loads(view.json())
    assert content["elements"] == system.elements and content["labels"][3] == "frame 3"
    assert sorted(map(tuple, map(sorted, content["bonds"]))) == system.bonds
    assert "22 atoms" in view.description and "5 samples" in view.description


def test_atoms_far_away_do_not_wrap_around() -> None:
    view = MoleculeView("far", ["C"], [], np.array([[[100.0, -100.0, 0.001]]]), ["one"])
    assert np.allclose(decoded(view), [[[32.767, -32.767, 0.001]]])


def test_text_cannot_end_its_element() -> None:
    text = MoleculeView("x", ["C"], [], np.zeros((1, 1, 3)), ["</script><b>"]).json()
    assert "<" not in text and json.loads(text)["labels"] == ["</script><b>"]


@pytest.mark.parametrize(
    ("positions", "labels"),
    [(np.zeros((0, 1, 3)), []), (np.zeros((1, 2, 3)), ["a"]), (np.full((1, 1, 3), np.nan), ["a"])],
)
def test_what_cannot_be_shown_is_refused(positions: np.ndarray, labels: list[str]) -> None:
    with pytest.raises(ValueError, match=r"a view needs finite positions of shape \(frames, atoms, 3\)"):
        MoleculeView("x", ["C"], [], positions, labels)
