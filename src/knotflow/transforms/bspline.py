"""The non-uniform B-spline transform: a C^(k-2) diffeomorphism with a closed-form inverse."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple, cast

import torch
from torch import Tensor

from knotflow.kernels.ops import SplineKernel, prepare
from knotflow.transforms.base import SlopeTransform, check_count
from knotflow.transforms.basis import bernstein, evaluate, knot_value
from knotflow.transforms.domains import UNIT, Circle, Domain, clip, number_of, with_value
from knotflow.transforms.knots import (
    PARAMETRISATIONS,
    SLOPES,
    Knots,
    Layout,
    Paper,
    Parametrisation,
    Slopes,
    least_share,
    supports,
)
from knotflow.transforms.roots import polynomial_root
from knotflow.transforms.search import PrefixSums

LARGEST_ORDER: Final = 20
"""Work grows like the square of the order, and rounding errors faster."""


@dataclass(frozen=True)
class BSpline(SlopeTransform):
    r"""Increasing splines of order $k$ (degree $k - 1$) on non-uniform knots.

    $$f(x) = \sum_j \alpha_j B_{j,k,t}(x), \qquad
      f'(x) = \sum_j c_j B_{j,k-1,t}(x), \quad
      c_j = (k-1) \frac{\alpha_j - \alpha_{j-1}}{t_{j+k-1} - t_j} > 0 .$$

    Each map and its inverse are $k - 2$ times continuously differentiable. The slope lies between the
    smallest and the largest $c_j$ (Theorem 1 of Hong & Chun, "Neural Diffeomorphic Non-uniform B-spline
    Flows", AAAI 2023). Raw parameters of zero give the identity.

    * On an `Interval` the map is onto and its end slopes are free (Algorithm 1).
    * On a `Circle` all derivatives up to order $k - 2$ match at the seam (Theorem 2), for any number of bins.
    * On a `Line` the map is the identity outside ``[low, high]``. It joins the identity with $k - 2$
      derivatives: end slopes are 1, higher derivatives 0. There are ``bins`` free bins, and k - 2 more on
      each side.

    Args:
        bins: number of bins, at least 1.
        order: order $k \ge 3$; 4 is the cubic spline, twice continuously differentiable.
        domain: `Interval`, `Circle` or `Line`.
        parametrisation: ``"slopes"`` (bounded slopes, the default), ``"paper"`` (Algorithm 1 as published),
            or an instance of `Slopes` or `Paper` with other floors and bounds.
        phase: on a circle, add a learned rotation, so that ``low`` is not a fixed point. It takes one more
            raw parameter, in radians.
    """

    bins: int = 32
    order: int = 4
    domain: Domain = UNIT
    _: KW_ONLY
    parametrisation: Parametrisation | str = SLOPES
    phase: bool = False

    layout: Layout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_count("bins", self.bins, 1)
        check_count("order", self.order, 3)
        if self.order > LARGEST_ORDER:
            raise ValueError(f"order must be at most {LARGEST_ORDER}, got {self.order}; 4 is cubic.")
        if self.phase and not isinstance(self.domain, Circle):
            raise ValueError(f"a phase needs a Circle, got {self.domain}; leave phase=False.")
        scheme, layout = self.parametrisation, Layout(self.bins, self.order, self.domain)
        if not isinstance(scheme, Parametrisation):
            if scheme not in PARAMETRISATIONS:
                raise ValueError(
                    f"parametrisation must be one of {sorted(PARAMETRISATIONS)} or an instance of Slopes or "
                    f"Paper, got {scheme!r}."
                )
            scheme = PARAMETRISATIONS[scheme]()
        scheme.check(layout)
        self._derive(parametrisation=scheme, layout=layout, smoothness=self.order - 2)
        self._derive(n_parameters=sum(scheme.sizes(layout)) + self.phase)
        self._derive(kernel=self._kernel())

    def _forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        spline = self._spline(raw, x)
        j = spline.knots.locate(x)
        width, coefficients, value = self._piece(spline, j)
        rise, slope = evaluate(coefficients, clip((x - spline.knots.at(j)) / width, 0.0, 1.0))
        y = self._onto(x, value + width * rise)
        return self.domain.enter(y + self._rotation(raw)) if self.phase else y, slope

    def _inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        if self.phase:
            y = self.domain.enter(y - self._rotation(raw))
        spline = self._spline(raw, y)
        j = self._bin_of_value(spline, y)
        width, coefficients, value = self._piece(spline, j)
        target = (y - value) / width
        u, slope = polynomial_root(coefficients, target)
        left, right = spline.knots.at(j), spline.knots.at(j + 1)
        x = left + width * u
        # Widths do not add up to the knots to the last digit, and a steep slope would multiply the
        # difference. So x must not pass the right knot, and is that knot if y is its value up to rounding.
        missing = width * (sum(coefficients[1:], coefficients[0]) / len(coefficients) - target)
        rounding = 2 * torch.finfo(x.dtype).eps * self.domain.length
        at_knot = (missing <= rounding) & (coefficients[-1] > 2)
        x = with_value(x, torch.where(at_knot, right, torch.clamp(x, left, right)))
        return self._onto(y, x), slope

    def slope_bounds(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Certified bounds of the slope of each map, by Theorem 1.

        Returns:
            Smallest and largest slope coefficient, in the shape of ``raw`` without its last axis. They are
            widened by the rounding error of a computed slope.
        """
        self.check_raw(raw)
        spline = self._knots(raw)
        slopes = (self.order - 1) * spline.rises / supports(spline.widths, self.layout)
        margin = 8 * self.order * torch.finfo(raw.dtype).eps
        return slopes.amin(-1) * (1 - margin), slopes.amax(-1) * (1 + margin)

    def knots(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        r"""Knots $t$ and coefficients $\alpha$ of each map, in the convention of textbooks and SciPy.

        ``scipy.interpolate.BSpline(t, alpha, order - 1)`` is the map on ``[low, high]`` (without its phase).

        Returns:
            ``t`` of shape (..., N + 2k - 1) and ``alpha`` of shape (..., N + k - 1) for N bins. On an
            interval or a line the ends are knots of multiplicity k; on a circle the knots are periodic.
        """
        self.check_raw(raw)
        spline, q, n = self._knots(raw), self.layout.q, self.layout.pieces
        before = self._window(spline.widths, torch.tensor(-q - 1, device=raw.device), q + 1)
        after = self._window(spline.widths, torch.tensor(n, device=raw.device), q + 1)
        low = torch.full_like(raw[..., :1], self.domain.low)
        right = low + spline.widths.cumsum(-1)
        right[..., -1] = self.domain.high
        outside_left = low - torch.stack(before, -1).flip(-1).cumsum(-1).flip(-1)
        outside_right = self.domain.high + torch.stack(after, -1).cumsum(-1)
        t, rises = torch.cat([outside_left, low, right, outside_right], -1), spline.rises
        if self.layout.periodic:
            rises = torch.stack([rises[..., i % n] for i in range(n + q)], -1)
            low = low - self._seam_offset(*spline).unsqueeze(-1)
        return t, torch.cat([low, low + rises.cumsum(-1)], -1)

    def _kernel(self) -> SplineKernel | None:
        """The native kernel of this family, or None if there is none."""
        scheme = self.parametrisation
        if not isinstance(scheme, Slopes | Paper):
            return None
        n_widths, n_rises = scheme.sizes(self.layout)
        if isinstance(scheme, Paper):
            bounds = {"rise_floor": least_share(scheme.min_rise, n_rises)}
        else:
            bounds = {"min_slope": scheme.min_slope, "max_slope": scheme.max_slope}
        kernel = SplineKernel(
            family=0,
            order=self.order,
            bins=self.bins,
            domain=number_of(self.domain),
            parametrisation=int(isinstance(scheme, Paper)),
            phase=int(self.phase),
            n_parameters=self.n_parameters,
            low=self.domain.low,
            high=self.domain.high,
            width_floor=least_share(scheme.min_width, n_widths),
            definition=self.define_forward,
            **bounds,
        )
        prepare()
        return kernel if kernel.exists else None

    def _knots(self, raw: Tensor) -> Knots:
        scheme = cast("Parametrisation", self.parametrisation)
        sizes = scheme.sizes(self.layout)
        raw_widths, raw_coefficients = raw[..., : sum(sizes)].split(sizes, -1)
        return scheme.knots(raw_widths, raw_coefficients, self.layout)

    def _spline(self, raw: Tensor, x: Tensor) -> _Spline:
        """The splines of all points; a spline that several points share is built once."""
        widths, rises = (part.expand(*x.shape, part.shape[-1]) for part in self._knots(raw))
        low = self.domain.low
        seam = self._seam_offset(widths, rises) if self.layout.periodic else None
        return _Spline(PrefixSums(widths, low), PrefixSums(rises, low), seam)

    def _rotation(self, raw: Tensor) -> Tensor:
        length = self.domain.length
        return torch.remainder(raw[..., -1] * (length / (2 * math.pi)), length)

    def _window(self, values: Tensor, first: Tensor, size: int) -> tuple[Tensor, ...]:
        """Columns ``first .. first + size - 1`` of widths or rises; periodic or zero beyond the ends."""
        n = values.shape[-1]
        index = first.unsqueeze(-1) + torch.arange(size, device=first.device)
        index = index.expand(*values.shape[:-1], size)
        if self.layout.periodic:
            return values.gather(-1, _modulo(index, n, size)).unbind(-1)
        inside = (index >= 0) & (index < n)
        return torch.where(inside, values.gather(-1, index.clamp(0, n - 1)), 0.0).unbind(-1)

    def _piece(self, spline: _Spline, j: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Width of bin j, Bernstein coefficients of the slope there, and value at its left knot."""
        q = self.layout.q
        widths = self._window(spline.knots.widths, j - q, 2 * q + 1)
        rises = self._window(spline.coefficients.widths, j, q + 1)
        coefficients, offset = bernstein(widths, rises)
        return widths[q], coefficients, spline.value(j, offset)

    def _seam_offset(self, widths: Tensor, rises: Tensor) -> Tensor:
        """Height of f(low) above the first coefficient, from which the rises of a circle are summed."""
        q, n = self.layout.q, self.layout.pieces
        around = [widths[..., i % n] for i in range(-q, q)]
        return knot_value(around, [rises[..., i % n] for i in range(q)])

    def _bin_of_value(self, spline: _Spline, y: Tensor) -> Tensor:
        r"""The bin j with $f(t_j) \le y < f(t_{j+1})$.

        The value at a knot is a mean of k - 1 consecutive coefficients. So the two coefficients around y
        leave k - 1 candidate bins, and only the k - 2 knots between them are evaluated.
        """
        q, n = self.layout.q, self.layout.pieces
        y, spline = y.detach(), spline.detach()
        if spline.seam is None:
            i = spline.coefficients.locate(y)
        else:
            level = y + spline.seam
            beyond = level >= self.domain.high
            level = torch.where(beyond, level - self.domain.length, level)
            i = spline.coefficients.locate(level) + n * beyond
        j = first = i - q
        widths = self._window(spline.knots.widths, first - q + 1, 3 * q - 1)
        rises = self._window(spline.coefficients.widths, first, 2 * q)
        for m in range(1, q + 1):
            knot = first + m
            value = spline.value(
                knot.clamp(0, n), knot_value(widths[m - 1 : m + 2 * q - 1], rises[m : m + q])
            )
            j = j + ((knot <= 0) | ((knot < n) & (value <= y)))
        return j.clamp(0, n - 1)


class _Spline(NamedTuple):
    """Splines of a batch of points."""

    knots: PrefixSums
    coefficients: PrefixSums
    seam: Tensor | None
    """On a circle, height of f(low) above the first coefficient."""

    def value(self, j: Tensor, offset: Tensor) -> Tensor:
        """Value at knot j, ``offset`` above coefficient j; with the same bits wherever it is computed."""
        return self.coefficients.at(j) + (offset if self.seam is None else offset - self.seam)

    def detach(self) -> _Spline:
        seam = None if self.seam is None else self.seam.detach()
        return _Spline(self.knots.detach(), self.coefficients.detach(), seam)


def _modulo(index: Tensor, n: int, size: int) -> Tensor:
    """``index % n``, without the slow remainder where one step up or down is enough."""
    if size > n:
        return index % n
    index = torch.where(index < 0, index + n, index)
    return torch.where(index >= n, index - n, index)
