"""Verdicts: every limit from both sides, and nothing said of what is not known."""

import math
from typing import Any

import pytest

from knotflow.report.verdicts import WEIGHTS, Level, Verdict, judge
from knotflow.statistics.estimates import Estimate

GOOD, FAIR, POOR, UNKNOWN = Level.GOOD, Level.FAIR, Level.POOR, Level.UNKNOWN


def one(subject: str, metrics: dict[str, Any], **more: Any) -> Verdict:
    (found,) = [verdict for verdict in judge(metrics, **more) if verdict.subject == subject]
    return found


TINY = 1e-9
ABOUT = {"samples": 1000, "data": {"frames_in_file": 600}}


def measured(**values: Any) -> dict[str, Any]:
    """Metrics of 1,000 samples and 600 frames: value and error, or a value that is known exactly."""
    pairs = {
        key: value if isinstance(value, tuple) else (value, None if value is None else TINY)
        for key, value in values.items()
    }
    return {
        "about": ABOUT,
        "measures": {key: {"text": key, "value": v, "error": e} for key, (v, e) in pairs.items()},
    }


def residue(**values: Any) -> dict[str, Any]:
    return {"about": ABOUT, "measures": {}, "residues": {"ALA2": measured(**values)["measures"]}}


@pytest.mark.parametrize(
    ("k", "level"),
    [(-0.1, GOOD), (0.4, GOOD), (0.499, GOOD), (0.501, FAIR), (0.69, FAIR), (0.71, POOR), (3, POOR),
     (None, UNKNOWN), ((0.4, 0.049), GOOD), ((0.4, 0.051), UNKNOWN), ((0.6, 0.049), FAIR),
     ((0.6, 0.051), UNKNOWN), ((0.8, 0.049), POOR), ((0.8, 0.051), UNKNOWN), ((0.4, None), UNKNOWN)],
)  # fmt: skip
def test_weights(k: Any, level: Level) -> None:
    assert one("Weights", measured(pareto_k=k)).level is level


def test_the_sentence_says_what_it_means() -> None:
    verdict = one("Weights", measured(pareto_k=(0.4, 0.02)))
    assert str(verdict) == "good: weights are reliable: Pareto k 0.4 ± 0.02"
    assert "below 0.5" in verdict.rule and "below 0.7" in verdict.rule


def test_an_uncertain_verdict_says_what_it_would_take() -> None:
    verdict = one("Weights", measured(pareto_k=(0.48, 0.1)))
    assert str(verdict) == (
        "not known: Pareto k 0.48 ± 0.1; error bars leave open whether that is good or fair. "
        "About 4 times more samples would tell (--samples 4000)"
    )
    close = one("Weights", measured(pareto_k=(0.498, 0.01)))
    assert close.level is UNKNOWN and close.sentence.endswith("is good or fair: it is close to a limit")
    wide = one("Density", measured(forward_kl=(2.0, 5.0)))
    assert "is good, fair or poor. About 100 times more frames would tell (60,000): sim" in wide.sentence


def test_advice_is_enough() -> None:
    """With as many times more rows as advised, the middle of every level can be judged."""
    for value, level in ((0.25, GOOD), (0.6, FAIR), (0.85, POOR)):
        times = WEIGHTS.times_more(0.3)
        assert one("Weights", measured(pareto_k=(value, 0.3))).level is UNKNOWN
        assert one("Weights", measured(pareto_k=(value, 0.3 / math.sqrt(times) - TINY))).level is level


def test_an_infinite_k_is_null_with_a_note() -> None:
    metrics = measured(pareto_k=None)
    metrics["measures"]["pareto_k"]["note"] = "not to be trusted."
    assert one("Weights", metrics).level is POOR


@pytest.mark.parametrize(
    ("share", "level"),
    [
        (0.9, GOOD),
        (0.21, GOOD),
        (0.19, FAIR),
        (0.021, FAIR),
        (0.019, POOR),
        (None, UNKNOWN),
        ((0.3, 0.04), GOOD),
        ((0.3, 0.06), UNKNOWN),
        ((0.01, 0.004), POOR),
        ((0.01, 0.006), UNKNOWN),
    ],
)
def test_efficiency(share: Any, level: Level) -> None:
    assert one("Efficiency", measured(ess=share)).level is level


