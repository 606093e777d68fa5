"""Measures of made-up samples and data, whose distributions are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from knotflow.analysis import measures
from knotflow.analysis.frame_table import FrameTable
from knotflow.analysis.measures import Measure
from knotflow.statistics.estimates import blocks

SCALE = 0.8
CENTRES = np.array([[-1.2, 2.4], [1.0, 0.8]])
"""Of two basins in (phi, psi), at phi < 0 and at phi > 0."""
SHARE, DRAWN_SHARE = 0.1, 0.4
"""Of the second basin, in the target and in the samples."""


def observed(x: np.ndarray, basin: np.ndarray, seed: int, replica: np.ndarray | None = None) -> FrameTable:
    """A flow N(0, 1) × basins for the target N(0, SCALE²) × basins at x > 0; torsions go with basins."""
    n, random = len(x), np.random.default_rng(seed)
    log_prob = stats.norm.logpdf(x) + np.log(np.where(basin, DRAWN_SHARE, 1 - DRAWN_SHARE))
    energy = x**2 / (2 * SCALE**2) - np.log(np.where(basin, SHARE, 1 - SHARE))
    return FrameTable(
        log_prob=log_prob,
        paper_log_prob=log_prob + 5.0,
        energy=energy,
        handed=x > 0,
        force_error=random.exponential(3.0, n),
        round_trip=np.zeros(n),
        replica=np.zeros(n, dtype=np.int32) if replica is None else replica,
        torsions={"ALA2": CENTRES[basin.astype(int)] + 0.1 * random.normal(size=(n, 2))},
    )


def samples(n: int = 6000, seed: int = 0) -> FrameTable:
    random = np.random.default_rng(seed)
    return observed(random.normal(size=n), random.random(n) < DRAWN_SHARE, seed + 1)


def data(n: int = 6000, seed: int = 10, stuck: int = 1) -> FrameTable:
    """Frames in 30 replicas; each basin and each x is kept for this many frames."""
    random = np.random.default_rng(seed)
    x = np.repeat(np.abs(SCALE * random.normal(size=n // stuck)), stuck)
    basin = np.repeat(random.random(n // stuck) < SHARE, stuck)
    return observed(x, basin, seed + 1, (np.arange(n) * 30 // n).astype(np.int32))


def within(measure: Measure, truth: float, largest: float) -> None:
    assert abs(measure.value - truth) < 4 * measure.error < 4 * largest


def test_known_answers_of_a_target_of_one_handedness() -> None:
    frames, drawn = data(), samples()
    found = measures.overall(frames, drawn, blocks(frames.replica), seed=0)
    log_z = math.log(SCALE * math.sqrt(2 * math.pi) / 2)
    gap = SHARE * math.log(SHARE / DRAWN_SHARE) + (1 - SHARE) * math.log((1 - SHARE) / (1 - DRAWN_SHARE))
    within(found["log_z"], log_z, 0.05)
    within(found["log_z_bar"], log_z, 0.03)
    within(found["forward_kl"], math.log(2) - math.log(SCALE) + (SCALE**2 - 1) / 2 + gap, 0.03)
    back = DRAWN_SHARE * math.log(DRAWN_SHARE / SHARE)
    back += (1 - DRAWN_SHARE) * math.log((1 - DRAWN_SHARE) / (1 - SHARE))
    within(found["reverse_kl"], math.log(SCALE) + 1 / (2 * SCALE**2) - 0.5 + back, 0.05)
    assert found["reverse_kl_cut"].value == found["reverse_kl"].value
    square = SHARE**2 / DRAWN_SHARE + (1 - SHARE) ** 2 / (1 - DRAWN_SHARE)
    within(found["ess"], SCALE * math.sqrt(2 - SCALE**2) / square / 2, 0.02)
    within(found["force_error"], 3.0, 0.1)
    within(found["force_error_samples"], 3.0, 0.1)
    within(found["force_error_samples_median"], 3.0 * math.log(2), 0.1)
    assert found["force_error_1e4"].value == pytest.approx(found["force_error"].value * 1e-4)
    assert found["nll_paper"].value == pytest.approx(found["nll"].value - 5)
    assert found["log_z_paper"].value == pytest.approx(found["log_z"].value - 5)
    assert found["wrong_handed"].value == (~drawn.handed).sum() > 2000
    assert not any(measure.note for measure in found.values())


def test_weights_bring_torsions_back_to_those_of_the_data() -> None:
    frames, drawn = data(12_000), samples(12_000)
    found = measures.of_torsions("ALA2", frames, drawn, blocks(frames.replica), seed=0)
    truth, raw = math.log((1 - SHARE) / SHARE), math.log((1 - DRAWN_SHARE) / DRAWN_SHARE)
    within(found["side_difference_data"], truth, 0.1)
    within(found["side_difference"], raw, 0.1)
    within(found["side_difference_reweighted"], truth, 0.15)
    for side in ("ess_left", "ess_right"):  # the shares of the sides do not matter inside of one
        within(found[side], SCALE * math.sqrt(2 - SCALE**2) / 2, 0.05)
    # Basins are far apart: the variation is that of their shares, and some of the share moves all the way.
    assert found["histogram_tv"].value == pytest.approx(DRAWN_SHARE - SHARE, abs=0.05)
    gap = SHARE * math.log(SHARE / DRAWN_SHARE) + (1 - SHARE) * math.log((1 - SHARE) / (1 - DRAWN_SHARE))
    assert found["histogram_kl"].value == pytest.approx(gap, abs=0.06)
    moved = math.sqrt((DRAWN_SHARE - SHARE) * ((CENTRES[0] - CENTRES[1]) ** 2).sum())
    assert found["torus_w2"].value == pytest.approx(moved, rel=0.15)
    for key in ("histogram_tv", "histogram_kl", "torus_w2"):
        assert found[f"{key}_reweighted"].value < found[key].value / 2
        assert found[f"{key}_data"].value < found[key].value / 2


def test_error_bars_know_that_frames_are_correlated(monkeypatch) -> None:
    """Basins kept for 50 frames: the error of their free energy is that of 50 times fewer frames."""
    monkeypatch.setattr(measures, "DISTANCES", 2)
    monkeypatch.setattr(measures, "POINTS", 100)
    frames, drawn = data(stuck=50), samples()
    block = blocks(frames.replica)
    errors = {
        name: (
            measures.of_torsions("ALA2", frames, drawn, labels, seed=0)["side_difference_data"].error,
            measures.energies(frames, drawn, labels, seed=0)["energy_w2"].error,
        )
        for name, labels in (("blocks", block), ("frames", np.arange(len(frames))))
    }
    expected = math.sqrt(50 / (6000 * SHARE * (1 - SHARE)))
    assert errors["blocks"][0] == pytest.approx(expected, rel=0.5)
    assert errors["blocks"][0] > 4 * errors["frames"][0]
    assert errors["blocks"][1] > 1.2 * errors["frames"][1]


def test_one_clash_spoils_only_what_it_must() -> None:
    frames, drawn = data(), samples()
    before = measures.likelihood(frames, drawn, blocks(frames.replica))
    drawn.energy[np.flatnonzero(drawn.handed)[0]] = 1e12
    after = measures.likelihood(frames, drawn, blocks(frames.replica))
    assert after["reverse_kl"].value > 1e8 and after["reverse_kl"].error > 1e8
    assert after["reverse_kl_cut"].value == pytest.approx(before["reverse_kl"].value, abs=0.5)
    for key in ("nll_limit", "forward_kl", "log_z", "log_z_bar"):
        assert after[key].value == pytest.approx(before[key].value, abs=1e-3)


def test_two_estimates_of_log_z_that_disagree_are_explained() -> None:
    def note(frames: FrameTable, drawn: FrameTable) -> str:
        return measures.likelihood(frames, drawn, blocks(frames.replica))["log_z"].note

    frames = data()
    assert note(frames, samples()) == ""
    frames.log_prob[:] += 1.0  # as if the flow knew these very frames
    assert "standard errors from Bennett's" in note(frames, samples())

    frames, drawn = data(), samples()  # a flow that hardly ever is in the second basin
    for observed in (frames, drawn):
        second = observed.torsions["ALA2"][:, 0] > 0
        observed.log_prob[:] += np.where(second, -20 - math.log(DRAWN_SHARE), -math.log(1 - DRAWN_SHARE))
    first = drawn.torsions["ALA2"][:, 0] < 0
    narrow = replace(
        drawn,
        **{name: getattr(drawn, name)[first] for name in ("log_prob", "energy", "handed", "force_error")},
    )
    found = measures.likelihood(frames, narrow, blocks(frames.replica))
    assert "the flow leaves some out" in found["log_z"].note
    assert found["log_z_bar"].value - found["log_z"].value == pytest.approx(-math.log(1 - SHARE), abs=0.04)


def test_rare_visits_have_no_error_bar() -> None:
    """Only one of 30 replicas was ever at phi > 0."""
    frames, drawn = data(), samples(200)
    phi = frames.torsions["ALA2"]
    phi[:, 0] = np.where(frames.replica == 3, 1.0, -1.0)
    found = measures.of_torsions("ALA2", frames, drawn, blocks(frames.replica), seed=0)[
        "side_difference_data"
    ]
    assert found.value == pytest.approx(math.log(29)) and math.isnan(found.error)
    assert "visited too rarely" in found.note


def test_plain_measures() -> None:
    assert Measure(1.0, 0.5, "a", "kT").plain() == {"text": "a", "value": 1.0, "error": 0.5, "unit": "kT"}
    assert Measure.of("a", math.inf, note="why").plain() == {
        "text": "a", "value": None, "error": None, "note": "why",
    }  # fmt: skip
