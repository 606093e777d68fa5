"""Verdicts: every limit from both sides, and nothing said of what is not known."""

import math
from typing import Any

import pytest

from knotflow.report.verdicts import Level, Verdict, judge

GOOD, FAIR, POOR, UNKNOWN = Level.GOOD, Level.FAIR, Level.POOR, Level.UNKNOWN


def one(subject: str, metrics: dict[str, Any], **more: Any) -> Verdict:
    (found,) = [verdict for verdict in judge(metrics, **more) if verdict.subject == subject]
    return found


def measured(**values: Any) -> dict[str, Any]:
    """Metrics of 1,000 samples: a value, or value and error."""
    pairs = {key: value if isinstance(value, tuple) else (value, None) for key, value in values.items()}
    return {
        "about": {"samples": 1000},
        "measures": {key: {"text": key, "value": v, "error": e} for key, (v, e) in pairs.items()},
    }


def residue(**values: Any) -> dict[str, Any]:
    return {"about": {"samples": 1000}, "measures": {}, "residues": {"ALA2": measured(**values)["measures"]}}


@pytest.mark.parametrize(
    ("k", "level"),
    [(-0.1, GOOD), (0.4, GOOD), (0.499, GOOD), (0.5, FAIR), (0.69, FAIR), (0.7, POOR), (3, POOR),
     (None, UNKNOWN)],
)  # fmt: skip
def test_weights(k: float | None, level: Level) -> None:
    assert one("Weights", measured(pareto_k=k)).level is level


def test_the_sentence_says_what_it_means() -> None:
    verdict = one("Weights", measured(pareto_k=0.4))
    assert str(verdict) == "good: weights are reliable: Pareto k 0.4"
    assert "below 0.5" in verdict.rule and "below 0.7" in verdict.rule


def test_an_infinite_k_is_null_with_a_note() -> None:
    metrics = measured(pareto_k=None)
    metrics["measures"]["pareto_k"]["note"] = "not to be trusted."
    assert one("Weights", metrics).level is POOR


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.9, GOOD), (0.21, GOOD), (0.19, FAIR), (0.021, FAIR), (0.019, POOR), (None, UNKNOWN)],
)
def test_efficiency(share: float | None, level: Level) -> None:
    assert one("Efficiency", measured(ess=share)).level is level


def test_efficiency_says_what_samples_are_worth() -> None:
    assert "1,000 samples are worth 210" in one("Efficiency", measured(ess=0.21)).sentence
    assert "worth 1.5" in one("Efficiency", measured(ess=0.0015)).sentence


@pytest.mark.parametrize(
    ("excess", "level"),
    [(-0.1, GOOD), (0.99, GOOD), (1.0, FAIR), (2.9, FAIR), (3.1, POOR), (None, UNKNOWN)],
)
def test_density(excess: float | None, level: Level) -> None:
    verdict = one("Density", measured(forward_kl=(excess, 0.02)))
    assert verdict.level is level
    assert level is UNKNOWN or f"{excess:.3f} ± 0.020 nats" in verdict.sentence


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.0, GOOD), (0.019, GOOD), (0.02, FAIR), (0.09, FAIR), (0.11, POOR), (math.nan, UNKNOWN)],
)
def test_forces(share: float, level: Level) -> None:
    assert one("Forces", measured(), unexplained=share).level is level


@pytest.mark.parametrize(
    ("gap", "level"), [(0.0, GOOD), (0.9, GOOD), (1.1, FAIR), (1.9, FAIR), (2.1, POOR), (None, UNKNOWN)]
)
def test_coverage_counts_standard_errors(gap: float | None, level: Level) -> None:
    # Errors of 0.3 and 0.4 make one of 0.5.
    other = None if gap is None else -190 - gap
    assert one("Coverage", measured(log_z=(-190.0, 0.3), log_z_bar=(other, 0.4))).level is level


@pytest.mark.parametrize(
    ("distance", "floor", "level"),
    [(0.3, 0.3, GOOD), (0.44, 0.3, GOOD), (0.46, 0.3, FAIR), (0.89, 0.3, FAIR), (0.91, 0.3, POOR),
     (0.3, None, UNKNOWN), (0.3, 0.0, UNKNOWN), (None, 0.3, UNKNOWN)],
)  # fmt: skip
def test_torsions(distance: float | None, floor: float | None, level: Level) -> None:
    assert one("Torsions, ALA2", residue(torus_w2=distance, torus_w2_data=floor)).level is level


@pytest.mark.parametrize(
    ("ours", "theirs", "level"),
    [((5.0, 0.1), (5.4, 0.1), GOOD), ((5.0, 0.1), (5.6, 0.1), FAIR), ((5.0, 0.1), (6.1, 0.1), POOR),
     ((5.0, 0.6), (6.5, 0.6), FAIR), ((5.0, 0.6), (7.0, 0.6), POOR), ((5.0, None), (7.0, None), POOR),
     ((5.0, 0.1), (None, None), UNKNOWN), ((None, None), (5.0, 0.1), UNKNOWN)],
)  # fmt: skip
def test_free_energies_between_the_sides_of_phi(ours: Any, theirs: Any, level: Level) -> None:
    metrics = residue(side_difference_reweighted=ours, side_difference_data=theirs)
    assert one("Free energy, ALA2", metrics).level is level


def test_a_side_that_was_never_visited_is_named() -> None:
    metrics = residue(side_difference_reweighted=(5.0, 0.1), side_difference_data=None)
    assert "there are no data" in one("Free energy, ALA2", metrics).sentence
    metrics["residues"]["ALA2"]["side_difference_data"]["note"] = "phi > 0 is never visited."
    verdict = one("Free energy, ALA2", metrics)
    assert verdict.sentence.endswith("cannot be compared: in the data, phi > 0 is never visited")


@pytest.mark.parametrize(
    ("mirrored", "broken", "level"), [(0, 0, GOOD), (9, 0, GOOD), (5, 5, FAIR), (40, 9, FAIR), (0, 50, POOR)]
)
def test_structures(mirrored: int, broken: int, level: Level) -> None:
    verdict = one("Structures", measured(wrong_handed=float(mirrored), not_finite=float(broken)))
    assert verdict.level is level and f"{mirrored + broken}" in verdict.sentence


@pytest.mark.parametrize(
    ("broken", "slope", "level"),
    [
        (0, 0.0, GOOD),
        (0, -0.009, GOOD),
        (0, 0.011, FAIR),
        (0, None, UNKNOWN),
        (1, 0.0, POOR),
        (10, None, POOR),
    ],
)
def test_dynamics(broken: int, slope: float | None, level: Level) -> None:
    drift = {"replicas": 10, "broken": broken, "slope": slope}
    assert one("Dynamics", measured(), drift=drift).level is level


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
