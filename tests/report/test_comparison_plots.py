"""The picture of two sets of samples."""

import math

import numpy as np
import pytest

from knotflow.report.comparison_plots import SampleSet, draw_comparison
from knotflow.report.figures import save


def samples(name: str, seed: int) -> SampleSet:
    random = np.random.default_rng(seed)
    return SampleSet(name, random.normal(size=500), random.vonmises(-1, 2, (500, 2)))


def test_all_four_panels(tmp_path) -> None:
    deviations = np.full((6, 6), math.nan)
    deviations[2, 3], deviations[0, 5] = 1.5, -3.2
    figure = draw_comparison(samples("md", 0), samples("chains", 1), deviations)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[:4] == [
        "md: free energy",
        "chains: free energy",
        "chains - md, in error bars",
        "energies",
    ]
    written = {text.get_text(): text.get_position() for text in figure.axes[2].texts}
    assert written.keys() == {"1.5", "-3.2"}
    assert written["1.5"] == (-30.0, 30.0) and written["-3.2"] == (-150.0, 150.0)  # phi across, psi up
    np.testing.assert_array_equal(figure.axes[2].images[0].get_array()[3, 2], 1.5)
    labels = [text.get_text() for text in figure.axes[3].get_legend().get_texts()]
    assert labels == ["md", "chains"]
    save(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_without_torsions_there_are_energies(tmp_path) -> None:
    a, b = (SampleSet(name, samples(name, 0).energy) for name in "ab")
    figure = draw_comparison(a, b)
    assert [axis.get_title() for axis in figure.axes] == ["energies"]
    with pytest.raises(ValueError, match="both sets"):
        draw_comparison(a, samples("b", 1))
