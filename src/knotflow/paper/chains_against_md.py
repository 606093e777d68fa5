r"""Exact samples with a flow against long molecular dynamics: the same distribution?

Chains of flow proposals and hybrid Monte Carlo on the true energy (`knotflow.dynamics.FlowMonteCarlo`) must
give the averages of molecular dynamics, whatever the flow. Both have error bars from their independent
parts, chains and replicas, so deviations are told in error bars.

Plain dynamics crosses the barrier between phi < 0 and phi > 0 so rarely that its replicas do not agree on the
weight of the sides. So comparisons are also made among the frames with phi < 0.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.agreement import BINS, Agreement, Ensemble, agreement, ensemble, filled
from knotflow.analysis.chain_summary import Memory, side_with_error, summary_of_chains
from knotflow.analysis.frame_table import check_same_molecule
from knotflow.dynamics.chain_run import ExactPlan, ExactRun, open_run
from knotflow.energies import MolecularEnergy, force_field
from knotflow.files import write_json
from knotflow.progress import Progress
from knotflow.report.comparison_plots import SampleSet, draw_comparison
from knotflow.report.figures import save
from knotflow.statistics.estimates import Estimate
from knotflow.storage import trajectory
from knotflow.storage.observables import Observables, read_observables

Floats = NDArray[np.float64]

NORMAL: Final = math.sqrt(2 / math.pi)
"""Mean size of a normal number of standard deviation one."""


@dataclass(frozen=True)
class Side:
    """Averages of one set of samples."""

    name: str
    n_frames: int
    n_replicas: int
    energy: Estimate
    """In kT."""
    left: Estimate | None
    """Fraction with phi > 0, of the first residue with phi and psi; None without such a residue."""
    difference: Estimate | None
    """F(phi > 0) - F(phi < 0) in kT; infinite if one of them was never visited."""


@dataclass(frozen=True)
class Variation:
    """Total variation of two histograms of (phi, psi), half the sum of all differences of bins."""

    value: float
    expected: float
    """What noise alone gives on average, by the error bars of the bins: near it nothing is wrong."""


@dataclass(frozen=True)
class Comparison:
    """Two sets of samples, and how far they are apart."""

    chains: Side
    data: Side
    agreement: Agreement
    """Deviations in error bars."""
    difference: float
    """Deviation of F(phi > 0) - F(phi < 0) in error bars; NaN if it is not known of both."""
    largest: float
    """The largest deviation of a bin of (phi, psi) that has enough frames in both, in error bars."""
    variation: Variation
    right_variation: Variation
    """Among frames with phi < 0."""
    deviations: list[list[float]]
    """Of the bins of (phi, psi), in error bars, NaN where frames are too few; empty without torsions."""


@dataclass(frozen=True)
class Result:
    """A comparison, and what the chains took."""

    comparison: Comparison
    flow_acceptance: float
    hmc_acceptance: float
    memory: dict[str, Memory]
    """Autocorrelation times in rows, and numbers of independent samples."""
    every: int
    """Cycles from row to row."""
    evaluations: int
    """Of the energy."""
    seconds: float


def run(
    model: Path,
    data: Path,
    out: Path,
    plan: ExactPlan,
    *,
    double: bool = False,
    energy: MolecularEnergy | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run what is missing of the chains, and compare them with a trajectory.

    Args:
        model: The model file.
        data: A long trajectory of the same molecule at the same temperature.
        out: Folder for ``chains.h5``, ``exact.json`` and ``exact.png``.
        plan: How long the chains are, and by which moves.
        double: Whether the model computes in double precision.
        energy: The true energy; by default the compiled force field in torch, or OpenMM's if it cannot be.
        progress: Called with the progress of the chains.

    Raises:
        ValueError: if the trajectory is of another molecule, or the folder holds other chains.
    """
    chains = open_run(out / "chains.h5", model, plan, double=double)
    check_same_molecule(chains.system, trajectory.open_info(data).system)
    if not chains.finished:
        with nullcontext(energy) if energy else force_field(chains.system, compiled=True) as target:
            chains.run(target, progress)
    ours, theirs = read("chains", chains.path), read("dynamics", data)
    result = _result(chains, compare(ours, theirs), summary_of_chains(ours.columns).memory)
    write_json(out / "exact.json", result)
    deviations = result.comparison.deviations
    figure = draw_comparison(theirs.samples, ours.samples, np.array(deviations) if deviations else None)
    save(figure, out / "exact.png")
    return result