def test_efficiency_says_what_samples_are_worth() -> None:
    assert "1,000 samples are worth 210" in one("Efficiency", measured(ess=0.21)).sentence
    assert "worth 1.5" in one("Efficiency", measured(ess=0.0015)).sentence


@pytest.mark.parametrize(
    ("excess", "level"),
    [(-0.1, GOOD), (0.95, GOOD), (0.97, UNKNOWN), (1.05, FAIR), (2.9, FAIR), (3.1, POOR), (None, UNKNOWN)],
)
def test_density(excess: float | None, level: Level) -> None:
    verdict = one("Density", measured(forward_kl=(excess, 0.02)))
    assert verdict.level is level
    assert excess is None or f"{excess:.3f} ± 0.020 nats" in verdict.sentence


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.0, GOOD), (0.017, GOOD), (0.019, UNKNOWN), (0.025, FAIR), (0.09, FAIR), (0.11, POOR),
     (math.nan, UNKNOWN)],
)  # fmt: skip
def test_forces(share: float, level: Level) -> None:
    assert one("Forces", measured(), unexplained=Estimate(share, 0.001)).level is level
    assert one("Forces", measured(), unexplained=Estimate(share)).level is UNKNOWN


@pytest.mark.parametrize(
    ("gap", "level"),
    [(0.0, GOOD), (0.08, GOOD), (-0.08, GOOD), (0.1, UNKNOWN), (0.12, FAIR), (-0.48, FAIR), (0.52, POOR),
     (None, UNKNOWN)],
)  # fmt: skip
def test_coverage(gap: float | None, level: Level) -> None:
    # Errors of 0.003 and 0.004 make one of 0.005.
    other = None if gap is None else -190 - gap
    metrics = measured(log_z=(-190.0, 0.003), log_z_bar=(other, 0.004))
    assert one("Coverage", metrics).level is level
    vague = measured(log_z=(-190.0, 0.3), log_z_bar=(other, 0.4))
    assert one("Coverage", vague).level is UNKNOWN


def test_nothing_follows_from_weights_that_cannot_be_trusted() -> None:
    sides = {"side_difference_reweighted": (5.0, 0.01), "side_difference_data": (5.0, 0.01)}
    metrics = residue(**sides) | {"measures": measured(pareto_k=1.2, log_z=1.0, log_z_bar=1.0)["measures"]}
    for subject in ("Coverage", "Free energy, ALA2"):
        verdict = one(subject, metrics)
        assert verdict.level is UNKNOWN and "weights cannot be trusted. A better model" in verdict.sentence
    del metrics["measures"]["pareto_k"]
    assert one("Coverage", metrics).level is one("Free energy, ALA2", metrics).level is GOOD


@pytest.mark.parametrize(
    ("distance", "floor", "level"),
    [(0.3, 0.2, GOOD), (0.39, 0.2, GOOD), (0.39, 5.0, GOOD), (0.41, 0.2, UNKNOWN), (0.45, 0.2, FAIR),
     (0.79, 0.2, FAIR), (0.81, 0.2, UNKNOWN), (0.83, 0.2, POOR), (2.0, 1.3, POOR), (1.5, 1.3, UNKNOWN),
     ((0.3, 0.049), 0.2, GOOD), ((0.3, 0.051), 0.2, UNKNOWN), ((0.3, None), 0.2, UNKNOWN),
     (0.3, None, UNKNOWN), (0.3, 0.0, UNKNOWN), (None, 0.3, UNKNOWN)],
)  # fmt: skip
def test_torsions(distance: Any, floor: float | None, level: Level) -> None:
    assert one("Torsions, ALA2", residue(torus_w2=distance, torus_w2_data=floor)).level is level


