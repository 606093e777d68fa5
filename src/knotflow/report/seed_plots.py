"""Pictures of results that depend on the seed, one dot for each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from knotflow.report.figures import COLORS, MARKERS, check_some, new_figure, spans_decades
from knotflow.statistics.estimates import Floats

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPREAD: Final = 0.5
"""Height over which the seeds of a group are spread; groups are 1 apart."""


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ only in their seed."""

    label: str
    kind: str
    """Groups of one kind have the same colour and marker."""
    values: Mapping[str, Floats]
    """By measure, one value for each seed, shape (seeds,); NaN or infinity if there is none."""
    expected: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By measure, mean and error bar from elsewhere to compare with."""

    def __post_init__(self) -> None:
        shapes = {name: np.shape(values) for name, values in self.values.items()}
        if not shapes or len(set(shapes.values())) > 1 or len(next(iter(shapes.values()))) != 1:
            raise ValueError(
                f"group {self.label!r} needs a value of each seed for every measure, all of shape (seeds,), "
                f"got {shapes}; use NaN for a seed without a result."
            )


def draw_seeds(groups: Sequence[SeedGroup], *, expected: str = "expected") -> Figure:
    """Draw the values of all seeds, a line of dots for each group and a column for each measure.

    A bar marks the mean of the seeds that have a value; a cross on the right edge marks each of the others.
    Positive values that span more than two decades are on a logarithmic axis.

    Args:
        groups: Groups from top to bottom, all with the same measures.
        expected: Name of `SeedGroup.expected` in the legend.

    Raises:
        ValueError: if there is no group, or their measures differ.
    """
    check_some("group", groups)
    measures = list(groups[0].values)
    for group in groups:
        if list(group.values) != measures:
            raise ValueError(
                f"all groups need the measures {', '.join(measures)} in this order, {group.label!r} has "
                f"{', '.join(group.values)}."
            )
    kinds = list(dict.fromkeys(group.kind for group in groups))
    figure = new_figure(2.9 * len(measures) + 1.6, 0.55 * len(groups) + 1.3)
    axes = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axis, measure in zip(axes, measures, strict=True):
        for y, group in enumerate(groups):
            _draw_group(axis, y, group, measure, kinds.index(group.kind), expected)
        pairs = [(group.values[measure], group.expected.get(measure, (np.nan,))[0]) for group in groups]
        if spans_decades(np.concatenate([np.append(*pair) for pair in pairs])):
            axis.set_xscale("log", nonpositive="clip")
        axis.set_xlabel(measure)
        axis.grid(visible=True, axis="x", color="0.92")
    axes[0].set_yticks(range(len(groups)), [f"{group.label}\n{group.kind}" for group in groups], fontsize=8)
    axes[0].set_ylim(len(groups) - 0.5, -0.5)
    handles: dict[str, Artist] = {}
    for axis in axes:
        found, labels = axis.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def _draw_group(axis: Axes, y: int, group: SeedGroup, measure: str, kind: int, expected: str) -> None:
    values = np.asarray(group.values[measure], dtype=np.float64)
    heights = y + (SPREAD * np.linspace(-0.5, 0.5, len(values)) if len(values) > 1 else np.zeros(len(values)))
    known = np.isfinite(values)
    color = COLORS[kind % len(COLORS)]
    style: dict[str, Any] = {"color": color, "linestyle": "", "markersize": 4.5}
    axis.plot(values[known], heights[known], marker=MARKERS[kind % len(MARKERS)], alpha=0.8, **style)
    if known.any():
        axis.plot(np.full(2, values[known].mean()), [y - 0.38, y + 0.38], color=color, linewidth=1.4)
    if not known.all():
        style |= {"transform": axis.get_yaxis_transform(), "label": "no result"}
        axis.plot(np.full((~known).sum(), 0.98), heights[~known], marker="x", **style)
    if measure in group.expected:
        mean, error = group.expected[measure]
        axis.errorbar(
            mean, y, xerr=error, color="0.35", marker="D", mfc="white", markersize=5, capsize=3, linestyle="",
            linewidth=1, zorder=1, label=expected,
        )  # fmt: skip
