"""The measures of a Boltzmann generator, from the tables of its samples and of data.

Each function takes tables (`FrameTable`) and gives measures by name, with standard errors: of data over
blocks, of samples over samples. *Reweighted* means with importance weights, the largest 0.01 % clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis import distances, free_energy
from knotflow.analysis.frame_table import COMPARED, FrameTable
from knotflow.json_values import plain
from knotflow.statistics import weights
from knotflow.statistics.estimates import REPEATS, Estimate, Rows, bootstrap, mean

Floats = NDArray[np.float64]

TRUSTED_K: Final = 0.7
"""Largest Pareto k with which weights can be trusted."""
TOO_FAR: Final = 4.0
"""Standard errors between two estimates of the same number that need an explanation."""
FRAMES_FOR_ENERGIES: Final = 20_000
"""Of longer data, evenly spaced frames, about so many, enter the distance of energies."""
POINTS: Final = 1_000
"""Points of each of two sets whose distance on the torus is computed."""
DISTANCES: Final = 8
"""Repeats of the bootstrap of such a distance, which takes half a second: its error is known to a quarter."""


@dataclass(frozen=True)
class Measure(Estimate):
    """Something measured, with its standard error; NaN where it is not known."""

    text: str = ""
    """What it is, for people."""
    unit: str = ""
    note: str = ""
    """Why the value is missing or not to be trusted."""

    @classmethod
    def of(cls, text: str, estimate: Estimate | float, unit: str = "", note: str = "") -> Measure:
        """The measure with the value and the error of an estimate, or a number without an error."""
        known = estimate if isinstance(estimate, Estimate) else Estimate(estimate)
        return cls(known.value, known.error, text, unit, note)

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it: null for numbers that are not finite; an empty unit or note is missing."""
        found = {"text": self.text, **asdict(self)}
        return {name: value for name, value in plain(found).items() if value != ""}


Measures = dict[str, Measure]


def overall(data: FrameTable, drawn: FrameTable, block: Rows, seed: int) -> Measures:
    """All measures that are not of a residue, in the order in which they are shown."""
    return {
        **likelihood(data, drawn, block),
        **as_in_the_paper(data, drawn, block),
        **efficiency(log_weights(drawn), seed),
        **forces(data, drawn, block, seed),
        **energies(data, drawn, block, seed),
        **counts(data, drawn),
    }


def log_weights(drawn: FrameTable) -> Floats:
    """Log-weights of samples; minus infinity for the wrong handedness and for what is not finite."""
    return weights.log_weights(drawn.log_prob, drawn.energy, drawn.handed)


def reweighted(drawn: FrameTable) -> Floats:
    """Normalised weights of samples, the largest clipped; NaN if all are zero."""
    return weights.normalised(weights.clipped(log_weights(drawn)))


def without_data(drawn: FrameTable, seed: int) -> Measures:
    """Those measures that need samples only; log Z is that of importance sampling."""
    log_w, nothing = log_weights(drawn), drawn.of_rows(slice(0))
    z, no_block = free_energy.importance(log_w), np.empty(0, dtype=np.intp)
    found = {
        "reverse_kl": Measure.of("KL(flow ‖ target)", free_energy.reverse_kl(z, log_w), "nats"),
        "log_z": Measure.of("log Z, importance sampling", z.estimate(), "nats"),
        **efficiency(log_w, seed),
        **forces(nothing, drawn, no_block, seed),
        **counts(nothing, drawn),
    }
    return {key: measure for key, measure in found.items() if math.isfinite(measure.value)}


