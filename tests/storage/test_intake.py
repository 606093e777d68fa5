"""Frames on their way in: labels exchanged with their forces, mirror images set aside, all of it said."""

import logging
from dataclasses import replace

import numpy as np
import openmm
import pytest
import torch

from knotflow.molecules import MolecularSystem
from knotflow.storage.intake import Intake
from knotflow.storage.other_programs import RawFrames
from knotflow.storage.trajectory import Frames
from tests.molecules.molecules import frames as shaken
from tests.molecules.molecules import molecule


def some(system: MolecularSystem, n: int = 10) -> Frames:
    """Frames whose forces are known by their atom."""
    x = shaken(system, n, noise=0.003).numpy()
    forces = x + 100 * np.arange(system.n_atoms)[:, None]
    return Frames(x, forces, np.arange(n) * 1.5, np.arange(n) // 3, np.arange(n), np.arange(n) * 2.0)


def exchanged(frames: Frames, rows: slice, *pairs: tuple[int, int]) -> Frames:
    x, forces = frames.positions.copy(), frames.forces.copy()
    for a, b in pairs:
        x[rows, a], x[rows, b] = frames.positions[rows, b], frames.positions[rows, a]
        forces[rows, a], forces[rows, b] = frames.forces[rows, b], frames.forces[rows, a]
    return replace(frames, positions=x, forces=forces)


def mirrored(frames: Frames, rows: slice) -> Frames:
    x = frames.positions.copy()
    x[rows, :, 0] *= -1
    return replace(frames, positions=x)


def assert_same(a: Frames, b: Frames) -> None:
    for name in ("positions", "forces", "energies", "replica", "frame", "time"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def said(intake: Intake, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        intake.conclude()
    return caplog.messages


def test_frames_in_order_pass_unchanged_without_a_word(caplog) -> None:
    system = molecule("ala2")
    intake, frames = Intake(system, ["a.dcd"]), some(system)
    kept, usable = intake(frames)
    assert_same(kept, frames)
    assert usable.all() and (intake.seen, intake.used, intake.exchanged) == (10, 10, 0)
    assert said(intake, caplog) == []


@pytest.mark.parametrize(
    ("name", "atoms", "names"),
    [
        ("ala2", ["ACE1-H2 ACE1-H3"], "H2/H3 of ACE1"),
        ("ala2", ["ALA2-HB2 ALA2-HB3", "NME3-H2 NME3-H3"], "HB2/HB3 of ALA2, H2/H3 of NME3"),
        ("SK", ["SER2-HB2 SER2-HB3"], "HB2/HB3 of SER2"),
        ("SK", ["LYS3-HZ2 LYS3-HZ3"], "HZ2/HZ3 of LYS3"),
    ],
)
def test_labels_and_forces_are_exchanged_and_counted(name, atoms, names, caplog) -> None:
    system = molecule(name)
    number = {str(atom): atom.index for atom in system.topology.atoms}
    pairs = [(number[a], number[b]) for a, b in map(str.split, atoms)]
    intake, frames = Intake(system, ["a.dcd"], reference="the model"), some(system)
    other = exchanged(frames, slice(2, 9), *pairs)
    kept, usable = intake(other[:5])
    more, _ = intake(other[5:])
    assert usable.all() and intake.exchanged == 7
    assert_same(kept, frames[:5])
    assert_same(more, frames[5:])
    assert_same(intake(kept)[0], kept)
    assert said(intake, caplog) == [
        f"In 7 of 15 frames the labels of equivalent hydrogens ({names}) were exchanged to match the model."
    ]


def test_frames_of_other_programs_need_no_forces() -> None:
    system = molecule("ala2")
    frames = some(system)
    other = exchanged(frames, slice(None), (2, 3)).positions
    other.setflags(write=False)
    kept, _ = Intake(system, ["a"])(RawFrames(np.arange(10), np.zeros(10, int), other))
    np.testing.assert_array_equal(kept.positions, frames.positions)
    assert kept.forces is None and kept.energies is None


def test_mirror_images_are_set_aside_and_counted(caplog) -> None:
    system = molecule("ala2")
    intake, frames = Intake(system, ["a.dcd"]), some(system)
    kept, usable = intake(mirrored(frames, slice(3, 5)))
    assert usable.tolist() == [True] * 3 + [False] * 2 + [True] * 5
    assert_same(kept, frames[usable])
    assert (intake.mirrored, intake.used, intake.exchanged) == (2, 8, 0), "nothing is exchanged in them"
    assert said(intake, caplog) == [
        "2 of 10 frames are of the other hand than the structure at ALA2-CA, and were set aside."
    ]


NONSENSE = [np.nan, np.inf, -1e30]


@pytest.mark.parametrize("column", ["positions", "forces", "energies"])
def test_nonsense_is_set_aside_and_numbered(column: str, caplog) -> None:
    system = molecule("ala2")
    intake, frames = Intake(system, ["a.dcd"]), some(system)
    values = getattr(frames, column).copy()
    values.reshape(10, -1)[[2, 5, 7], -1] = NONSENSE
    kept, usable = intake(replace(frames, **{column: values}))
    assert np.flatnonzero(~usable).tolist() == [2, 5, 7]
    assert_same(kept, frames[usable])
    assert (intake.used, intake.mirrored) == (7, 0)
    assert said(intake, caplog) == [
        "3 of 10 frames in a.dcd have positions, energies or forces that are not finite or absurdly large "
        "(frame 2 of replica 0, frame 5 of replica 1, frame 7 of replica 2), and were set aside."
    ]
    intake(replace(frames, energies=np.full(10, np.nan)))
    with pytest.raises(ValueError, match=r"13 of 20 frames in a\.dcd have .*; make the file again, or leave"):
        intake.conclude()


@pytest.mark.parametrize("wrong", [6, 10])
def test_mostly_mirror_images_are_refused(wrong: int) -> None:
    system = molecule("ala2")
    intake = Intake(system, ["a.dcd"])
    intake(mirrored(some(system), slice(wrong)))
    with pytest.raises(
        ValueError,
        match=rf"{wrong} of 10 frames in a\.dcd are of the other hand than the structure at ALA2-CA, as in a "
        r"mirror; import the trajectory with the structure it was made with\.",
    ):
        intake.conclude()


def test_half_of_them_are_not_refused(caplog) -> None:
    intake = Intake(molecule("ala2"), ["a.dcd"])
    intake(mirrored(some(molecule("ala2")), slice(5)))
    assert len(said(intake, caplog)) == 1


def test_one_centre_of_several_is_named(caplog) -> None:
    """The alpha carbon of lysine turned inside out: its hydrogen and nitrogen exchanged."""
    system = molecule("SK")
    names = {str(atom): atom.index for atom in system.topology.atoms}
    intake = Intake(system, ["a.dcd"])
    intake(exchanged(some(system), slice(1), (names["LYS3-HA"], names["LYS3-N"])))
    assert said(intake, caplog)[0].startswith(
        "1 of 10 frames are of the other hand than the structure at LYS"
    )


def test_without_stereocentres_a_mirror_image_is_a_frame_like_others(caplog) -> None:
    """Glycine: its reflection, with hydrogens exchanged, is a possible structure."""
    system = molecule("G")
    intake, frames = Intake(system, ["a.dcd"]), some(system)
    kept, usable = intake(mirrored(frames, slice(4)))
    assert usable.all() and intake.exchanged == 4
    assert not intake.labels.differs(torch.from_numpy(kept.positions)).any()
    assert "HA2/HA3 of GLY2" in said(intake, caplog)[0]


def test_hydrogens_that_the_force_field_tells_apart_stay(caplog) -> None:
    system = molecule("ala2")
    changed = system.openmm_system()
    extra = openmm.HarmonicBondForce()
    extra.addBond(2, 4, 0.2, 100.0)
    changed.addForce(extra)
    other = replace(system, xml=openmm.XmlSerializer.serialize(changed))
    intake, frames = Intake(other, ["a.dcd"]), some(other)
    kept, _ = intake(exchanged(frames, slice(4), (2, 3), (12, 13)))
    assert_same(kept, exchanged(frames, slice(4), (2, 3)))
    first, second = said(intake, caplog)
    assert first.startswith("In 4 of 10 frames the labels of equivalent hydrogens (HB2/HB3 of ALA2) were")
    assert second == (
        "Some hydrogens (H2/H3 of ACE1) are labelled in another order than in the structure; the force field "
        "tells them apart, so they were left as they are."
    )


def test_many_groups_are_not_all_named(caplog) -> None:
    system = molecule("SK")
    intake = Intake(system, ["a.dcd"])
    intake(exchanged(some(system), slice(1), *intake.labels.pairs))
    assert " and 4 more) were exchanged" in said(intake, caplog)[0]


def test_no_frames() -> None:
    intake = Intake(molecule("ala2"), ["a.dcd"])
    kept, usable = intake(some(molecule("ala2"))[:0])
    assert len(kept) == len(usable) == intake.seen == 0
    intake.conclude()
