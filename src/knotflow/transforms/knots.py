r"""Knots and coefficients of a spline from raw parameters: Algorithm 1, Theorem 2, a slope-bounded variant.

A spline of order $k$ on $N$ bins is stored as the widths of its bins and the increments $\Delta\alpha$
("rises") of its coefficients. With $q = k - 2$,

* on an interval or a line, it is in *clamped form*: the $q$ outer knots on each side coincide with the end,
  there are $N + q$ rises, the first coefficient is $f(low) = low$, and the rises add up to the length;
* on a circle, it is in *periodic form*: $N$ rises, with widths and rises continued periodically (Theorem 2).

Rise number $i$ belongs to the slope coefficient $c_i = (k-1)\,\Delta\alpha_i / (t_{i+1} - t_{i-q})$, whose
B-spline of order $k - 1$ lives on $[t_{i-q}, t_{i+1}]$; $t_0 = low$ and $t_N = high$.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import add
from typing import Final, NamedTuple

import torch
from torch import Tensor

from knotflow.transforms.basis import triangle
from knotflow.transforms.domains import Circle, Domain, Line

DEFAULT_FLOOR = 0.1
"""Default floor of a part, as a fraction of an equal part."""


class Knots(NamedTuple):
    """A spline in clamped or periodic form, see the module's docstring."""

    widths: Tensor
    """Widths of the bins, shape (..., N); they add up to the length of the domain."""
    rises: Tensor
    """Increments of the coefficients, shape (..., N + q), on a circle (..., N); same sum."""


@dataclass(frozen=True)
class Layout:
    """Bins, order and domain of a spline, and what they imply."""

    bins: int
    order: int
    domain: Domain

    @property
    def q(self) -> int:
        """Degree of the slope, k - 2; also the smoothness, and the number of outer knots on each side."""
        return self.order - 2

    @property
    def pieces(self) -> int:
        """Number N of polynomial pieces; a line has q more on each side, to join the identity."""
        return self.bins + 2 * self.q if isinstance(self.domain, Line) else self.bins

    @property
    def periodic(self) -> bool:
        """Whether widths and rises continue periodically."""
        return isinstance(self.domain, Circle)


class Parametrisation(ABC):
    """A rule that turns unconstrained numbers into the widths and rises of a spline."""

    @abstractmethod
    def sizes(self, layout: Layout) -> tuple[int, int]:
        """Numbers of raw parameters for the widths and for the coefficients."""

    @abstractmethod
    def check(self, layout: Layout) -> None:
        """Raise ``ValueError`` if the floors and bounds do not fit the layout."""

    @abstractmethod
    def knots(self, raw_widths: Tensor, raw_coefficients: Tensor, layout: Layout) -> Knots:
        """The spline for raw parameters whose last axes have the given `sizes`."""


@dataclass(frozen=True)
class Paper(Parametrisation):
    """Algorithm 1 of the paper: softmax of the widths and of the rises, with floors.

    On an interval the k - 2 outer knots on each side are parameters too, so one map takes
    2 bins + 3 (k - 2) parameters; on a circle it takes 2 bins.

    Args:
        min_width: floor of a width as a fraction of all widths, including the outer ones (the paper's
            epsilon_t); by default a tenth of a uniform width.
        min_rise: floor of a rise, likewise (the paper's epsilon_alpha).
    """

    min_width: float | None = None
    min_rise: float | None = None

    def sizes(self, layout: Layout) -> tuple[int, int]:
        if layout.periodic:
            return layout.bins, layout.bins
        return layout.bins + 2 * layout.q, layout.bins + layout.q

    def check(self, layout: Layout) -> None:
        n_widths, n_rises = self.sizes(layout)
        check_floor("min_width", self.min_width, n_widths)
        check_floor("min_rise", self.min_rise, n_rises)

    def knots(self, raw_widths: Tensor, raw_coefficients: Tensor, layout: Layout) -> Knots:
        widths = shares(raw_widths, self.min_width, layout.domain.length)
        rises = shares(raw_coefficients, self.min_rise, layout.domain.length)
        if layout.periodic:
            return Knots(widths, rises)
        if isinstance(layout.domain, Line):
            return _join_identity(widths, rises, layout)
        return _clamp(widths, rises, layout)