def likelihood(data: FrameTable, drawn: FrameTable, block: Rows) -> Measures:
    """Negative log-likelihood, the lowest possible, both divergences, and log Z by two estimators."""
    log_w, log_w_data = log_weights(drawn), -data.energy - data.log_prob
    cut = weights.log_weights(drawn.log_prob, distances.cut_energy(drawn.energy), np.isfinite(log_w))
    by_samples = free_energy.importance(log_w, len(data))
    by_both = free_energy.bar(log_w, log_w_data)
    z = by_both if math.isfinite(by_both.value) else by_samples
    inside = np.isfinite(data.log_prob)
    outside = (
        f"without {(~inside).sum():,} frames without a finite density, as outside of the flow's intervals."
    )
    apart = "samples and data have nothing in common, so log Z is that of importance sampling."
    return {
        "nll": Measure.of(
            "NLL of the data",
            mean(-data.log_prob[inside], block[inside]),
            "nats",
            "" if inside.all() else outside,
        ),
        "nll_limit": Measure.of(
            "lowest possible: mean u + log Z", free_energy.nll_limit(z, data.energy, block), "nats"
        ),
        "forward_kl": Measure.of(
            "above it: KL(target ‖ flow)", free_energy.forward_kl(z, log_w_data, block), "nats"
        ),
        "reverse_kl": Measure.of("KL(flow ‖ target)", free_energy.reverse_kl(z, log_w, block), "nats"),
        "reverse_kl_cut": Measure.of(
            "the same, energies cut at 1,000 kT", free_energy.reverse_kl(z, cut, block), "nats"
        ),
        "log_z": Measure.of(
            "log Z, importance sampling",
            by_samples.estimate(),
            "nats",
            _disagreement(by_samples, by_both, block),
        ),
        "log_z_bar": Measure.of(
            "log Z, Bennett's acceptance ratio",
            by_both.estimate(block),
            "nats",
            "" if z is by_both else apart,
        ),
    }


def as_in_the_paper(data: FrameTable, drawn: FrameTable, block: Rows) -> Measures:
    """What the paper's Table 1 has, in its measure, which leaves out the volume of the rigid frame."""
    inside = np.isfinite(data.paper_log_prob)
    finite = np.isfinite(drawn.energy) & np.isfinite(drawn.paper_log_prob)
    kld = distances.cut_energy(drawn.energy[finite]) + drawn.paper_log_prob[finite]
    log_w = weights.log_weights(drawn.paper_log_prob, drawn.energy, drawn.handed)
    return {
        "nll_paper": Measure.of(
            "NLL in the paper's measure", mean(-data.paper_log_prob[inside], block[inside]), "nats"
        ),
        "kld_paper": Measure.of("KLD as in the paper, log Z missing", mean(kld), "nats"),
        "log_z_paper": Measure.of(
            "log Z in the paper's measure", free_energy.importance(log_w).estimate(), "nats"
        ),
    }


def efficiency(log_w: Floats, seed: int) -> Measures:
    """Effective sample sizes as shares of all samples, and the tail of the weights."""

    def statistic(rows: Rows) -> Floats:
        chosen = log_w[rows]
        shares = [weights.effective_share(w) for w in (chosen, weights.clipped(chosen))]
        return np.array([*shares, weights.pareto_k(chosen)])

    share, clipped, k = _estimates(statistic, np.arange(len(log_w)), seed=seed)
    doubt = f"above {TRUSTED_K} neither weights nor error bars of what they give are to be trusted."
    return {
        "ess": Measure.of("effective sample size, share", share),
        "ess_clipped": Measure.of("the same, weights clipped", clipped),
        "pareto_k": Measure.of("Pareto k of the weights", k, note=doubt if k.value > TRUSTED_K else ""),
    }


def forces(data: FrameTable, drawn: FrameTable, block: Rows, seed: int) -> Measures:
    """Squared errors of the flow's forces, averaged over frames, atoms and directions."""
    unit = "(kT/nm)²"
    measured = np.isfinite(data.force_error)
    on_data = mean(data.force_error[measured], block[measured])
    errors = drawn.force_error[np.isfinite(drawn.force_error)]
    lost = len(drawn) - len(errors)
    note = f"without {lost:,} samples whose forces are not finite." if lost else ""
    (median,) = _estimates(lambda rows: [_median(errors[rows])], np.arange(len(errors)), seed=seed)
    return {
        "force_error": Measure.of("squared error of forces, data", on_data, unit),
        "force_error_1e4": Measure.of("the same in the paper's unit", on_data * 1e-4, f"1e4 {unit}"),
        "force_error_samples": Measure.of("squared error of forces, samples", mean(errors), unit, note),
        "force_error_samples_median": Measure.of("the same, median over samples", median, unit),
    }


