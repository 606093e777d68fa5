"""Verdicts on the numbers of an evaluation, in plain words, each with the rule behind it.

A verdict is given only if the error bars allow no other: all numbers within two standard errors of the
measured one are judged alike. Otherwise the verdict is "not known", and its sentence says what it would take
to know. A number without an error bar is not judged.

The limits of Pareto k are those of Vehtari et al. (JMLR 25, 2024). All others are conventions of this
package, chosen to distinguish a generator that can be used as it is from one that needs a closer look or more
training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from knotflow.statistics.estimates import Estimate, share_interval

ERRORS: Final = 2.0
"""The truth is looked for within this many standard errors of a measured number."""
Span = tuple[float, float]
"""The smallest and the largest value that a number may have."""


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
    """The finding, without a full stop. If it is not known, also what it would take to know."""
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
    least_error: float = math.nan
    """Standard error from a single visit of what the number is about, if that has one."""

    def level(self, value: float) -> Level:
        """The level of a number without uncertainty."""
        (good, fair), sign = self.limits, math.copysign(1, self.limits[1] - self.limits[0])
        if sign * value < sign * good:
            return Level.GOOD
        return Level.FAIR if sign * value < sign * fair else Level.POOR

    def verdict(self, span: Span, number: str, cure: str = "", **words: str) -> Verdict:
        """Judge a number by all values that it may have.

        Args:
            span: The smallest and the largest of these; NaN if nothing was measured.
            number: What was measured, in words.
            cure: What it would take to know more; "" if the number just is close to a limit.
            **words: To be filled in.
        """
        if math.isnan(span[0]):
            return self.not_known(self.unknown, **words)
        worst, best = sorted((self.level(value) for value in span), key=list(Level).index, reverse=True)
        if best is worst:
            return self._say(best, f"{getattr(self, best.name.lower())}: {number}", **words)
        between = "good, fair or poor" if (best, worst) == (Level.GOOD, Level.POOR) else f"{best} or {worst}"
        why = f". {cure}" if cure else ": it is close to a limit"
        return self.not_known(f"{number}; error bars leave open whether that is {between}{why}", **words)

    def not_known(self, sentence: str, **words: str) -> Verdict:
        """No verdict, and why."""
        return self._say(Level.UNKNOWN, sentence, **words)

    def _say(self, level: Level, sentence: str, **words: str) -> Verdict:
        limits = (_percent(limit) if self.percent else f"{limit:g}" for limit in self.limits)
        return Verdict(
            self.subject.format(**words), level, sentence.format(**words), self.text.format(*limits)
        )

    def times_more(self, error: float) -> float:
        """How many times more rows make a standard error a quarter of the distance between the limits.

        With it, all but numbers close to a limit can be judged.
        """
        enough = abs(self.limits[1] - self.limits[0]) / 4
        return (error / enough) ** 2


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
    (0.1, 0.5),
    "log Z from samples alone and from samples and data: good within {} nats, fair within {}",
    good="samples and data cover the same regions",
    fair="samples and data may not cover the same regions",
    poor="samples and data do not cover the same regions",
    unknown="there are no two estimates of log Z to compare",
)
TORSIONS: Final = Rule(
    "Torsions, {residue}",
    (0.4, 0.8),
    "distance W2 of (phi, psi) between samples and data: good below {} rad, fair below {}, allowing for the "
    "distance between two halves of the data",
    good="torsions of {residue} are as in the data",
    fair="torsions of {residue} differ from the data",
    poor="torsions of {residue} are not those of the data",
    unknown="torsions of {residue} were not compared with data",
)
SIDES: Final = Rule(
    "Free energy, {residue}",
    (0.5, 1.0),
    "F(phi>0) - F(phi<0), reweighted against data: good within {} kT, fair within {} kT, unless few of the "
    "samples on one side count",
    good="the free energy between the sides of phi of {residue} is right",
    fair="the free energy between the sides of phi of {residue} is about right",
    poor="the free energy between the sides of phi of {residue} is wrong",
    unknown="the free energy between the sides of phi of {residue} cannot be compared: {why}",
    least_error=1.0,  # of the logarithm of a count of one
)
STATES: Final = Rule(
    "States",
    (0.05, 0.1),
    "populations of states against data, from exact chains if there are any, else reweighted: "
    "good within {}, fair within {}",
    good="populations of states are those of the data",
    fair="populations of states are about those of the data",
    poor="populations of states are not those of the data",
    unknown="populations of states cannot be compared with data: no state is visited often enough in both",
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


BETTER: Final = "A better model would tell: train on more frames, or for more steps"
UNTRUSTED: Final = f"the weights cannot be trusted. {BETTER}"
INSIDE: Final = 0.1
"""Effective sample size inside a state below which error bars of its weight are far too small: the heaviest
of its samples are yet to come (docs/generators.md, Evaluate)."""


def judge(
    metrics: Mapping[str, Any],
    *,
    unexplained: Estimate | None = None,
    drift: Mapping[str, Any] | None = None,
) -> list[Verdict]:
    """All verdicts that the numbers allow, and "not known" for those they do not.

    Args:
        metrics: The result of `knotflow.analysis.Evaluation.plain`, or a part of it.
        unexplained: Share of the forces on data that the flow has not learned.
        drift: The result of `knotflow.dynamics.Drift.plain`, if dynamics was run.
    """
    measures, rows = metrics.get("measures", {}), Rows.of(metrics.get("about", {}))
    unexplained = unexplained or Estimate(math.nan)
    samples, k, share = rows.samples, _measure(measures, "pareto_k"), _measure(measures, "ess")
    if math.isnan(k.value) and measures.get("pareto_k", {}).get("note"):
        k = Estimate(math.inf)  # JSON has no infinity: null with a note of doubt stands for it
    worth = share.value * samples
    worth_text = f"{worth:,.0f}" if worth >= 10 else f"{worth:.2g}"
    excess = _measure(measures, "forward_kl")
    weights = WEIGHTS.verdict(_around(k), f"Pareto k {_short(k)}", rows.cure(WEIGHTS, samples=k.error))
    trusted = weights.level is not Level.POOR
    found = [
        weights,
        EFFICIENCY.verdict(
            _around(share),
            f"effective sample size {_percent(share.value)}"
            + (f"; {samples:,} samples are worth {worth_text}" if samples else ""),
            rows.cure(EFFICIENCY, samples=share.error),
        ),
        DENSITY.verdict(
            _around(excess),
            f"the NLL of the data is {excess} nats above the lowest possible",
            rows.cure(DENSITY, frames=excess.error),
        ),
        FORCES.verdict(
            _around(unexplained),
            f"{_percent(unexplained.value)} of them unexplained",
            rows.cure(FORCES, frames=unexplained.error),
        ),
        _coverage(measures, rows, trusted=trusted),
    ]
    for residue, of_torsions in metrics.get("residues", {}).items():
        found += [
            _torsions(residue, of_torsions, rows), _sides(residue, of_torsions, rows, trusted=trusted)
        ]  # fmt: skip
    if groups := metrics.get("states"):
        found.append(_states(groups, rows, trusted=trusted))
    bad = sum(_measure(measures, key).value for key in ("wrong_handed", "not_finite"))
    span = share_interval(bad, samples, ERRORS) if samples else (math.nan, math.nan)
    more = rows.cure(STRUCTURES, samples=(span[1] - span[0]) / (2 * ERRORS))
    found.append(STRUCTURES.verdict(span, f"{bad:,.0f} of {samples:,} unusable", more))
    return [*found, _dynamics(drift)] if drift is not None else found


@dataclass(frozen=True)
class Rows:
    """How many frames and samples the numbers come from, for advice on how many there should be."""

    frames: int
    """Of the whole file, training frames included."""
    samples: int

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Rows:
        """As noted in an evaluation."""
        return cls((about.get("data") or {}).get("frames_in_file") or 0, about.get("samples") or 0)

    def cure(self, rule: Rule, **errors: float) -> str:
        """What it takes for error bars with which a rule can be applied; "" if they are small enough.

        Args:
            rule: The rule.
            **errors: Standard errors due to ``frames``, to ``samples`` or to both; NaN: no error bar.
        """
        found = []
        for name, error in errors.items():
            times = rule.times_more(rule.least_error if math.isnan(error) else error)
            if not times <= 1:
                found.append(self.more(name, times, "at least" if math.isnan(error) else "about"))
        return ", and ".join(found).capitalize()

    def more(self, name: str, times: float, about: str = "about") -> str:
        """Advice to have this many times more ``frames`` or ``samples``; NaN: nobody knows how many."""
        if math.isnan(times):
            return f"more {name} would tell"
        times, count = max(2.0, float(f"{times:.1g}")), getattr(self, name)
        how = f"{about} {times:,.0f} times more {name} would tell"
        total = float(f"{times * count:.2g}")
        if name == "samples":
            return f"{how} (--samples {total:.0f})" if count else how
        number = f" ({total:,.0f})" if count else ""
        return f"{how}{number}: simulate longer, or with --method tempering"


def _coverage(measures: Mapping[str, Any], rows: Rows, *, trusted: bool) -> Verdict:
    ours, both = _measure(measures, "log_z"), _measure(measures, "log_z_bar")
    gap, number = ours - both, f"two estimates of log Z differ by {abs(ours.value - both.value):.2g} nats"
    if not trusted and math.isfinite(gap.value):
        return COVERAGE.not_known(f"{number}, but {UNTRUSTED}")
    return COVERAGE.verdict(
        _size(gap), number, rows.cure(COVERAGE, samples=ours.error, frames=both.error)
    )  # fmt: skip


def _torsions(residue: str, found: Mapping[str, Any], rows: Rows) -> Verdict:
    """Judge the distance d between flow and target by that between samples and data, D.

    Data are a finite set, too: if the halves of them are h apart, D² is at most d² + h² on average, so d is
    between √(D² - h²) and D, up to the error of D.
    """
    distance, halves = _measure(found, "torus_w2"), _measure(found, "torus_w2_data").value
    number = f"{distance.value:.2g} rad from the data, halves of which are {halves:.2g} rad apart"
    least = math.sqrt(max(0.0, distance.value**2 - halves**2)) if halves > 0 else math.nan
    span = (_around(Estimate(least, distance.error))[0], _around(distance)[1])
    enough = TORSIONS.limits[0] / 2
    more = ""
    if halves > enough:
        more = rows.more("frames", (halves / enough) ** 2, "at least").capitalize()
    return TORSIONS.verdict(span, number, more, residue=residue)


def _sides(residue: str, found: Mapping[str, Any], rows: Rows, *, trusted: bool) -> Verdict:
    ours, theirs = (_measure(found, key) for key in ("side_difference_reweighted", "side_difference_data"))
    gap = ours - theirs
    errors = {"side_difference_data": ("frames", theirs), "side_difference_reweighted": ("samples", ours)}
    measured = (pair for key, pair in errors.items() if math.isfinite(pair[1].value) or _note(found, key))
    more = rows.cure(SIDES, **{name: estimate.error for name, estimate in measured})
    if not math.isfinite(gap.value):
        why = _why(found)
        return SIDES.not_known(SIDES.unknown + (f". {more}" if more else ""), residue=residue, why=why)
    parts = ((ours, "reweighted"), (theirs, "in the data"))
    number = ", ".join(f"{_with_bar(part)} {where}" for part, where in parts)
    if not trusted:
        return SIDES.not_known(f"{number}, but {UNTRUSTED}", residue=residue)
    shares = [(_measure(found, key).value, side) for key, side in (("ess_left", "<"), ("ess_right", ">"))]
    share, side = min((known for known in shares if known[0] > 0), default=(math.nan, ""))
    if share < INSIDE:
        doubt = f"of the samples with phi {side} 0 only {_percent(share)} count: such weights have larger"
        return SIDES.not_known(
            f"{number}, but {doubt} errors than these. {BETTER}; or exact chains (knotflow exact)",
            residue=residue,
        )
    return SIDES.verdict(_size(gap), number, more, residue=residue)


def _states(groups: Sequence[Mapping[str, Any]], rows: Rows, *, trusted: bool) -> Verdict:
    """Judge the state whose population may be farthest from that in the data, of those known in both."""
    ours = "exact" if any("exact" in s["population"] for group in groups for s in group["states"]) else ""
    if not ours and not trusted:
        return STATES.not_known(UNTRUSTED)
    found = []
    for group in groups:
        for state in group["states"]:
            here, data = (
                Estimate.read(state["population"].get(source) or {})
                for source in (ours or "reweighted", "data")
            )
            if math.isfinite((here - data).error):
                found.append((_size(here - data)[1], here, data, f"{state['name']} of {group['group']}"))
    if not found:
        return STATES.verdict((math.nan, math.nan), "")
    _, here, data, name = max(found, key=lambda row: row[0])
    name = name.replace("{", "{{").replace("}", "}}")
    number = f"{name} has {here} {'in exact chains' if ours else 'reweighted'}, {data} in the data"
    errors = {"frames": data.error} if ours else {"frames": data.error, "samples": here.error}
    return STATES.verdict(_size(here - data), number, rows.cure(STATES, **errors))


def _with_bar(found: Estimate) -> str:
    return f"{found} kT" if math.isfinite(found.error) else f"{found.value:.2g} kT (without an error bar)"


def _why(found: Mapping[str, Any]) -> str:
    """Why the sides of phi cannot be compared, as noted in the measures."""
    for key, where in (("side_difference_data", "in the data"), ("side_difference_reweighted", "in samples")):
        note = _note(found, key)
        if note and math.isnan(_measure(found, key).value):
            return f"{where}, {note.removesuffix('.')}"
    return "there are no data"


def _note(found: Mapping[str, Any], key: str) -> str:
    return str(found.get(key, {}).get("note") or "")


def _dynamics(drift: Mapping[str, Any]) -> Verdict:
    rule = (
        "dynamics on the flow without a thermostat: poor if a replica breaks, good if the energy also drifts "
        f"by less than {SLOPE:g} kT/ps per degree of freedom"
    )
    broken, replicas, slope = drift["broken"], drift["replicas"], Estimate.read(drift, "slope", "slope_error")
    number = f"{slope} kT/ps per degree of freedom, {replicas} replicas"
    low, high = _size(slope)
    if broken:
        level, sentence = Level.POOR, f"dynamics breaks: {broken} of {replicas} replicas"
    elif math.isnan(slope.value):
        level, sentence = Level.UNKNOWN, "dynamics is too short to measure a drift"
    elif high < SLOPE:
        level, sentence = Level.GOOD, f"dynamics conserves energy: {number}"
    elif low >= SLOPE:
        level, sentence = Level.FAIR, f"dynamics is stable, but the energy drifts: {number}"
    else:
        level = Level.UNKNOWN
        sentence = (
            f"{number}; error bars leave open whether that is good or fair. More replicas or more time would "
            "tell"
        )
    return Verdict("Dynamics", level, sentence, rule)


def _measure(measures: Mapping[str, Any], key: str) -> Estimate:
    """A measure; NaN if it is missing or null."""
    return Estimate.read(measures.get(key, {}))


def _around(found: Estimate) -> Span:
    """All values that a number may have: any if it has no error bar; NaN if it was not measured."""
    if math.isnan(found.error) and math.isfinite(found.value):
        return -math.inf, math.inf
    bar = 0.0 if math.isinf(found.value) else ERRORS * found.error
    return found.value - bar, found.value + bar


def _size(found: Estimate) -> Span:
    """All values that the absolute value of a number may have."""
    low, high = _around(found)
    return max(low, -high, 0.0), max(-low, high)


def _short(found: Estimate) -> str:
    """A number of two digits, with its error."""
    return f"{found.value:.2g}" + (f" ± {found.error:.1g}" if math.isfinite(found.error) else "")


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %" if share < 1.005 else f"{100 * share:.3g} %"