@dataclass(frozen=True)
class Slopes(Parametrisation):
    """Theorem 1 as a parametrisation: the coefficients of f' are bounded before normalisation.

    The slope f' is everywhere a mean of its coefficients. Normalising f to the length of the domain thus
    divides them by a number within the same bounds, and for any raw parameters every slope lies within
    [min_slope / max_slope, max_slope / min_slope]. One map takes 2 bins + (k - 2) parameters on an
    interval, 2 bins on a circle, 2 bins + 3 (k - 2) on a line.

    Args:
        min_width: floor of a width as a fraction of the domain; by default a tenth of a uniform width.
        min_slope: smallest slope coefficient before normalisation, below 1.
        max_slope: largest slope coefficient before normalisation, above 1.
    """

    min_width: float | None = None
    min_slope: float = 0.1
    max_slope: float = 20.0

    def sizes(self, layout: Layout) -> tuple[int, int]:
        if layout.periodic:
            return layout.bins, layout.bins
        return layout.pieces, layout.bins + layout.q

    def check(self, layout: Layout) -> None:
        check_floor("min_width", self.min_width, self.sizes(layout)[0])
        if not 0 < self.min_slope < 1 < self.max_slope < math.inf:
            raise ValueError(
                "expected 0 < min_slope < 1 < max_slope, so that the identity is possible, got "
                f"min_slope={self.min_slope}, max_slope={self.max_slope}."
            )

    def knots(self, raw_widths: Tensor, raw_coefficients: Tensor, layout: Layout) -> Knots:
        widths = shares(raw_widths, self.min_width, layout.domain.length)
        if isinstance(layout.domain, Line):
            rises = self._rises(raw_coefficients, _window_sums(widths, layout.q))
            return _join_identity(widths, rises, layout)
        return Knots(widths, _scaled(self._rises(raw_coefficients, supports(widths, layout)), layout))

    def _rises(self, raw: Tensor, supports: Tensor) -> Tensor:
        """Bounded slopes times supports, up to a factor.

        The slopes follow a logistic curve from min_slope to max_slope, with value 1 at 0 and close to exp.
        """
        shift = math.log((1 - self.min_slope) / (self.max_slope - 1))
        least = self.min_slope / (self.max_slope - self.min_slope)
        return ((raw + shift).sigmoid_() * supports).add_(supports, alpha=least)


SLOPES: Final = Slopes()
"""The default parametrisation."""
PARAMETRISATIONS: Final[dict[str, type[Parametrisation]]] = {"slopes": Slopes, "paper": Paper}
"""Parametrisations by the names that users and files give them."""


def supports(widths: Tensor, layout: Layout) -> Tensor:
    """Length ``t_{i+1} - t_{i-q}`` of the support of each slope coefficient, one for each rise."""
    q = layout.q
    if layout.periodic:
        before = widths.index_select(-1, torch.arange(-q, 0, device=widths.device) % layout.pieces)
        return _window_sums(torch.cat([before, widths], -1), q)
    return _window_sums(torch.nn.functional.pad(widths, (q, q)), q)


def _window_sums(widths: Tensor, q: int) -> Tensor:
    """Sums of q + 1 consecutive widths each; differences of prefix sums would lose digits."""
    n = widths.shape[-1] - q
    sums = widths[..., :n] + widths[..., 1 : n + 1]
    for i in range(2, q + 1):
        sums = sums.add_(widths[..., i : n + i])  # in place: the sums are as wide as the bins
    return sums


def shares(raw: Tensor, floor: float | None, total: float) -> Tensor:
    """Positive parts of a total, none below the floor of `least_share` (Algorithm 1, lines 1-2 and 8-9)."""
    n = raw.shape[-1]
    least = least_share(floor, n)
    return torch.softmax(raw, -1).mul(total * (1 - n * least)).add_(total * least)


