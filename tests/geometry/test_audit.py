"""What the audit finds, and what it does not complain about."""

import numpy as np
import pytest

from knotflow.geometry import ZMatrix, audit, paper_zmatrix
from tests.geometry.molecules import molecule, on_a_line


def test_good_zmatrix() -> None:
    found = molecule("ala2")
    report = audit(found.zmatrix(), found.frames(20), found.bonds)
    assert report.ok and report.along_bonds == 1 and report.n_atoms == 22
    assert report.proper_torsions == {
        bond: 1 for bond in ((0, 4), (4, 6), (6, 8), (8, 10), (8, 14), (14, 16), (16, 18))
    }
    assert report.sibling_torsions == 12
    assert "100% of rows along bonds" in str(report) and str(report).endswith("no problems")


def test_zmatrix_of_the_paper_leaves_the_bonds() -> None:
    found = molecule("ala2")
    report = audit(paper_zmatrix(), found.positions, found.bonds)
    assert not report.ok and report.along_bonds == 15 / 19
    text = str(report)
    assert "atom 1 takes its bond from atom 4, to which it is not bonded" in text
    assert "atom 0 takes its angle from atom 4, which is not bonded to atom 1" in text
    assert "2 proper torsions turn with the bond 14-16" in text


def test_worst_sines_are_those_of_the_worst_frame() -> None:
    """A slow loop over rows and frames, with arc cosines."""
    found = molecule("ala2")
    x = found.frames(10).numpy()
    report = audit(found.zmatrix(), x, found.bonds)

    def sine(frame: np.ndarray, i: int, j: int, k: int) -> float:
        u, v = frame[i] - frame[j], frame[k] - frame[j]
        return float(np.sin(np.arccos(u @ v / np.linalg.norm(u) / np.linalg.norm(v))))

    rows = found.zmatrix().rows
    assert report.reference_sine == pytest.approx(min(sine(f, *row[1:]) for f in x for row in rows))
    a, b, c = found.zmatrix().frame
    angles = [(a, b, c), *(row[:3] for row in rows)]
    assert report.angle_sine == pytest.approx(min(sine(f, *atoms) for f in x for atoms in angles))
    assert report.worst_reference is not None
    assert min(sine(f, *report.worst_reference[1:]) for f in x) == pytest.approx(report.reference_sine)
    assert min(sine(f, *report.worst_angle) for f in x) == pytest.approx(report.angle_sine)


def test_collinear_frames_are_found_among_good_ones() -> None:
    found = molecule("ala2")
    x = found.frames(10).numpy()
    x[7, 16] = 2 * x[7, 14] - x[7, 8]  # C-N in line with CA-C
    report = audit(found.zmatrix(), x, found.bonds)
    assert not report.ok and report.angle_sine < 1e-6 and report.worst_angle == (16, 14, 8)
    assert any(problem.startswith("the angle 16-14-8 comes close to a line") for problem in report.problems)
    assert any("refers to a line" in problem and "16-14-8" in problem for problem in report.problems)


def test_natural_rows_of_a_linear_group_are_refused() -> None:
    found = on_a_line("CCN", (0, 0.146, 0.262), 1)
    natural = ZMatrix((1, 0, 3), ((4, 0, 1, 3), (5, 0, 1, 3), (2, 1, 0, 3)))
    report = audit(natural, found.positions, found.bonds)
    assert report.problems == ("the angle 2-1-0 comes close to a line: sine 0.",)


def test_references_off_the_bonds() -> None:
    found = molecule("ala2")
    rows = {row[0]: row for row in found.zmatrix().rows} | {19: (19, 18, 16, 6)}
    report = audit(ZMatrix((6, 8, 14), tuple(rows.values())), found.positions, found.bonds)
    assert report.problems == (
        "atom 19 takes its torsion from atom 6, which is bonded to neither 18 nor 16.",
    )
    rows = {atom: row for atom, row in rows.items() if atom != 10} | {
        14: (14, 8, 6, 10),
        19: (19, 18, 16, 14),
    }
    report = audit(ZMatrix((6, 8, 10), tuple(rows.values())), found.positions, found.bonds)
    assert report.ok
    report = audit(ZMatrix((8, 6, 10), tuple(rows.values())), found.positions, found.bonds)
    assert report.problems == ("the frame 8, 6, 10 is not a chain of bonds.",)


def test_mistakes_are_explained() -> None:
    found = molecule("ala2")
    with pytest.raises(ValueError, match=r"shape \(22, 3\) or \(frames, 22, 3\), got \(21, 3\)"):
        audit(found.zmatrix(), found.positions[:-1], found.bonds)
    with pytest.raises(ValueError, match=r"got 0-22"):
        audit(found.zmatrix(), found.positions, [*found.bonds, (0, 22)])
    with pytest.raises(ValueError, match="finite"):
        audit(found.zmatrix(), np.full((5, 22, 3), np.inf), found.bonds)
