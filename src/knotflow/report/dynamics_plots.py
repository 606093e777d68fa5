"""Pictures of energies over time, as in figure 4 of Hong & Chun (2023), and why replicas broke, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from numpy.typing import NDArray

from knotflow.dynamics.record import Record
from knotflow.dynamics.score import drift
from knotflow.report.figures import COLORS, check_some, new_figure
from knotflow.statistics.estimates import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTITIES: Final = ("total", "potential", "kinetic")
MARGIN: Final = 0.15
"""Free space above and below, as a fraction of the range of values."""
WHOLE, BROKEN = COLORS[0], COLORS[1]


@dataclass(frozen=True)
class EnergyPanel:
    """Energies of replicas over time; NaN after a replica has stopped."""

    title: str
    time: Floats
    """In ps, (records,)."""
    potential: Floats
    """In kT, (records, replicas)."""
    kinetic: Floats
    """In kT, (records, replicas)."""
    broken: NDArray[np.bool_]
    """Which replicas are broken, (replicas,)."""
    thermostat: float = 0.0
    """End of the time with a thermostat, in ps."""

    def __post_init__(self) -> None:
        shape = (*np.shape(self.time), *np.shape(self.broken))
        if len(shape) != 2 or np.shape(self.potential) != shape or np.shape(self.kinetic) != shape:
            raise ValueError(
                f"panel {self.title!r} needs energies of shape (records, replicas), time (records,) and "
                f"broken (replicas,), got {np.shape(self.potential)}, {np.shape(self.kinetic)}, "
                f"{np.shape(self.time)} and {np.shape(self.broken)}."
            )

    @classmethod
    def of(cls, title: str, record: Record) -> Self:
        """The panel of a run of dynamics."""
        broken, thermostat = ~drift(record).intact, float(record.time[record.production])
        return cls(title, record.time, record.potential, record.kinetic, broken, thermostat)

    def energies(self, quantity: str) -> Floats:
        """One of `QUANTITIES` in kT, (records, replicas).

        The median potential at the start is subtracted from potential and total energies, because energies of
        two models differ by an arbitrary constant.
        """
        if quantity == "kinetic":
            return self.kinetic
        known = self.potential[0][np.isfinite(self.potential[0])]
        potential = self.potential - (np.median(known) if known.size else 0.0)
        return potential if quantity == "potential" else potential + self.kinetic


def draw_energies(panels: Sequence[EnergyPanel], quantities: Sequence[str] = QUANTITIES) -> Figure:
    """Draw energies over time: a column for each panel, a row for each quantity, a line for each replica.

    All axes of a row have the range of the intact replicas in all panels. Broken ones have another colour,
    may leave the range, and end in a cross. The time with a thermostat is grey.

    Args:
        panels: Panels from left to right.
        quantities: Some of `QUANTITIES`, from top to bottom.

    Raises:
        ValueError: if there is no panel or no quantity, or one is unknown.
    """
    check_some("panel", panels)
    check_some("quantity", quantities)
    strangers = [quantity for quantity in quantities if quantity not in QUANTITIES]
    if strangers:
        raise ValueError(f"quantities are {', '.join(QUANTITIES)}, got {', '.join(strangers)}.")
    figure = new_figure(3.1 * len(panels) + 0.7, 1.9 * len(quantities) + 0.6)
    axes = figure.subplots(len(quantities), len(panels), sharex="col", sharey="row", squeeze=False)
    for row, quantity in zip(axes, quantities, strict=True):
        low, high = _range(panels, quantity)
        for axis, panel in zip(row, panels, strict=True):
            _draw_panel(axis, panel, panel.energies(quantity), low, high)
        row[0].set_ylim(low, high)
        row[0].set_ylabel(f"{quantity} energy, kT")
    for axis, panel in zip(axes[0], panels, strict=True):
        axis.set_title(panel.title, fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("time, ps")
    return figure


def _draw_panel(axis: Axes, panel: EnergyPanel, energies: Floats, low: float, high: float) -> None:
    if panel.thermostat > panel.time[0]:
        axis.axvspan(panel.time[0], panel.thermostat, color="0.9", linewidth=0)
    for values, broken in zip(energies.T, panel.broken, strict=True):
        color = BROKEN if broken else WHOLE
        axis.plot(panel.time, values, color=color, linewidth=0.6, alpha=0.8)
        known = np.flatnonzero(np.isfinite(values))
        if known.size and known[-1] < len(values) - 1:
            last = float(np.clip(values[known[-1]], low, high))
            axis.plot(panel.time[known[-1]], last, color=color, marker="x", markersize=5, clip_on=False)
    axis.set_xlim(panel.time[0], panel.time[-1])
    axis.grid(visible=True, color="0.92")


def _range(panels: Sequence[EnergyPanel], quantity: str) -> tuple[float, float]:
    """Range of an axis: that of intact replicas or, if there are none, of most values."""
    intact = np.concatenate([panel.energies(quantity)[:, ~panel.broken].ravel() for panel in panels])
    every = np.concatenate([panel.energies(quantity).ravel() for panel in panels])
    low, high = 0.0, 1.0
    for values, part in ((intact, [0, 1]), (every, [0.02, 0.9])):
        if np.isfinite(values).any():
            low, high = np.quantile(values[np.isfinite(values)], part).tolist()
            break
    room = MARGIN * (high - low) or 1.0
    return low - room, high + room


def reasons(found: Mapping[str, int]) -> str:
    """Why replicas broke, with the number of replicas for each reason."""
    return ", ".join(f"{reason} ({count})" for reason, count in found.items()) or "–"
