r"""The drift score: how well energy is conserved once the thermostat is off.

For every replica, over the production records until it stopped, with $n$ degrees of freedom and the total
energy $E(t)$ in kT:

- **slope**: slope of the least-squares line through $E(t)$, divided by $n$, in kT/ps per degree of freedom;
- **deviation**: standard deviation of $E(t)$, divided by $n$, in kT per degree of freedom;
- **temperature**: mean of the kinetic temperature, in K.

A replica is **broken** if it stopped, during equilibration or later (because a number was not finite, a point
was outside of the support, or a bond was `DynamicsConfig.strain` times too long or too short). It is also
broken if its total energy differed from its value at the beginning of production by more than $n/2$ kT, which
is all the kinetic energy it should have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.dynamics.integrators import Status
from knotflow.dynamics.record import Record
from knotflow.json_values import plain
from knotflow.statistics.estimates import Estimate, mean

DRIFTED: Final = "a drifted total energy"
LEAST: Final = 3
"""Smallest number of records that give a slope."""


@dataclass(frozen=True, eq=False)
class Drift:
    """The drift score of a run."""

    slope: NDArray[np.float64]
    """Slope for each replica, in kT/ps per degree of freedom; NaN if it stopped too early."""
    deviation: NDArray[np.float64]
    """Deviation for each replica, in kT per degree of freedom."""
    temperature: NDArray[np.float64]
    """Kinetic temperature of each replica in K; a share of the right one if the record does not note that."""
    reasons: tuple[str | None, ...]
    """Why each replica is broken; None if it is intact."""

    @property
    def broken(self) -> int:
        """Number of broken replicas."""
        return int((~self.intact).sum())

    @property
    def intact(self) -> NDArray[np.bool_]:
        """Which replicas are not broken."""
        return np.array([reason is None for reason in self.reasons])

    def mean(self, values: NDArray[np.float64]) -> Estimate:
        """Mean over the intact replicas and its standard error; NaN if there are too few."""
        kept = values[self.intact]
        return mean(kept[np.isfinite(kept)])

    def plain(self) -> dict[str, Any]:
        """The score as JSON can hold it; None where a number is unknown."""
        means = {name: self.mean(getattr(self, name)) for name in ("slope", "deviation", "temperature")}
        found: dict[str, Any] = plain(
            {
                "replicas": len(self.reasons),
                "broken": self.broken,
                "reasons": Counter(reason for reason in self.reasons if reason is not None),
                **{name: estimate.value for name, estimate in means.items()},
                **{f"{name}_error": estimate.error for name, estimate in means.items()},
                "slopes": self.slope.tolist(),
                "deviations": self.deviation.tolist(),
            }
        )
        return found


def drift(record: Record) -> Drift:
    """Score a run."""
    n, rows = record.degrees_of_freedom, slice(record.production, None)
    heat = record.about.get("temperature", 1.0) * record.temperature[rows]
    scores, reasons = np.full((3, len(record.status)), np.nan), []
    for replica, (total, status) in enumerate(zip(record.total[rows].T, record.status, strict=True)):
        known = np.isfinite(total)
        energies = total[known]
        if len(energies) >= LEAST:
            line = np.polyfit(record.time[rows][known], energies, 1)
            scores[:, replica] = line[0] / n, energies.std(ddof=1) / n, heat[known, replica].mean()
        reasons.append(_reason(energies, int(status), n))
    slope, deviation, temperature = scores
    return Drift(slope, deviation, temperature, tuple(reasons))


def summary(record: Record) -> dict[str, Any]:
    """Score, speed and inputs of a run, as JSON can hold it: the content of ``drift.json``."""
    speed = plain(record.milliseconds_per_step)
    return {**drift(record).plain(), "milliseconds_per_step": speed, "about": record.about}


def _reason(energies: NDArray[np.float64], status: int, n: int) -> str | None:
    if status != Status.MOVING:
        return Status(status).text
    return DRIFTED if (np.abs(energies - energies[0]) > n / 2).any() else None
