"""The measures of a Boltzmann generator, computed from tables of its samples and of data.

Each function takes tables (`FrameTable`) and returns measures by name. Standard errors are over blocks for
data and over samples for samples. *Reweighted* means with importance weights, the largest 0.01 % clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from knotflow.analysis import distances, free_energy
from knotflow.analysis.frame_table import COMPARED, FrameTable
from knotflow.json_values import plain
from knotflow.ranks import OneByOne
from knotflow.statistics import weights
from knotflow.statistics.estimates import REPEATS, Estimate, Floats, Rows, bootstrap, mean

TRUSTED_K: Final = 0.7
"""Largest Pareto k with which weights can be trusted."""
TOO_FAR: Final = 4.0
"""Standard errors between two estimates of the same number that need an explanation."""
FEWEST: Final = 25
"""Samples in a state without which nothing is said about their weights."""
FRAMES_FOR_ENERGIES: Final = 20_000
"""About this many evenly spaced frames of longer data enter the distance of energies."""
POINTS: Final = 1_000
"""Points of each of two sets whose distance on the torus is computed."""
DISTANCES: Final = 8
"""Bootstrap repeats of such a distance, which takes half a second: its error is known to a quarter."""


@dataclass(frozen=True)
class Measure(Estimate):
    """A measured number with its standard error; NaN if unknown."""

    text: str = ""
    """Description for people."""
    unit: str = ""
    note: str = ""
    """Why the value is missing or cannot be trusted."""

    @classmethod
    def of(cls, text: str, estimate: Estimate | float, note: str = "", *, unit: str = "") -> Measure:
        """The measure with the value and the error of an estimate, or a number without an error."""
        known = estimate if isinstance(estimate, Estimate) else Estimate(estimate)
        return cls(known.value, known.error, text, unit, note)

    def plain(self) -> dict[str, Any]:
        """As JSON: null for numbers that are not finite, and no empty unit or note."""
        found = {"text": self.text, **asdict(self)}
        return {name: value for name, value in plain(found).items() if value != ""}


Measures = dict[str, Measure]


def plain_measures(found: Measures) -> dict[str, Any]:
    """Measures by name, as JSON can hold them."""
    return {key: measure.plain() for key, measure in found.items()}


def _measured(unit: str, /, **rows: tuple[Any, ...]) -> Measures:
    """Measures in one unit, each given by its text, its estimate and maybe a note."""
    return {key: Measure.of(*row, unit=unit) for key, row in rows.items()}


def overall(data: FrameTable, drawn: FrameTable, block: Rows, seed: int) -> Measures:
    """All measures that do not belong to a residue, in the order in which they are shown."""
    return joined(part(data, drawn, block, seed) for part in PARTS.values())


def joined(parts: Iterable[Measures]) -> Measures:
    """Measures of several parts, in their order."""
    return {key: measure for part in parts for key, measure in part.items()}


def tasks(residues: Iterable[str]) -> list[tuple[str, str]]:
    """The work of an evaluation, the longest at the start: parts of each residue, and parts of none ("")."""
    own = [(residue, part) for part in OF_TORSIONS for residue in residues]
    return [*own, *(("", part) for part in reversed(PARTS))]


def measurer(setup: tuple[FrameTable, FrameTable, Rows, int]) -> OneByOne:
    """Target of a `knotflow.ranks.Team`: the measures of a task, see `tasks`."""
    data, drawn, block, seed = setup

    def work(task: tuple[str, str]) -> Measures:
        residue, part = task
        if residue:
            return of_torsions(residue, data, drawn, block, seed, [part])
        return PARTS[part](data, drawn, block, seed)

    return OneByOne(work)


def log_weights(drawn: FrameTable) -> Floats:
    """Log-weights of samples; minus infinity if the handedness is wrong or a number is not finite."""
    return weights.log_weights(drawn.log_prob, drawn.energy, drawn.handed)


def reweighted(drawn: FrameTable) -> Floats:
    """Normalised weights of samples, the largest clipped; NaN if all are zero."""
    return weights.normalised(weights.clipped(log_weights(drawn)))


def without_data(drawn: FrameTable, seed: int) -> Measures:
    """The measures that need samples only; log Z is estimated by importance sampling."""
    log_w, nothing = log_weights(drawn), drawn.of_rows(slice(0))
    z, no_block = free_energy.importance(log_w), np.empty(0, dtype=np.intp)
    found = {
        **_measured(
            "nats",
            reverse_kl=("KL(flow ‖ target)", free_energy.reverse_kl(z, log_w)),
            log_z=("log Z, importance sampling", z.estimate()),
        ),
        **efficiency(log_w, seed),
        **forces(nothing, drawn, no_block, seed),
        **counts(nothing, drawn),
    }
    return {key: measure for key, measure in found.items() if math.isfinite(measure.value)}


def likelihood(data: FrameTable, drawn: FrameTable, block: Rows) -> Measures:
    """Negative log-likelihood, its lower limit, both divergences, and log Z by two estimators."""
    log_w, log_w_data = log_weights(drawn), -data.energy - data.log_prob
    cut = weights.log_weights(drawn.log_prob, distances.cut_energy(drawn.energy), np.isfinite(log_w))
    by_samples = free_energy.importance(log_w, len(data))
    by_both = free_energy.bar(log_w, log_w_data)
    z = by_both if math.isfinite(by_both.value) else by_samples
    inside = np.isfinite(data.log_prob)
    lost = (~inside).sum()
    note = f"{lost:,} frames without a finite density, such as outside the flow's intervals, are left out."
    apart = "samples and data have nothing in common, so log Z is that of importance sampling."
    return _measured(
        "nats",
        nll=("NLL of the data", mean(-data.log_prob[inside], block[inside]), note if lost else ""),
        nll_limit=("lowest possible: mean u + log Z", free_energy.nll_limit(z, data.energy, block)),
        forward_kl=("above it: KL(target ‖ flow)", free_energy.forward_kl(z, log_w_data, block)),
        reverse_kl=("KL(flow ‖ target)", free_energy.reverse_kl(z, log_w, block)),
        reverse_kl_cut=("the same, energies cut at 1,000 kT", free_energy.reverse_kl(z, cut, block)),
        log_z=(
            "log Z, importance sampling", by_samples.estimate(), _disagreement(by_samples, by_both, block)
        ),
        log_z_bar=(
            "log Z, Bennett's acceptance ratio", by_both.estimate(block), "" if z is by_both else apart
        ),
    )  # fmt: skip


def as_in_the_paper(data: FrameTable, drawn: FrameTable, block: Rows) -> Measures:
    """The columns of the paper's Table 1, in its measure, which leaves out the volume of the rigid frame."""
    inside = np.isfinite(data.paper_log_prob)
    finite = np.isfinite(drawn.energy) & np.isfinite(drawn.paper_log_prob)
    kld = distances.cut_energy(drawn.energy[finite]) + drawn.paper_log_prob[finite]
    log_w = weights.log_weights(drawn.paper_log_prob, drawn.energy, drawn.handed)
    return _measured(
        "nats",
        nll_paper=("NLL in the paper's measure", mean(-data.paper_log_prob[inside], block[inside])),
        kld_paper=("KLD as in the paper, log Z missing", mean(kld)),
        log_z_paper=("log Z in the paper's measure", free_energy.importance(log_w).estimate()),
    )


