r"""Free energies: that of the target, $-\log Z$, by two estimators, and that between the sides of a torsion.

The *work* of a configuration is $w = \log p + u$, minus its log-weight. With samples of the flow and data of
the target, the mean of $w$ gives the two Kullback-Leibler divergences once $\log Z$ is known:

$$\mathrm{KL}(\text{target} \| p) = -\langle w \rangle_\text{data} - \log Z, \qquad
  \mathrm{KL}(p \| \text{target}) = \langle w \rangle_\text{samples} + \log Z .$$

Estimates keep their influences (`knotflow.statistics.estimates`), because $\log Z$ and $\langle w \rangle$
come from the same rows and their errors partly cancel.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from knotflow.extras import optional
from knotflow.statistics.estimates import Estimate, Floats, Rows, spread
from knotflow.statistics.populations import Bools, of_frames, of_samples
from knotflow.statistics.weights import log_mean_exp, normalised

FAR: Final = 300.0
"""In kT: work this far above the free energy has no influence and is cut, which avoids overflow."""
ROOT: Final = 1e-6
"""Largest distance from the root at which `bar` counts as converged, in kT."""


@dataclass(frozen=True, eq=False)
class LogZ:
    """An estimate of log Z, with the influence of each sample and of each frame of data on it."""

    value: float
    samples: Floats
    data: Floats

    def estimate(self, block: Rows | None = None) -> Estimate:
        """The estimate with its standard error, given the block of each frame of data."""
        return Estimate(self.value, _error(self.samples, self.data, block))


def importance(log_w: Floats, n_data: int = 0) -> LogZ:
    r"""$\log Z$ by importance sampling, $\log \frac1n \sum W$, from log-weights (n,) of samples.

    It cannot detect a basin that the flow leaves out. NaN if all weights are zero.
    """
    value = log_mean_exp(log_w)
    if not math.isfinite(value):
        return LogZ(math.nan, np.full(len(log_w), np.nan), np.zeros(n_data))
    return LogZ(value, normalised(log_w) - 1 / len(log_w), np.zeros(n_data))


def bar(log_w: Floats, log_w_data: Floats) -> LogZ:
    r"""$\log Z$ by Bennett's acceptance ratio, from samples of the flow and data of the target.

    With the Fermi function $f(x) = 1/(1 + e^x)$ and $M = \log n/n_\text{data}$ it is the root $F = -\log Z$
    of

    $$\sum_\text{samples} f(w - F + M) = \sum_\text{data} f(F - w - M) ,$$

    the estimate of least variance (Bennett, J. Comput. Phys. 22, 1976; Shirts et al., PRL 91, 2003). The
    influence of a row is its deviation from the mean of $f$, divided by the slope of the equation.

    Args:
        log_w: Log-weights $-w$ of samples, shape ``(n,)``; $-\infty$ where the target has no density.
        log_w_data: Log-weights of data, shape ``(n_data,)``; infinite for frames without density.

    Returns:
        The estimate; NaN if samples and data have nothing in common.
    """
    nothing = LogZ(math.nan, np.full(len(log_w), np.nan), np.full(len(log_w_data), np.nan))
    # Exponential averages bound the root: from above those of samples, from below those of data.
    high, low = -log_mean_exp(log_w), log_mean_exp(-log_w_data)
    if not (math.isfinite(high) and math.isfinite(low)) or low - high > FAR or high - low > FAR:
        return nothing
    forward, backward = np.minimum(-log_w, high + FAR), np.minimum(log_w_data, FAR - low)
    F = _root(forward, backward)
    for _ in range(3):  # Newton steps give the last digits and measure the remaining error
        f, g, slope = _equation(forward, backward, F)
        if not (math.isfinite(F) and slope > 0):
            return nothing
        step = float((f.sum() - g.sum()) / slope)
        F -= step
    if abs(step) > ROOT:
        return nothing
    return LogZ(-F, (f - f.mean()) / slope, -(g - g.mean()) / slope)


def forward_kl(z: LogZ, log_w_data: Floats, block: Rows | None = None) -> Estimate:
    r"""$\mathrm{KL}(\text{target} \| p)$ in nats: how far the NLL of data is above its lower limit.

    Frames without density (infinite log-weight) would make it infinite; they are left out of the average.
    """
    usable = np.isfinite(log_w_data)
    if not usable.any():
        return Estimate(math.nan)
    average = float(log_w_data[usable].mean())
    influence = -z.data
    influence[usable] += (log_w_data[usable] - average) / int(usable.sum())
    return Estimate(average - z.value, _error(z.samples, influence, block))


def nll_limit(z: LogZ, u_data: Floats, block: Rows | None = None) -> Estimate:
    r"""$\langle u \rangle_\text{data} + \log Z$, the entropy of the target: no density has a lower NLL."""
    average = float(u_data.mean())
    return Estimate(average + z.value, _error(z.samples, (u_data - average) / len(u_data) + z.data, block))


def reverse_kl(z: LogZ, log_w: Floats, block: Rows | None = None) -> Estimate:
    r"""$\mathrm{KL}(p \| \text{target})$ in nats, for the flow without its samples of weight zero.

    If a share $s$ of the samples has weight, their density is $p/s$, and the divergence is
    $\langle w \rangle + \log Z - \log s$ with an average over them.
    """
    usable = np.isfinite(log_w)
    n, count = len(log_w), int(usable.sum())
    if count == 0:
        return Estimate(math.nan)
    work = -log_w[usable]
    influence = z.samples.copy()
    influence[usable] += (work - work.mean()) / count
    influence -= usable / count - 1 / n
    return Estimate(float(work.mean()) + z.value - math.log(count / n), _error(influence, z.data, block))


def between(
    first: LogZ, second: LogZ, blocks: tuple[Rows | None, Rows | None] = (None, None), *, same_samples: bool
) -> Estimate:
    r"""$F_2 - F_1 = \log Z_1 - \log Z_2$ in kT, the free energy between two targets, by way of flows.

    Args:
        first: Of the first target.
        second: Of the second.
        blocks: The block of each frame of data, for both targets.
        same_samples: Whether both estimates are of the same samples, weighted by one energy and by the other:
            their errors then partly cancel.
    """
    if same_samples:
        drawn = spread(first.samples - second.samples)
    else:
        drawn = math.hypot(spread(first.samples), spread(second.samples))
    frames = [
        spread(z.data, block) if z.data.any() else 0.0
        for z, block in zip((first, second), blocks, strict=True)
    ]
    return Estimate(first.value - second.value, math.hypot(drawn, *frames))


def side_difference(angle: Floats, weight: Floats | None = None) -> float:
    r"""$F(\text{angle} > 0) - F(\text{angle} < 0)$ in kT: $-\log$ of the ratio of the weights of both sides.

    Infinite if only one of the sides was visited, NaN if none.

    Args:
        angle: In rad, from $-\pi$ to $\pi$, shape ``(n,)``.
        weight: Weight of each angle; equal by default.
    """
    weight = np.ones_like(angle) if weight is None else weight
    above, below = float(weight[angle > 0].sum()), float(weight[angle <= 0].sum())
    if above > 0 and below > 0:
        return math.log(below / above)
    return math.inf if below > 0 else -math.inf if above > 0 else math.nan


def side_of_frames(
    angle: Floats, replica: ArrayLike, *, block: Rows | None = None, seed: int = 0
) -> Estimate:
    r"""`side_difference` of frames of a simulation, see `knotflow.statistics.populations.of_frames`.

    Args:
        angle: In rad, from $-\pi$ to $\pi$, shape ``(n,)``; rows of a replica in the order of time.
        replica: The independent simulation of each row.
        block: The block of each row; those of `knotflow.statistics.estimates.blocks` by default.
        seed: Seed of the bootstrap.
    """
    return of_frames(_sides(angle), replica, block=block, seed=seed).differences[0, 1]


def side_of_samples(angle: Floats, weight: Floats | None = None, *, seed: int = 0) -> Estimate:
    r"""`side_difference` of independent samples, see `knotflow.statistics.populations.of_samples`.

    Args:
        angle: In rad, from $-\pi$ to $\pi$, shape ``(n,)``.
        weight: Weight of each sample; equal by default.
        seed: Seed of the bootstrap.
    """
    return of_samples(_sides(angle), weight, seed=seed).differences[0, 1]


def _sides(angle: Floats) -> Bools:
    """Whether each angle is on the left, and on the right."""
    return np.stack((angle <= 0, angle > 0), 1)


def _error(samples: Floats, data: Floats, block: Rows | None) -> float:
    """Standard error from the influences of two independent sets; a set without influence adds none."""
    return math.hypot(spread(samples), spread(data, block) if data.any() else 0.0)


def import_pymbar() -> ModuleType:
    """The package pymbar, without the warnings it prints on import, such as that JAX is missing."""
    for name in ("pymbar.mbar_solvers", "pymbar.timeseries"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with optional("free energies"):
        return import_module("pymbar")


def _root(forward: Floats, backward: Floats) -> float:
    """Approximate root of Bennett's equation, by pymbar."""
    pymbar = import_pymbar()
    try:
        found = pymbar.bar(forward, backward, compute_uncertainty=False, relative_tolerance=1e-8)
    except (pymbar.utils.BoundsError, pymbar.utils.ConvergenceError):
        return math.nan
    return float(found["Delta_f"])


def _equation(forward: Floats, backward: Floats, F: float) -> tuple[Floats, Floats, float]:
    """Both sides of Bennett's equation, row by row, and the derivative of their difference."""
    M = math.log(len(forward) / len(backward))
    f = np.exp(-np.logaddexp(0, forward - F + M))
    g = np.exp(-np.logaddexp(0, backward + F - M))
    return f, g, float((f * (1 - f)).sum() + (g * (1 - g)).sum())
