r"""Exact samples with a flow against long molecular dynamics: are the distributions the same?

Chains of flow proposals and hybrid Monte Carlo on the true energy (`knotflow.dynamics.FlowMonteCarlo`) must
give the averages of molecular dynamics, whatever the flow. Both have error bars from their independent
parts, chains and replicas, so deviations are given in error bars.

Plain dynamics crosses the barrier between phi < 0 and phi > 0 so rarely that its replicas disagree on the
weights of the two sides. So the frames with phi < 0 are also compared separately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.agreement import BINS, Agreement, Ensemble, agreement, ensemble, filled
from knotflow.analysis.chain_summary import Memory, summary_of_chains
from knotflow.analysis.frame_table import check_same_molecule
from knotflow.analysis.free_energy import side_of_frames
from knotflow.dynamics.chain_run import ExactPlan, open_run
from knotflow.energies import MolecularEnergy
from knotflow.files import write_json
from knotflow.progress import Progress
from knotflow.report.comparison_plots import SampleSet, draw_comparison
from knotflow.report.figures import save
from knotflow.statistics.estimates import Estimate
from knotflow.storage import trajectory
from knotflow.storage.observables import Observables, read_observables
from knotflow.workflows.models import energy_of

Floats = NDArray[np.float64]

NORMAL: Final = math.sqrt(2 / math.pi)
"""Mean absolute value of a standard normal variable."""


@dataclass(frozen=True)
class Side:
    """Averages of one set of samples."""

    name: str
    n_frames: int
    n_replicas: int
    energy: Estimate
    """In kT."""
    left: Estimate | None
    """Fraction with phi > 0, for the first residue with phi and psi; None if there is none."""
    difference: Estimate | None
    """F(phi > 0) - F(phi < 0) in kT; infinite if one side was never visited."""


@dataclass(frozen=True)
class Variation:
    """Total variation of two histograms of (phi, psi): half the sum of all differences of bins."""

    value: float
    expected: float
    """The mean that noise alone gives, by the error bars of the bins; values near it are fine."""


@dataclass(frozen=True)
class Comparison:
    """Two sets of samples and their deviations."""

    chains: Side
    data: Side
    agreement: Agreement
    """Deviations in error bars."""
    difference: float
    """Deviation of F(phi > 0) - F(phi < 0) in error bars; NaN unless both are known."""
    largest: float
    """Largest deviation in error bars among the bins of (phi, psi) with enough frames in both sets."""
    variation: Variation
    right_variation: Variation
    """Among frames with phi < 0."""
    deviations: list[list[float]]
    """Deviations of the bins of (phi, psi) in error bars; NaN with too few frames, empty without torsions."""


@dataclass(frozen=True)
class Result:
    """A comparison, and the cost of the chains."""

    comparison: Comparison
    flow_acceptance: float
    hmc_acceptance: float
    memory: dict[str, Memory]
    """Autocorrelation times in rows, and numbers of independent samples."""
    every: int
    """Cycles between rows."""
    evaluations: int
    """Evaluations of the energy."""
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
    """Run the chains, or the missing part of them, and compare them with a trajectory.

    Args:
        model: The model file.
        data: A long trajectory of the same molecule at the same temperature.
        out: Folder for ``chains.h5``, ``exact.json`` and ``exact.png``.
        plan: Length and moves of the chains.
        double: Whether the model computes in double precision.
        energy: The true energy; None: the force field compiled in torch or, if torch lacks one of its forces,
            by OpenMM.
        progress: Called with the progress of the chains.

    Raises:
        ValueError: if the trajectory is of another molecule, or the folder holds other chains.
    """
    chains = open_run(out / "chains.h5", model, plan, double=double)
    check_same_molecule(chains.system, trajectory.open_info(data).system)
    if not chains.finished:
        with energy_of(chains.system, energy, compiled=True) as target:
            chains.run(target, progress)
    ours, theirs = read("chains", chains.path), read("dynamics", data)
    result = Result(
        comparison=compare(ours, theirs),
        flow_acceptance=chains.moves["flow"].acceptance,
        hmc_acceptance=chains.moves["hmc"].acceptance,
        memory=summary_of_chains(ours.columns).memory,
        every=chains.plan.every,
        evaluations=chains.evaluations,
        seconds=chains.seconds,
    )
    write_json(out / "exact.json", result)
    deviations = result.comparison.deviations
    figure = draw_comparison(theirs.samples, ours.samples, np.array(deviations) if deviations else None)
    save(figure, out / "exact.png")
    return result


@dataclass(frozen=True, eq=False)
class Observed:
    """Everything that is compared of a trajectory file."""

    columns: Observables
    ensemble: Ensemble
    samples: SampleSet
    side: Side


def read(name: str, path: Path) -> Observed:
    """Averages, energies, and torsions of the first residue that has them."""
    found = read_observables(path, bonds=True)
    angles = next(iter(found.torsions.values()), None)
    difference = None if angles is None else side_of_frames(angles[:, 0], found.replica)
    every = ensemble(found)
    energy, left = every.averages["energy"], every.averages.get("left")
    side = Side(name, every.n_frames, every.n_replicas, energy, left, difference)
    return Observed(found, every, SampleSet(name, found.energy, angles), side)


def compare(chains: Observed, data: Observed) -> Comparison:
    """Compare chains with a trajectory of the same molecule."""
    z = bin_deviations(chains.ensemble, data.ensemble)
    known = np.abs(z[np.isfinite(z)])
    return Comparison(
        chains=chains.side,
        data=data.side,
        agreement=agreement(chains.ensemble, data.ensemble),
        difference=_deviation(chains.side.difference, data.side.difference),
        largest=float(known.max()) if known.size else math.nan,
        variation=variation(chains.ensemble, data.ensemble, "bin"),
        right_variation=variation(chains.ensemble, data.ensemble, "right"),
        deviations=z.tolist(),
    )


def bin_deviations(a: Ensemble, b: Ensemble) -> Floats:
    """Deviations of the bins of (phi, psi) in error bars, shape (bins, bins); NaN with too few frames.

    Without torsions the shape is (0,).
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


def _deviation(a: Estimate | None, b: Estimate | None) -> float:
    if a is None or b is None:
        return math.nan
    gap = a - b
    return gap.value / gap.error if gap.error > 0 and math.isfinite(gap.value) else math.nan
