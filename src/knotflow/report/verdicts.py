"""Verdicts on the numbers of an evaluation, in plain words, each with the rule behind it.

The limits of Pareto k are those of Vehtari et al. (JMLR 25, 2024). All others are conventions of this
package, chosen to distinguish a generator that can be used as it is from one that needs a closer look or more
training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from knotflow.statistics.estimates import Estimate


class Level(StrEnum):
    """Quality of one aspect."""

    GOOD = "good"
    FAIR = "fair"
    POOR = "poor"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Verdict:
    """A sentence on one aspect of a generator."""

    subject: str
    level: Level
    sentence: str
    """The finding, without a full stop."""
    rule: str
    """The limits of good, fair and poor."""

    def __str__(self) -> str:
        return f"{self.level}: {self.sentence}"


@dataclass(frozen=True)
class Rule:
    """Two limits of a number, and the sentence for each level; ``{residue}`` and ``{why}`` are filled in."""

    subject: str
    limits: tuple[float, float]
    """Limits of good and fair; if the first is the larger one, larger numbers are better."""
    text: str
    """With ``{}`` for each of the limits."""
    good: str
    fair: str
    poor: str
    unknown: str
    percent: bool = False
    """Whether the number is a share."""

    def verdict(self, value: float, number: str, **words: str) -> Verdict:
        """Judge a value; ``number`` says what it is, after the sentence of its level."""
        (good, fair), sign = self.limits, math.copysign(1, self.limits[1] - self.limits[0])
        if math.isnan(value):
            level, sentence = Level.UNKNOWN, self.unknown
        elif sign * value < sign * good:
            level, sentence = Level.GOOD, f"{self.good}: {number}"
        elif sign * value < sign * fair:
            level, sentence = Level.FAIR, f"{self.fair}: {number}"
        else:
            level, sentence = Level.POOR, f"{self.poor}: {number}"
        limits = (_percent(limit) if self.percent else f"{limit:g}" for limit in self.limits)
        return Verdict(
            self.subject.format(**words), level, sentence.format(**words), self.text.format(*limits)
        )


WEIGHTS: Final = Rule(
    "Weights",
    (0.5, 0.7),
    "Pareto k of the weights: good below {}, fair below {}",
    good="weights are reliable",
    fair="weights are usable, error bars converge slowly",
    poor="weights cannot be trusted, and neither can reweighted results",
    unknown="too few samples, or weights without a tail: Pareto k is unknown",
)
EFFICIENCY: Final = Rule(
    "Efficiency",
    (0.2, 0.02),
    "effective sample size: good above {}, fair above {}",
    good="reweighting is efficient",
    fair="reweighting takes many samples",
    poor="reweighting wastes nearly all samples",
    unknown="no sample has a weight",
    percent=True,
)
DENSITY: Final = Rule(
    "Density",
    (1.0, 3.0),
    "NLL of data above the lowest possible: good below {} nat, fair below {}",
    good="the density fits the Boltzmann distribution",
    fair="the density is close to the Boltzmann distribution",
    poor="the density is far from the Boltzmann distribution",
    unknown="the density was not compared with data",
)
FORCES: Final = Rule(
    "Forces",
    (0.02, 0.1),
    "squared error of the flow's forces on data, as a share of the squared forces: "
    "good below {}, fair below {}",
    good="forces are learned",
    fair="forces are roughly learned",
    poor="forces are wrong",
    unknown="forces were not compared with data",
    percent=True,
)
COVERAGE: Final = Rule(
    "Coverage",
    (2.0, 4.0),
    "log Z from samples alone and from samples and data: good within {} standard errors, fair within {}",
    good="samples and data cover the same regions",
    fair="samples and data may not cover the same regions",
    poor="samples and data do not cover the same regions",
    unknown="there are no two estimates of log Z to compare",
)
TORSIONS: Final = Rule(
    "Torsions, {residue}",
    (1.5, 3.0),
    "distance W2 of (phi, psi) between samples and data, compared with that between two halves of the data: "
    "good below {} times, fair below {} times",
    good="torsions of {residue} are as in the data",
    fair="torsions of {residue} differ from the data",
    poor="torsions of {residue} are not those of the data",
    unknown="torsions of {residue} were not compared with data",
)
EXPLAINED: Final = 2.0
"""Standard errors that explain a difference of free energies."""
SIDES: Final = Rule(
    "Free energy, {residue}",
    (0.5, 1.0),
    "F(phi>0) - F(phi<0), reweighted against data: good within {} kT, fair within {} kT or "
    f"{EXPLAINED:g} standard errors",
    good="the free energy between the sides of phi of {residue} is right",
    fair="the free energy between the sides of phi of {residue} is about right",
    poor="the free energy between the sides of phi of {residue} is wrong",
    unknown="the free energy between the sides of phi of {residue} cannot be compared: {why}",
)
STRUCTURES: Final = Rule(
    "Structures",
    (0.01, 0.05),
    "samples with the wrong handedness or that are not finite: good below {}, fair below {}",
    good="structures are sound",
    fair="some structures are not sound",
    poor="many structures are not sound",
    unknown="structures of samples were not checked",
    percent=True,
)
SLOPE: Final = 0.01
"""In kT/ps per degree of freedom."""


def judge(
    metrics: Mapping[str, Any], *, unexplained: float = math.nan, drift: Mapping[str, Any] | None = None
) -> list[Verdict]:
    """All verdicts that the numbers allow, and "not known" for those they do not.

    Args:
        metrics: The result of `knotflow.analysis.Evaluation.plain`, or a part of it.
        unexplained: Share of the forces on data that the flow has not learned.
        drift: The result of `knotflow.dynamics.Drift.plain`, if dynamics was run.
    """
    measures, samples = metrics.get("measures", {}), metrics.get("about", {}).get("samples") or 0
    k, share = _measure(measures, "pareto_k").value, _measure(measures, "ess").value
    if math.isnan(k) and measures.get("pareto_k", {}).get("note"):
        k = math.inf  # JSON has no infinity: null with a note of doubt stands for it
    worth = share * samples
    worth_text = f"{worth:,.0f}" if worth >= 10 else f"{worth:.2g}"
    excess = _measure(measures, "forward_kl")
    gap, error = _gap(_measure(measures, "log_z"), _measure(measures, "log_z_bar"))
    apart = gap / error if error > 0 else math.nan
    found = [
        WEIGHTS.verdict(k, f"Pareto k {k:.2g}"),
        EFFICIENCY.verdict(
            share,
            f"effective sample size {_percent(share)}"
            + (f"; {samples:,} samples are worth {worth_text}" if samples else ""),
        ),
        DENSITY.verdict(excess.value, f"the NLL of the data is {excess} nats above the lowest possible"),
        FORCES.verdict(unexplained, f"{_percent(unexplained)} of them unexplained"),
        COVERAGE.verdict(apart, f"two estimates of log Z differ by {gap:.2g}, {apart:.2g} standard errors"),
    ]
    for residue, of_torsions in metrics.get("residues", {}).items():
        found += [_torsions(residue, of_torsions), _sides(residue, of_torsions)]
    bad = sum(_measure(measures, key).value for key in ("wrong_handed", "not_finite"))
    unusable = f"{bad:,.0f} of {samples:,} unusable"
    found.append(STRUCTURES.verdict(bad / samples if samples else math.nan, unusable))
    return [*found, _dynamics(drift)] if drift is not None else found


def _torsions(residue: str, found: Mapping[str, Any]) -> Verdict:
    distance, floor = (_measure(found, key).value for key in ("torus_w2", "torus_w2_data"))
    number = f"{distance:.2g} rad from the data, halves of which are {floor:.2g} rad apart"
    return TORSIONS.verdict(distance / floor if floor > 0 else math.nan, number, residue=residue)


def _sides(residue: str, found: Mapping[str, Any]) -> Verdict:
    ours, theirs = (_measure(found, key) for key in ("side_difference_reweighted", "side_difference_data"))
    gap, error = _gap(ours, theirs)
    if gap <= EXPLAINED * error:  # at worst fair
        gap = min(gap, math.nextafter(SIDES.limits[1], 0))
    number = f"{ours.value:.2g} kT reweighted, {theirs.value:.2g} kT in the data"
    return SIDES.verdict(gap, number, residue=residue, why=_why(found))


def _why(found: Mapping[str, Any]) -> str:
    """Why the sides of phi cannot be compared, as noted in the measures."""
    for key, where in (("side_difference_data", "in the data"), ("side_difference_reweighted", "in samples")):
        note = found.get(key, {}).get("note")
        if note and math.isnan(_measure(found, key).value):
            return f"{where}, {note.removesuffix('.')}"
    return "there are no data"


def _dynamics(drift: Mapping[str, Any]) -> Verdict:
    rule = (
        "dynamics on the flow without a thermostat: poor if a replica breaks, good if the energy also drifts "
        f"by less than {SLOPE:g} kT/ps per degree of freedom"
    )
    broken, replicas, slope = drift["broken"], drift["replicas"], Estimate.read(drift, "slope").value
    number = f"{slope:.1e} kT/ps per degree of freedom, {replicas} replicas"
    if broken:
        level, sentence = Level.POOR, f"dynamics breaks: {broken} of {replicas} replicas"
    elif math.isnan(slope):
        level, sentence = Level.UNKNOWN, "dynamics is too short to measure a drift"
    elif abs(slope) < SLOPE:
        level, sentence = Level.GOOD, f"dynamics conserves energy: {number}"
    else:
        level, sentence = Level.FAIR, f"dynamics is stable, but the energy drifts: {number}"
    return Verdict("Dynamics", level, sentence, rule)


def _measure(measures: Mapping[str, Any], key: str) -> Estimate:
    """A measure; NaN if it is missing or null."""
    return Estimate.read(measures.get(key, {}))


def _gap(one: Estimate, other: Estimate) -> tuple[float, float]:
    """The difference of two numbers and its error; an unknown error counts as zero."""
    errors = (0.0 if math.isnan(x.error) else x.error for x in (one, other))
    return abs(one.value - other.value), math.hypot(*errors)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %" if share < 1.005 else f"{100 * share:.3g} %"