def efficiency(log_w: Floats, seed: int) -> Measures:
    """Effective sample sizes as shares of all samples, and the tail of the weights."""

    def statistic(rows: Rows) -> Floats:
        chosen = log_w[rows]
        shares = [weights.effective_share(w) for w in (chosen, weights.clipped(chosen))]
        return np.array([*shares, weights.pareto_k(chosen)])

    share, clipped, k = _estimates(statistic, np.arange(len(log_w)), seed=seed)
    doubt = f"above {TRUSTED_K}, neither the weights nor error bars of reweighted results can be trusted."
    return _measured(
        "",
        ess=("effective sample size, share", share),
        ess_clipped=("the same, weights clipped", clipped),
        pareto_k=("Pareto k of the weights", k, doubt if k.value > TRUSTED_K else ""),
    )


def effective_in(log_w: Floats, seed: int) -> Estimate:
    """Effective sample size of a state as a share of its samples; NaN if they are fewer than `FEWEST`."""
    if len(log_w) < FEWEST:
        return Estimate(math.nan)

    def share(rows: Rows) -> float:
        return weights.effective_share(log_w[rows])

    return Estimate(share(np.arange(len(log_w))), float(bootstrap(share, np.arange(len(log_w)), seed=seed)))


def forces(data: FrameTable, drawn: FrameTable, block: Rows, seed: int) -> Measures:
    """Squared errors of the flow's forces, averaged over frames, atoms and directions."""
    unit = "(kT/nm)²"
    measured = np.isfinite(data.force_error)
    on_data = mean(data.force_error[measured], block[measured])
    errors = drawn.force_error[np.isfinite(drawn.force_error)]
    lost = len(drawn) - len(errors)
    note = f"without {lost:,} samples whose forces are not finite." if lost else ""

    def statistic(rows: Rows) -> list[float]:
        return [float(np.median(errors[rows])) if len(rows) else math.nan]

    (median,) = _estimates(statistic, np.arange(len(errors)), seed=seed)
    return {
        **_measured(unit, force_error=("squared error of forces, data", on_data)),
        **_measured(f"1e4 {unit}", force_error_1e4=("the same in the paper's unit", on_data * 1e-4)),
        **_measured(
            unit,
            force_error_samples=("squared error of forces, samples", mean(errors), note),
            force_error_samples_median=("the same, median over samples", median),
        ),
    }


