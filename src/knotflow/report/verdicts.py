"""What the numbers of an evaluation mean, in plain words: one verdict each, with the rule it follows.

The rules for Pareto k are those of Vehtari et al. (JMLR 25, 2024); all others are conventions of this
package, chosen to tell a generator that can be used as it is from one that needs a look, or more training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from knotflow.statistics.estimates import Estimate


class Level(StrEnum):
    """How good something is."""

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
    """What was found, without a full stop."""
    rule: str
    """What makes it good, fair or poor."""

    def __str__(self) -> str:
        return f"{self.level}: {self.sentence}"


PARETO_K: Final = (0.5, 0.7)
EFFECTIVE: Final = (0.2, 0.02)
EXCESS: Final = (1.0, 3.0)
UNEXPLAINED: Final = (0.02, 0.1)
APART: Final = (2.0, 4.0)
"""Standard errors between two estimates of log Z."""
TORSIONS: Final = (1.5, 3.0)
"""Distance to data, in units of the one between two halves of the data."""
SIDES: Final = (0.5, 1.0)
"""In kT: difference of a free energy from that of the data."""
EXPLAINED: Final = 2.0
"""Standard errors that explain a difference of free energies."""
MIRRORED: Final = (0.01, 0.05)
SLOPE: Final = 0.01
"""In kT/ps for each degree of freedom."""


def judge(
    metrics: Mapping[str, Any], *, unexplained: float = math.nan, drift: Mapping[str, Any] | None = None
) -> list[Verdict]:
    """All verdicts that the numbers allow, and "not known" for those they do not.

    Args:
        metrics: What `knotflow.analysis.Evaluation.plain` gives, or a part of it.
        unexplained: Share of the forces on data that the flow has not learned.
        drift: What `knotflow.dynamics.Drift.plain` gives, if dynamics was run.
    """
    measures, about = metrics.get("measures", {}), metrics.get("about", {})
    samples = about.get("samples")
    unusable = sum(_measure(measures, key).value for key in ("wrong_handed", "not_finite"))
    found = [
        _weights(_pareto_k(measures)),
        _efficiency(_measure(measures, "ess").value, samples),
        _density(_measure(measures, "forward_kl")),
        _forces(unexplained),
        _left_out(*(_measure(measures, key) for key in ("log_z", "log_z_bar"))),
    ]
    for residue, of_torsions in metrics.get("residues", {}).items():
        found += [_torsions(residue, of_torsions), _sides(residue, of_torsions)]
    found.append(_structures(unusable, samples))
    return [*found, _dynamics(drift)] if drift is not None else found


def _pareto_k(measures: Mapping[str, Any]) -> float:
    """Of the weights. JSON has no infinity: null with a note of doubt stands for it."""
    k = _measure(measures, "pareto_k").value
    return math.inf if math.isnan(k) and measures.get("pareto_k", {}).get("note") else k


def _weights(k: float) -> Verdict:
    return _verdict(
        "Weights",
        _level(k, *PARETO_K),
        f"Pareto k of the weights: good below {PARETO_K[0]}, fair below {PARETO_K[1]}",
        good=f"weights are reliable: Pareto k {k:.2g}",
        fair=f"weights are usable, error bars converge slowly: Pareto k {k:.2g}",
        poor=f"weights cannot be trusted, nor what is reweighted: Pareto k {k:.2g}",
        unknown="too few samples, or weights without a tail: Pareto k is not known",
    )


def _efficiency(share: float, samples: int | None) -> Verdict:
    worth = f"; {samples:,} samples are worth {_count(share * samples)}" if samples else ""
    number = f"effective sample size {_percent(share)}{worth}"
    return _verdict(
        "Efficiency",
        _level(-share, -EFFECTIVE[0], -EFFECTIVE[1]),
        f"effective sample size: good above {_percent(EFFECTIVE[0])}, fair above {_percent(EFFECTIVE[1])}",
        good=f"reweighting is efficient: {number}",
        fair=f"reweighting takes many samples: {number}",
        poor=f"reweighting wastes nearly all samples: {number}",
        unknown="no sample has a weight",
    )


def _density(excess: Estimate) -> Verdict:
    number = f"the NLL of the data is {excess} nats above the lowest possible"
    return _verdict(
        "Density",
        _level(excess.value, *EXCESS),
        f"NLL of data above the lowest possible: good below {EXCESS[0]:g} nat, fair below {EXCESS[1]:g}",
        good=f"the density fits the Boltzmann distribution: {number}",
        fair=f"the density is close to the Boltzmann distribution: {number}",
        poor=f"the density is far from the Boltzmann distribution: {number}",
        unknown="the density was not compared with data",
    )


def _forces(unexplained: float) -> Verdict:
    return _verdict(
        "Forces",
        _level(unexplained, *UNEXPLAINED),
        "squared error of the flow's forces on data, as a share of the squared forces: "
        f"good below {_percent(UNEXPLAINED[0])}, fair below {_percent(UNEXPLAINED[1])}",
        good=f"forces are learned: {_percent(unexplained)} of them unexplained",
        fair=f"forces are roughly learned: {_percent(unexplained)} of them unexplained",
        poor=f"forces are wrong: {_percent(unexplained)} of them unexplained",
        unknown="forces were not compared with data",
    )


def _left_out(by_samples: Estimate, by_both: Estimate) -> Verdict:
    gap, spread = _gap(by_samples, by_both)
    apart = gap / spread if spread > 0 else math.nan
    number = f"two estimates of log Z differ by {gap:.2g}, {apart:.2g} standard errors"
    return _verdict(
        "Coverage",
        _level(apart, *APART),
        "log Z from samples alone and from samples and data: good within "
        f"{APART[0]:g} standard errors, fair within {APART[1]:g}",
        good=f"samples and data cover the same: {number}",
        fair=f"samples and data may not cover the same: {number}",
        poor=f"samples and data do not cover the same: {number}",
        unknown="there are no two estimates of log Z to compare",
    )


def _torsions(residue: str, found: Mapping[str, Any]) -> Verdict:
    distance, floor = (_measure(found, key).value for key in ("torus_w2", "torus_w2_data"))
    number = f"{distance:.2g} rad from the data, halves of which are {floor:.2g} rad apart"
    return _verdict(
        f"Torsions, {residue}",
        _level(distance / floor if floor > 0 else math.nan, *TORSIONS),
        "distance W2 of (phi, psi) of samples from data, compared with two halves of the data: good below "
        f"{TORSIONS[0]:g} times, fair below {TORSIONS[1]:g} times",
        good=f"torsions of {residue} are as in the data: {number}",
        fair=f"torsions of {residue} differ from the data: {number}",
        poor=f"torsions of {residue} are not those of the data: {number}",
        unknown=f"torsions of {residue} were not compared with data",
    )


def _sides(residue: str, found: Mapping[str, Any]) -> Verdict:
    ours, theirs = (_measure(found, key) for key in ("side_difference_reweighted", "side_difference_data"))
    gap, spread = _gap(ours, theirs)
    level = _level(gap, *SIDES)
    if level is Level.POOR and gap <= EXPLAINED * spread:
        level = Level.FAIR
    name = f"the free energy between the sides of phi of {residue}"
    number = f"{ours.value:.2g} kT reweighted, {theirs.value:.2g} kT in the data"
    return _verdict(
        f"Free energy, {residue}",
        level,
        f"F(phi>0) - F(phi<0), reweighted against data: good within {SIDES[0]:g} kT, fair within "
        f"{SIDES[1]:g} kT or {EXPLAINED:g} standard errors",
        good=f"{name} is right: {number}",
        fair=f"{name} is about right: {number}",
        poor=f"{name} is wrong: {number}",
        unknown=f"{name} cannot be compared: {_why(found)}",
    )


def _why(found: Mapping[str, Any]) -> str:
    """Why the sides of phi cannot be compared: what the measures note."""
    for key, where in (("side_difference_data", "in the data"), ("side_difference_reweighted", "in samples")):
        note = found.get(key, {}).get("note")
        if note and math.isnan(_measure(found, key).value):
            return f"{where}, {note.removesuffix('.')}"
    return "there are no data"


def _structures(bad: float, samples: int | None) -> Verdict:
    of_all = f"{bad:,.0f} of {samples or 0:,}"
    return _verdict(
        "Structures",
        _level(bad / samples if samples else math.nan, *MIRRORED),
        "samples with the wrong handedness or that are not finite: good below "
        f"{_percent(MIRRORED[0])}, fair below {_percent(MIRRORED[1])}",
        good=f"structures are sound: {of_all} unusable",
        fair=f"some structures are unusable: {of_all}",
        poor=f"many structures are unusable: {of_all}",
        unknown="structures of samples were not looked at",
    )


def _dynamics(drift: Mapping[str, Any]) -> Verdict:
    rule = (
        "dynamics on the flow without a thermostat: poor if a replica breaks, good if the energy also drifts "
        f"by less than {SLOPE:g} kT/ps for each degree of freedom"
    )
    broken, replicas, slope = drift["broken"], drift["replicas"], Estimate.read(drift, "slope").value
    if broken:
        return Verdict("Dynamics", Level.POOR, f"dynamics breaks: {broken} of {replicas} replicas", rule)
    if math.isnan(slope):
        return Verdict("Dynamics", Level.UNKNOWN, "dynamics is too short to see a drift", rule)
    good = abs(slope) < SLOPE
    kept = "conserves energy" if good else "stays whole, but the energy drifts"
    sentence = f"dynamics {kept}: {slope:.1e} kT/ps per degree of freedom, {replicas} replicas"
    return Verdict("Dynamics", Level.GOOD if good else Level.FAIR, sentence, rule)


def _verdict(subject: str, level: Level, rule: str, **sentences: str) -> Verdict:
    """The sentence of this level: ``good``, ``fair``, ``poor`` or ``unknown``."""
    return Verdict(subject, level, sentences[level.name.lower()], rule)


def _level(value: float, good: float, fair: float) -> Level:
    """By two limits, the lower the better."""
    if math.isnan(value):
        return Level.UNKNOWN
    return Level.GOOD if value < good else Level.FAIR if value < fair else Level.POOR


def _measure(measures: Mapping[str, Any], key: str) -> Estimate:
    """A measure; NaN if it is missing or null."""
    return Estimate.read(measures.get(key, {}))


def _gap(one: Estimate, other: Estimate) -> tuple[float, float]:
    """How far two numbers are apart, and the error of that; an error that is not known counts as none."""
    errors = (0.0 if math.isnan(x.error) else x.error for x in (one, other))
    return abs(one.value - other.value), math.hypot(*errors)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %" if share < 1.005 else f"{100 * share:.3g} %"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