def test_torsions_are_not_judged_by_data_whose_halves_differ_as_much() -> None:
    verdict = one("Torsions, ALA2", residue(torus_w2=(0.96, 0.1), torus_w2_data=1.3))
    assert str(verdict) == (
        "not known: 0.96 rad from the data, halves of which are 1.3 rad apart; error bars leave open "
        "whether that is good, fair or poor. At least 40 times more frames would tell (24,000): simulate "
        "longer, or with --method tempering"
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "level"),
    [((5.0, 0.1), (5.2, 0.1), GOOD), ((5.8, 0.1), (5.0, 0.03), UNKNOWN), ((5.0, 0.05), (5.7, 0.05), FAIR),
     ((5.0, 0.1), (6.4, 0.1), POOR),
     ((5.0, 0.1), (5.4, 0.01), UNKNOWN), ((5.0, 0.6), (5.0, 0.6), UNKNOWN), ((5.0, 0.6), (8.0, 0.6), POOR),
     ((5.0, 0.6), (7.0, 0.6), UNKNOWN), ((5.0, None), (7.0, 0.1), UNKNOWN),
     ((5.0, 0.1), (7.0, None), UNKNOWN),
     ((5.0, 0.1), (None, None), UNKNOWN), ((None, None), (5.0, 0.1), UNKNOWN)],
)  # fmt: skip
def test_free_energies_between_the_sides_of_phi(ours: Any, theirs: Any, level: Level) -> None:
    metrics = residue(side_difference_reweighted=ours, side_difference_data=theirs)
    assert one("Free energy, ALA2", metrics).level is level


@pytest.mark.parametrize(
    ("left", "right", "level"),
    [(0.5, 0.11, GOOD), (0.5, 0.09, UNKNOWN), (0.09, 0.5, UNKNOWN), (0.5, None, GOOD), (None, None, GOOD)],
)  # fmt: skip
def test_error_bars_of_sides_in_which_few_samples_count_are_not_believed(
    left: float | None, right: float | None, level: Level
) -> None:
    sides = {"side_difference_reweighted": (4.33, 0.09), "side_difference_data": (4.3, 0.05)}
    verdict = one("Free energy, ALA2", residue(**sides, ess_left=left, ess_right=right))
    assert verdict.level is level
    if level is UNKNOWN:
        side = "<" if left == 0.09 else ">"
        assert f"of the samples with phi {side} 0 only 9 % count" in verdict.sentence
        assert "knotflow exact" in verdict.sentence


def test_a_side_that_was_never_visited_is_named() -> None:
    metrics = residue(side_difference_reweighted=(5.0, 0.1), side_difference_data=None)
    assert "there are no data" in one("Free energy, ALA2", metrics).sentence
    metrics["residues"]["ALA2"]["side_difference_data"]["note"] = "phi > 0 is never visited."
    verdict = one("Free energy, ALA2", metrics)
    assert (
        "cannot be compared: in the data, phi > 0 is never visited. "
        "At least 60 times more frames would tell (36,000)" in verdict.sentence
    )


def test_one_frame_is_no_reference() -> None:
    """One frame of 600 at phi > 0: log 599 = 6.4 kT."""
    metrics = residue(side_difference_reweighted=(2.8, 0.1), side_difference_data=(math.log(599), None))
    assert str(one("Free energy, ALA2", metrics)) == (
        "not known: 2.80 ± 0.10 kT reweighted, 6.4 kT (without an error bar) in the data; error bars leave "
        "open whether that is good, fair or poor. At least 60 times more frames would tell (36,000): "
        "simulate longer, or with --method tempering"
    )


def test_the_source_that_is_too_thin_is_named() -> None:
    thin = residue(side_difference_reweighted=(2.8, 1.0), side_difference_data=(3.0, 0.05))
    sentence = one("Free energy, ALA2", thin).sentence
    assert sentence.endswith("About 60 times more samples would tell (--samples 60000)")
    assert "frames" not in sentence


