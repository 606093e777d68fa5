r"""How well energy is conserved once the thermostat is off: the drift score.

For every replica, over the records of production until it stopped, with $n$ degrees of freedom and the total
energy $E(t)$ in kT:

- **slope**: of the straight line through $E(t)$ by least squares, by $n$, in kT/ps per degree of freedom;
- **deviation**: standard deviation of $E(t)$, by $n$, in kT per degree of freedom;
- **temperature**: mean of the kinetic temperature, in K.

A replica is **broken** if it stopped, during equilibration or after it (a number that is not finite, a point
outside of the support, a bond `DynamicsConfig.strain` times as long as it should be, or as short), or if its
total energy left its value at the beginning of production by more than $n/2$ kT: all the kinetic energy it
should have.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.dynamics.integrators import Status
from knotflow.dynamics.record import Record
from knotflow.statistics.estimates import Estimate, mean

DRIFTED: Final = "a drifted total energy"
LEAST: Final = 3
"""Fewer records have no slope."""


@dataclass(frozen=True, eq=False)
class Drift:
    """The drift score of a run."""

    slope: NDArray[np.float64]
    """Of each replica, in kT/ps per degree of freedom; NaN if it stopped too early to tell."""
    deviation: NDArray[np.float64]
    """Of each replica, in kT per degree of freedom."""
    temperature: NDArray[np.float64]
    """Of the motion of each replica, in K, or as a share of the right one if the record does not know it."""
    reasons: tuple[str | None, ...]
    """Why each replica is broken; None for those that are intact."""

    @property
    def broken(self) -> int:
        """Number of broken replicas."""
        return sum(reason is not None for reason in self.reasons)

    @property
    def intact(self) -> NDArray[np.bool_]:
        """Which replicas are not broken."""
        return np.array([reason is None for reason in self.reasons])

    def mean(self, values: NDArray[np.float64]) -> Estimate:
        """Mean over the intact replicas and its standard error; NaN where there are too few."""
        kept = values[self.intact]
        return mean(kept[np.isfinite(kept)])

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it; what is not known is None."""
        means = {name: self.mean(getattr(self, name)) for name in ("slope", "deviation", "temperature")}
        return {
            "replicas": len(self.reasons),
            "broken": self.broken,
            "reasons": dict(Counter(reason for reason in self.reasons if reason is not None)),
            **{name: _known(found.value) for name, found in means.items()},
            **{f"{name}_error": _known(found.error) for name, found in means.items()},
            "slopes": [_known(value) for value in self.slope],
            "deviations": [_known(value) for value in self.deviation],
        }


def drift(record: Record) -> Drift:
    """The drift score of a run."""
    n = record.degrees_of_freedom
    rows = slice(record.production, None)
    time, total = record.time[rows], record.total[rows]
    motion = record.about.get("temperature", 1.0) * record.temperature[rows]
    slopes, deviations, temperatures, reasons = [], [], [], []
    for energies, heat, status in zip(total.T, motion.T, record.status, strict=True):
        known = np.isfinite(energies)
        enough = known.sum() >= LEAST
        slopes.append(float(np.polyfit(time[known], energies[known], 1)[0]) / n if enough else math.nan)
        deviations.append(float(energies[known].std(ddof=1)) / n if enough else math.nan)
        temperatures.append(float(heat[known].mean()) if enough else math.nan)
        reasons.append(_reason(energies[known], int(status), n))
    return Drift(np.array(slopes), np.array(deviations), np.array(temperatures), tuple(reasons))


def summary(record: Record) -> dict[str, Any]:
    """Score, speed and what the record is about, as JSON can hold it: what ``drift.json`` has."""
    speed = _known(record.milliseconds_per_step)
    return {**drift(record).plain(), "milliseconds_per_step": speed, "about": record.about}


def _reason(energies: NDArray[np.float64], status: int, n: int) -> str | None:
    if status != Status.MOVING:
        return Status(status).text
    return DRIFTED if (np.abs(energies - energies[0]) > n / 2).any() else None


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