def least_share(floor: float | None, n: int) -> float:
    """Floor of each of n parts, as a fraction of the total; by default `DEFAULT_FLOOR` of an equal part."""
    return DEFAULT_FLOOR / n if floor is None else floor


def check_floor(name: str, floor: float | None, n: int) -> None:
    """Refuse a floor that leaves nothing to share among n parts."""
    if floor is not None and not 0 < floor * n < 1:
        raise ValueError(
            f"{name} must be positive and leave room for {n} parts: expected "
            f"0 < {name} < 1/{n} = {1 / n:.4g}, got {floor}; lower it or use fewer bins."
        )


def _scaled(rises: Tensor, layout: Layout) -> Tensor:
    """Rises that add up to the length of the domain."""
    return rises * (layout.domain.length / rises.sum(-1, keepdim=True))


def _join_identity(widths: Tensor, rises: Tensor, layout: Layout) -> Knots:
    """Set the q slope coefficients at each end to 1, so that f joins the identity with q derivatives.

    ``rises`` are the rises between the ends, up to a factor.
    """
    q, last = layout.q, widths.shape[-1] - 1
    left = list(accumulate(widths.narrow(-1, i, 1) for i in range(q)))
    right = list(accumulate(widths.narrow(-1, last - i, 1) for i in range(q)))[::-1]
    room = layout.domain.length - reduce(add, [*left, *right]) / (q + 1)
    middle = rises * (room / rises.sum(-1, keepdim=True))
    left, right = ([part / (q + 1) for part in side] for side in (left, right))
    return Knots(widths, torch.cat([*left, middle, *right], -1))


def _clamp(widths: Tensor, rises: Tensor, layout: Layout) -> Knots:
    """Algorithm 1's spline on [low, high], with its q outer knots on each side moved onto the ends.

    Algorithm 1 subtracts f(low) and divides by f(high) - f(low) (lines 13-17), which cancels digits where
    the outer coefficients are much larger than the rest. Knot insertion takes convex combinations instead:
    it changes the first and last q slope coefficients, but not the function.

    Args:
        widths: widths of the bins -q .. N + q - 1, shape (..., N + 2q), up to a factor.
        rises: shape (..., N + q), up to a factor.
        layout: bins, order and domain.
    """
    q, n = layout.q, layout.pieces
    last = n + q - 1
    inner = widths[..., q : q + n]
    scale = layout.domain.length / inner.sum(-1, keepdim=True)
    widths, inner = widths * scale, inner * scale

    def width(bin_: int) -> Tensor:
        return widths.narrow(-1, bin_ + q, 1)

    def slope(i: int) -> Tensor:
        return (q + 1) * rises.narrow(-1, i, 1) / reduce(add, (width(m) for m in range(i - q, i + 1)))

    def rise(slope: Tensor, i: int) -> Tensor:
        return slope * reduce(add, (width(m) for m in range(max(i - q, 0), min(i + 1, n)))) / (q + 1)

    left = _end_slopes(
        outside=[width(-1 - i) for i in range(q)],
        inside=[width(i) for i in range(q)],
        slopes=[slope(i) for i in range(q)],
    )
    # The left end is clamped before the right one, which matters if there are fewer than q bins.
    right = _end_slopes(
        outside=[width(n + i) for i in range(q)],
        inside=[width(n - 1 - i) if i < n else torch.zeros_like(left[0]) for i in range(q)],
        slopes=[left[last - i] if last - i < q else slope(last - i) for i in range(q)],
    )
    first = [rise(left[i], i) for i in range(min(q, n))]
    middle = [rises.narrow(-1, q, n - q)] if n > q else []
    rises = torch.cat([*first, *middle, *[rise(right[last - i], i) for i in range(n, n + q)]], -1)
    return Knots(inner, _scaled(rises, layout))


def _end_slopes(outside: list[Tensor], inside: list[Tensor], slopes: list[Tensor]) -> list[Tensor]:
    """Slope coefficients of an end, outermost first, after all q outer knots are moved onto it.

    Widths are ordered away from the end, slopes from the outermost inwards.
    """
    _, last = triangle(slopes, list(accumulate(outside)), list(accumulate(inside)))
    return last[::-1]