def energies(data: FrameTable, drawn: FrameTable, block: Rows, seed: int) -> Measures:
    """Wasserstein distances of energies: samples and reweighted samples to data, and between halves of it."""
    thin = slice(None, None, -(-len(data) // FRAMES_FOR_ENERGIES))
    u, v = distances.capped(drawn.energy, data.energy), data.energy[thin]
    w = reweighted(drawn)

    def statistic(rows: Rows, frames: Rows) -> list[float]:
        return [distances.energy_distance(u[rows], v[frames], weight) for weight in (None, w[rows])]

    raw, weighted = _estimates(statistic, np.arange(len(u)), block[thin], seed=seed)
    halves = _between_halves(block[thin], lambda a, b: distances.energy_distance(v[a], v[b]))
    return _measured(
        "kT",
        energy_w2=("W2 of energies, samples", raw),
        energy_w2_reweighted=("W2 of energies, reweighted", weighted),
        energy_w2_data=("W2 of energies, halves of the data", halves),
    )


def counts(data: FrameTable, drawn: FrameTable) -> Measures:
    """Numbers of unusable samples, the accuracy of log p, and the number of energy evaluations."""
    finite = np.isfinite(drawn.energy) & np.isfinite(drawn.log_prob)
    again = np.abs(drawn.round_trip[np.isfinite(drawn.round_trip)])
    within = float(np.quantile(again, 0.99)) if len(again) else math.nan
    return {
        **_measured("nats", round_trip=("log p computed again, 99 % within", within)),
        **_measured(
            "",
            wrong_handed=("samples of wrong handedness", float((~drawn.handed).sum())),
            not_finite=("samples not finite", float((~finite).sum())),
            energy_evaluations=("energy evaluations", float(len(drawn) + min(COMPARED, len(data)))),
        ),
    }


def of_torsions(
    residue: str,
    data: FrameTable,
    drawn: FrameTable,
    block: Rows,
    seed: int,
    parts: Sequence[str] | None = None,
) -> Measures:
    """Compare (phi, psi) of a residue in data, samples, and reweighted samples.

    Measures that end in ``_data`` compare one half of the blocks of data with the other: no samples can be
    expected to come closer. There are no measures if no sample has finite positions.

    Args:
        residue: The residue.
        data: Frames.
        drawn: Samples.
        block: The block of each frame.
        seed: Seed of the error bars.
        parts: Names in `OF_TORSIONS`; by default all.
    """
    finite = np.isfinite(drawn.torsions[residue]).all(1)
    if not finite.any():
        return {}
    log_w = log_weights(drawn)
    both = log_w[finite], weights.clipped(log_w)[finite]
    pairs = Pairs(drawn.torsions[residue][finite], data.torsions[residue], *both, data.replica, block)
    return joined(OF_TORSIONS[part](pairs, seed) for part in (OF_TORSIONS if parts is None else parts))


def _three(key: str, *found: Estimate | float, text: str, unit: str = "") -> Measures:
    """One measure of data, of samples, and of reweighted samples."""
    kinds = zip(("_data", "", "_reweighted"), found, strict=True)
    return {f"{key}{kind}": Measure.of(text, estimate, unit=unit) for kind, estimate in kinds}


def histograms(
    angles: Floats, truth: Floats, log_w: Floats, block: Rows, seed: int, bins: int = distances.BINS
) -> Measures:
    """Divergence and total variation of histograms of (phi, psi), see `of_torsions`.

    Args:
        angles: (phi, psi) of samples, in rad, shape ``(n, 2)``.
        truth: The same of data, shape ``(m, 2)``.
        log_w: Log-weights of the samples.
        block: The block of each row of data.
        seed: Seed of the error bars.
        bins: Number of bins along each angle.
    """
    w, cells, own = weights.normalised(log_w), *(distances.torus_cells(x, bins) for x in (angles, truth))
    functions = distances.divergence, distances.total_variation

    def statistic(rows: Rows, frames: Rows) -> list[float]:
        reference = distances.histogram(own[frames], bins=bins)
        others = [distances.histogram(cells[rows], weight, bins) for weight in (None, w[rows])]
        return [function(reference, other) for function in functions for other in others]

    def halves(function: Callable[[Floats, Floats], float]) -> float:
        return _between_halves(
            block,
            lambda a, b: function(*(distances.histogram(own[rows], bins=bins) for rows in (a, b))),
        )

    kl, kl_weighted, tv, tv_weighted = _estimates(statistic, np.arange(len(angles)), block, seed=seed)
    kl_data, tv_data = map(halves, functions)
    return {
        **_three("histogram_kl", kl_data, kl, kl_weighted, text="KL of histograms", unit="nats"),
        **_three("histogram_tv", tv_data, tv, tv_weighted, text="total variation"),
    }


def _torus(own: Pairs, seed: int, *, weighted: bool) -> Measures:
    """Wasserstein distances of a few points of each set, drawn at random, of samples or reweighted ones."""
    angles, truth, log_w, block = own.angles, own.truth, own.log_w, own.block

    def some(points: Floats, random: np.random.Generator) -> Floats:
        return points[random.choice(len(points), min(POINTS, len(points)), replace=False)]

    def statistic(rows: Rows, frames: Rows) -> list[float]:
        random = np.random.default_rng(seed)
        reference, drawn = some(truth[frames], random), some(angles[rows], random)
        if weighted:
            if not np.isfinite(log_w[rows]).any():
                return [math.nan]
            drawn = angles[rows][weights.resampled(log_w[rows], len(drawn), random)]
        return [distances.torus_distance(reference, drawn)]

    def distance(a: Rows, b: Rows) -> float:
        random = np.random.default_rng(seed)
        return distances.torus_distance(some(truth[a], random), some(truth[b], random))

    (found,) = _estimates(statistic, np.arange(len(angles)), block, seed=seed, repeats=DISTANCES)
    text, unit = "W2 on the torus", "rad"
    if weighted:
        return _measured(unit, torus_w2_reweighted=(text, found))
    return _measured(unit, torus_w2_data=(text, _between_halves(block, distance)), torus_w2=(text, found))


def _sides(phi: Floats, truth: Floats, log_w: Floats, replica: ArrayLike, block: Rows, seed: int) -> Measures:
    found = _three(
        "side_difference",
        free_energy.side_of_frames(truth, replica, block=block, seed=seed),
        free_energy.side_of_samples(phi, seed=seed),
        free_energy.side_of_samples(phi, weights.normalised(log_w), seed=seed),
        text="F(phi>0) - F(phi<0)",
        unit="kT",
    )
    return {key: replace(measure, note=note_of_visits(measure)) for key, measure in found.items()}


def note_of_visits(difference: Estimate) -> str:
    """Why a free energy difference, or its error bar, is missing."""
    if math.isnan(difference.value):
        return "no weight at all."
    if math.isinf(difference.value):
        return f"phi {'<' if difference.value < 0 else '>'} 0 is never visited."
    return "one of the sides is visited too rarely for an error bar." if math.isnan(difference.error) else ""


def _disagreement(by_samples: free_energy.LogZ, by_both: free_energy.LogZ, block: Rows) -> str:
    """A warning if the two estimates of log Z are too far apart for their error bars."""
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
    """Values of a statistic of all rows, with bootstrap errors."""
    values = statistic(*(np.arange(len(label)) for label in labels))
    errors = bootstrap(statistic, *labels, seed=seed, repeats=repeats)
    return [Estimate(float(value), float(error)) for value, error in zip(values, errors, strict=True)]


def _between_halves(block: Rows, distance: Callable[[Rows, Rows], float]) -> float:
    """Distance between two halves of the blocks, every other one in each; NaN with a single block."""
    halves = [np.flatnonzero(block % 2 == parity) for parity in (0, 1)]
    return distance(*halves) if all(len(half) for half in halves) else math.nan


class Pairs(NamedTuple):
    """Torsions (phi, psi) of a residue in samples and frames."""

    angles: Floats
    """Of samples, (n, 2)."""
    truth: Floats
    """Of frames, (m, 2)."""
    raw: Floats
    """Log-weights of the samples."""
    log_w: Floats
    """The same, clipped."""
    replica: ArrayLike
    block: Rows


def _shares(pairs: Pairs, seed: int) -> Measures:
    """The effective sample size on either side of phi."""
    left = pairs.angles[:, 0] <= 0
    return _measured(
        "",
        ess_left=("effective sample size, phi < 0", effective_in(pairs.raw[left], seed)),
        ess_right=("effective sample size, phi > 0", effective_in(pairs.raw[~left], seed)),
    )


OF_TORSIONS: Final[dict[str, Callable[[Pairs, int], Measures]]] = {
    "histograms": lambda own, seed: histograms(own.angles, own.truth, own.log_w, own.block, seed),
    "torus": lambda own, seed: _torus(own, seed, weighted=False),
    "torus, reweighted": lambda own, seed: _torus(own, seed, weighted=True),
    "sides": lambda own, seed: _sides(
        own.angles[:, 0], own.truth[:, 0], own.log_w, own.replica, own.block, seed
    ),
    "shares": _shares,
}
"""Measures of a residue, in the order in which they are shown."""

PARTS: Final[dict[str, Callable[[FrameTable, FrameTable, Rows, int], Measures]]] = {
    "likelihood": lambda data, drawn, block, seed: likelihood(data, drawn, block),
    "paper": lambda data, drawn, block, seed: as_in_the_paper(data, drawn, block),
    "efficiency": lambda data, drawn, block, seed: efficiency(log_weights(drawn), seed),
    "forces": lambda data, drawn, block, seed: forces(data, drawn, block, seed),
    "energies": lambda data, drawn, block, seed: energies(data, drawn, block, seed),
    "counts": lambda data, drawn, block, seed: counts(data, drawn),
}
"""Measures that do not belong to a residue, in the order in which they are shown."""
