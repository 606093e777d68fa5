"""Shared by all pictures: new figures, their files, and styles that everybody can tell apart."""

from __future__ import annotations

import io
from collections.abc import Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.extras import optional
from knotflow.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".pdf", ".svg")
DPI: Final = 150
DASHES: Final = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS: Final = "os^Dv"
COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "black")
"""Distinct for most colour-blind readers (Okabe & Ito); dashes and markers differ in black and white too."""

MD, FLOW, REWEIGHTED, TRUTH = "MD", "flow", "reweighted", "force field"
STYLES: Final[dict[str, dict[str, Any]]] = {
    MD: {"color": "black", "linestyle": "-", "linewidth": 1.8},
    FLOW: {"color": COLORS[1], "linestyle": (0, (4, 1.5)), "linewidth": 1.4},
    REWEIGHTED: {"color": COLORS[0], "linestyle": (0, (1, 1)), "linewidth": 1.6},
    TRUTH: {"color": "black", "linestyle": "-", "linewidth": 1.8},
}
"""Line styles by source; lines differ in dashes and width, not in colour alone."""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches.

    Raises:
        ModuleNotFoundError: if matplotlib, which is optional, is not installed.
    """
    with optional("pictures"):
        from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=DPI)


def titled_axis(title: str, width: float = 3.6, height: float = 2.9) -> tuple[Figure, Axes]:
    """A small figure with one axis, so that several fit side by side or stack on a narrow screen."""
    figure = new_figure(width, height)
    axis = figure.subplots()
    axis.set_title(title, fontsize=10)
    return figure, axis


def color_bar(axis: Axes, image: Any, label: str, **options: Any) -> None:
    """Add a colour bar as high as the picture."""
    bar = axis.figure.colorbar(image, cax=axis.inset_axes((1.04, 0, 0.05, 1)), label=label, **options)
    bar.ax.tick_params(labelsize=8)


def grid(axis: Axes) -> None:
    """Draw a pale grid behind the lines."""
    axis.grid(visible=True, color="0.92")
    axis.set_axisbelow(True)


def finish(axis: Axes) -> None:
    """Add a grid and a legend."""
    grid(axis)
    axis.legend(frameon=False, fontsize=8, handlelength=3)


def check_some(what: str, items: Sized) -> None:
    """Refuse to draw nothing.

    Raises:
        ValueError: if there are no items.
    """
    if not len(items):
        raise ValueError(f"a figure needs at least one {what}, got none; check what was selected for it.")


def spans_decades(values: NDArray[np.floating[Any]]) -> bool:
    """Whether values belong on a logarithmic axis: all positive, over more than two decades."""
    known = values[np.isfinite(values)]
    return bool(known.size and known.min() > 0 and known.max() > 100 * known.min())


def png(figure: Figure) -> bytes:
    """A figure as a PNG file."""
    return _drawn(figure, format="png", metadata={"Software": None})


def save(figure: Figure, path: Path) -> None:
    """Write a figure; an existing file stays until the new one is complete.

    Raises:
        ValueError: if the name does not end in one of `FORMATS`.
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"expected a picture name ending in {', '.join(FORMATS)}, got {path.name!r}.")
    write_atomically(path, _drawn(figure, format=path.suffix[1:].lower()))


def _drawn(figure: Figure, **options: Any) -> bytes:
    """A figure as the content of a file. Dollars are those of names, which may be no formulas."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if isinstance(text, Text) and "$" in text.get_text() and r"\mathdefault" not in text.get_text():
            text.set_parse_math(False)
    content = io.BytesIO()
    figure.savefig(content, **options)
    return content.getvalue()