@pytest.mark.parametrize(
    ("mirrored", "broken", "level"),
    [
        (0, 0, GOOD),
        (3, 0, GOOD),
        (9, 0, UNKNOWN),
        (10, 10, FAIR),
        (20, 15, FAIR),
        (0, 50, UNKNOWN),
        (0, 70, POOR),
    ],
)
def test_structures(mirrored: int, broken: int, level: Level) -> None:
    verdict = one("Structures", measured(wrong_handed=float(mirrored), not_finite=float(broken)))
    assert verdict.level is level and f"{mirrored + broken}" in verdict.sentence


@pytest.mark.parametrize(
    ("broken", "slope", "level"),
    [
        (0, 0.0, GOOD),
        (0, -0.007, GOOD),
        (0, -0.009, UNKNOWN),
        (0, 0.013, FAIR),
        (0, -0.013, FAIR),
        (0, None, UNKNOWN),
        (1, 0.0, POOR),
        (10, None, POOR),
    ],
)
def test_dynamics(broken: int, slope: float | None, level: Level) -> None:
    drift = {"replicas": 10, "broken": broken, "slope": slope, "slope_error": 0.001}
    assert one("Dynamics", measured(), drift=drift).level is level
    if not broken:
        assert one("Dynamics", measured(), drift=drift | {"slope_error": None}).level is UNKNOWN


def states(**shares: dict[str, tuple[float, float | None]]) -> dict[str, Any]:
    """Metrics with the populations of states, by state and source."""
    found = [
        {"name": name, "population": {s: {"value": v, "error": e} for s, (v, e) in sources.items()}}
        for name, sources in shares.items()
    ]
    return measured(pareto_k=0.3) | {"states": [{"group": "C1-C2", "states": found, "differences": []}]}


@pytest.mark.parametrize(
    ("ours", "data", "level"),
    [((0.7, TINY), (0.651, TINY), GOOD), ((0.7, TINY), (0.649, TINY), FAIR),
     ((0.7, TINY), (0.61, TINY), FAIR), ((0.7, TINY), (0.59, TINY), POOR),
     ((0.7, TINY), (0.7, 0.024), GOOD), ((0.7, 0.02), (0.7, 0.02), UNKNOWN),
     ((0.7, TINY), (0.3, None), UNKNOWN), ((0.7, None), (0.3, TINY), UNKNOWN)],
)  # fmt: skip
def test_populations_of_states(ours: Any, data: Any, level: Level) -> None:
    close = {"reweighted": (0.1, TINY), "data": (0.1, TINY)} if level is not UNKNOWN else {}
    anti = {"reweighted": ours, "data": data}
    found = one("States", states(anti=anti, **({"{gauche}": close} if close else {})))
    assert found.level is level and (level is UNKNOWN or "anti of C1-C2" in found.sentence)


def test_exact_chains_are_trusted_more_than_weights() -> None:
    anti = {"reweighted": (0.2, TINY), "data": (0.7, TINY)}
    bad = states(anti=anti) | {"measures": measured(pareto_k=1.2)["measures"]}
    assert one("States", states(anti=anti)).level is POOR
    assert one("States", bad).level is UNKNOWN and "cannot be trusted" in one("States", bad).sentence
    bad["states"] = states(anti=anti | {"exact": (0.7, TINY)})["states"]
    assert one("States", bad).level is GOOD and "in exact chains" in one("States", bad).sentence


def test_nothing_is_said_of_what_is_not_there() -> None:
    found = judge({})
    assert found and all(verdict.level is UNKNOWN for verdict in found)
    assert not [v for v in found if v.subject in ("Dynamics", "Torsions, ALA2")]
    assert all("nan" not in verdict.sentence for verdict in found)


def test_every_verdict_has_a_rule_and_no_full_stop() -> None:
    metrics = measured(pareto_k=0.6, ess=0.1) | {"residues": {"ALA2": {}, "GLY3": {}}}
    found = judge(metrics, drift={"replicas": 1, "broken": 0, "slope": 0.0})
    assert len({verdict.subject for verdict in found}) == len(found) == 11
    for verdict in found:
        assert verdict.rule and not verdict.rule.endswith(".") and not verdict.sentence.endswith(".")