def energies(data: FrameTable, drawn: FrameTable, block: Rows, seed: int) -> Measures:
    """Wasserstein distances of energies: of samples from data, reweighted, and between halves of the data."""
    thin = slice(None, None, -(-len(data) // FRAMES_FOR_ENERGIES))
    u, v = distances.capped(drawn.energy, data.energy), data.energy[thin]
    w = reweighted(drawn)

    def statistic(rows: Rows, frames: Rows) -> list[float]:
        return [distances.energy_distance(u[rows], v[frames], weight) for weight in (None, w[rows])]

    raw, weighted = _estimates(statistic, np.arange(len(u)), block[thin], seed=seed)
    halves = _between_halves(block[thin], lambda a, b: distances.energy_distance(v[a], v[b]))
    return {
        "energy_w2": Measure.of("W2 of energies, samples", raw, "kT"),
        "energy_w2_reweighted": Measure.of("W2 of energies, reweighted", weighted, "kT"),
        "energy_w2_data": Measure.of("W2 of energies, halves of the data", halves, "kT"),
    }


def counts(data: FrameTable, drawn: FrameTable) -> Measures:
    """What was lost, and what it cost."""
    finite = np.isfinite(drawn.energy) & np.isfinite(drawn.log_prob)
    again = np.abs(drawn.round_trip[np.isfinite(drawn.round_trip)])
    also = f"and {(~data.handed).sum():,} frames of the data, which the target should not have."
    return {
        "round_trip": Measure.of(
            "log p computed again, 99 % within",
            float(np.quantile(again, 0.99)) if len(again) else math.nan,
            "nats",
        ),
        "wrong_handed": Measure.of(
            "samples of wrong handedness",
            float((~drawn.handed).sum()),
            note="" if data.handed.all() else also,
        ),
        "not_finite": Measure.of("samples not finite", float((~finite).sum())),
        "energy_evaluations": Measure.of("energy evaluations", float(len(drawn) + min(COMPARED, len(data)))),
    }


def of_torsions(residue: str, data: FrameTable, drawn: FrameTable, block: Rows, seed: int) -> Measures:
    """How (phi, psi) of a residue are distributed: in data, samples, and reweighted samples.

    Measures that end in ``_data`` compare one half of the blocks of data with the other: as close as one can
    come with so few. There are no measures if no sample has finite positions.
    """
    finite = np.isfinite(drawn.torsions[residue]).all(1)
    if not finite.any():
        return {}
    log_w = weights.clipped(log_weights(drawn))[finite]
    angles, truth = drawn.torsions[residue][finite], data.torsions[residue]
    return {
        **_histograms(angles, truth, log_w, block, seed),
        **_torus(angles, truth, log_w, block, seed),
        **_sides(angles[:, 0], truth[:, 0], log_w, block, seed),
    }


def _histograms(angles: Floats, truth: Floats, log_w: Floats, block: Rows, seed: int) -> Measures:
    w = weights.normalised(log_w)
    functions = distances.divergence, distances.total_variation

    def statistic(rows: Rows, frames: Rows) -> list[float]:
        reference = distances.histogram(truth[frames])
        others = [distances.histogram(angles[rows], weight) for weight in (None, w[rows])]
        return [function(reference, other) for function in functions for other in others]

    def distance(function: Callable[[Floats, Floats], float]) -> float:
        return _between_halves(
            block, lambda a, b: function(distances.histogram(truth[a]), distances.histogram(truth[b]))
        )

    kl, kl_weighted, tv, tv_weighted = _estimates(statistic, np.arange(len(angles)), block, seed=seed)
    divergence, variation = "KL of histograms", "total variation"
    return {
        "histogram_kl_data": Measure.of(divergence, distance(functions[0]), "nats"),
        "histogram_kl": Measure.of(divergence, kl, "nats"),
        "histogram_kl_reweighted": Measure.of(divergence, kl_weighted, "nats"),
        "histogram_tv_data": Measure.of(variation, distance(functions[1])),
        "histogram_tv": Measure.of(variation, tv),
        "histogram_tv_reweighted": Measure.of(variation, tv_weighted),
    }


def _torus(angles: Floats, truth: Floats, log_w: Floats, block: Rows, seed: int) -> Measures:
    """Wasserstein distances of a few points of each set, drawn at random."""

    def statistic(rows: Rows, frames: Rows) -> list[float]:
        random = np.random.default_rng(seed)
        reference, raw = _some(truth[frames], random), _some(angles[rows], random)
        if not np.isfinite(log_w[rows]).any():
            return [distances.torus_distance(reference, raw), math.nan]
        weighted = angles[rows][weights.resampled(log_w[rows], len(raw), random)]
        return [distances.torus_distance(reference, other) for other in (raw, weighted)]

    def distance(a: Rows, b: Rows) -> float:
        random = np.random.default_rng(seed)
        return distances.torus_distance(_some(truth[a], random), _some(truth[b], random))

    raw, weighted = _estimates(statistic, np.arange(len(angles)), block, seed=seed, repeats=DISTANCES)
    text = "W2 on the torus"
    return {
        "torus_w2_data": Measure.of(text, _between_halves(block, distance), "rad"),
        "torus_w2": Measure.of(text, raw, "rad"),
        "torus_w2_reweighted": Measure.of(text, weighted, "rad"),
    }


def _some(points: Floats, random: np.random.Generator) -> Floats:
    return points[random.choice(len(points), min(POINTS, len(points)), replace=False)]


def _sides(phi: Floats, truth: Floats, log_w: Floats, block: Rows, seed: int) -> Measures:
    w = weights.normalised(log_w)
    difference = free_energy.side_difference
    (of_data,) = _estimates(lambda frames: [difference(truth[frames])], block, seed=seed)
    raw, weighted = _estimates(
        lambda rows: [difference(phi[rows]), difference(phi[rows], w[rows])], np.arange(len(phi)), seed=seed
    )
    text = "F(phi>0) - F(phi<0)"
    return {
        f"side_difference{kind}": Measure.of(text, estimate, "kT", _visits(estimate))
        for kind, estimate in (("_data", of_data), ("", raw), ("_reweighted", weighted))
    }


def _visits(difference: Estimate) -> str:
    """What to say of a free energy that is missing, or its error bar."""
    if math.isnan(difference.value):
        return "no weight at all."
    if math.isinf(difference.value):
        return f"phi {'<' if difference.value < 0 else '>'} 0 is never visited."
    return "one of the sides is too rarely visited for an error bar." if math.isnan(difference.error) else ""


def _disagreement(by_samples: free_energy.LogZ, by_both: free_energy.LogZ, block: Rows) -> str:
    """What to say if the two estimates of log Z are too far apart for their error bars."""
    gap = by_samples.estimate() - by_both.estimate(block)
    z = abs(gap.value) / gap.error
    if not z > TOO_FAR:
        return ""
    return (
        f"{z:.0f} standard errors from Bennett's: the data are not in equilibrium between their basins, the "
        "flow leaves some out, or it was trained on these very frames."
    )


def _estimates(
    statistic: Callable[..., Any], *labels: Rows, seed: int, repeats: int = REPEATS
) -> list[Estimate]:
    """Values of a statistic of all rows, with errors by the bootstrap."""
    values = statistic(*(np.arange(len(label)) for label in labels))
    errors = bootstrap(statistic, *labels, seed=seed, repeats=repeats)
    return [Estimate(float(value), float(error)) for value, error in zip(values, errors, strict=True)]


def _between_halves(block: Rows, distance: Callable[[Rows, Rows], float]) -> float:
    """A distance between two halves of the blocks, every other one in each; NaN with only one block."""
    halves = [np.flatnonzero(block % 2 == parity) for parity in (0, 1)]
    return distance(*halves) if all(len(half) for half in halves) else math.nan


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else math.nan