@dataclass(frozen=True, eq=False)
class Observed:
    """All that is compared of a trajectory file."""

    columns: Observables
    ensemble: Ensemble
    samples: SampleSet
    difference: Estimate | None
    """F(phi > 0) - F(phi < 0) in kT."""

    def side(self) -> Side:
        """Its averages."""
        found = self.ensemble
        energy, left = found.averages["energy"], found.averages.get("left")
        return Side(self.samples.name, found.n_frames, found.n_replicas, energy, left, self.difference)


def read(name: str, path: Path) -> Observed:
    """Averages, energies, and torsions of the first residue that has them."""
    found = read_observables(path, bonds=True)
    angles = next(iter(found.torsions.values()), None)
    difference = None if angles is None else side_with_error(angles[:, 0], found.replica)
    return Observed(found, ensemble(found), SampleSet(name, found.energy, angles), difference)


def compare(chains: Observed, data: Observed) -> Comparison:
    """Compare chains with a trajectory of the same molecule."""
    z = bin_deviations(chains.ensemble, data.ensemble)
    known = np.abs(z[np.isfinite(z)])
    return Comparison(
        chains=chains.side(),
        data=data.side(),
        agreement=agreement(chains.ensemble, data.ensemble),
        difference=_deviation(chains.difference, data.difference),
        largest=float(known.max()) if known.size else math.nan,
        variation=variation(chains.ensemble, data.ensemble, "bin"),
        right_variation=variation(chains.ensemble, data.ensemble, "right"),
        deviations=z.tolist(),
    )


def bin_deviations(a: Ensemble, b: Ensemble) -> Floats:
    """Deviations of the bins of (phi, psi), in error bars, shape (bins, bins); NaN for those of few frames.

    Without torsions its shape is (0,).
    """
    if "bin 0,0" not in a.counts:
        return np.zeros(0)
    found = np.full((BINS, BINS), math.nan)
    for key in filled(a, b, "bin"):
        m, n = map(int, key.removeprefix("bin ").split(","))
        found[m, n] = _deviation(a.averages[key], b.averages[key])
    return found


def variation(a: Ensemble, b: Ensemble, prefix: str) -> Variation:
    r"""Total variation of bins with a prefix, and its mean by noise, $\frac12 \sum \sigma \sqrt{2/\pi}$."""
    keys = [key for key in a.counts if key.startswith(prefix)]
    if not keys:
        return Variation(math.nan, math.nan)
    gaps = [a.averages[key] - b.averages[key] for key in keys]
    return Variation(0.5 * sum(abs(gap.value) for gap in gaps), 0.5 * NORMAL * sum(gap.error for gap in gaps))


def _result(chains: ExactRun, comparison: Comparison, memory: dict[str, Memory]) -> Result:
    moves = chains.moves
    return Result(
        comparison=comparison,
        flow_acceptance=moves["flow"].acceptance,
        hmc_acceptance=moves["hmc"].acceptance,
        memory=memory,
        every=chains.plan.every,
        evaluations=chains.evaluations,
        seconds=chains.seconds,
    )


def _deviation(a: Estimate | None, b: Estimate | None) -> float:
    if a is None or b is None:
        return math.nan
    gap = a - b
    return gap.value / gap.error if gap.error > 0 and math.isfinite(gap.value) else math.nan
