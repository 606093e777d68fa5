"""The non-uniform B-spline transform: a C^(k-2) diffeomorphism with a closed-form inverse."""

from __future__ import annotations

import math
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from knotflow.kernels.ops import BSplineKernel, define, prepare
from knotflow.transforms.base import Transform, check_count
from knotflow.transforms.basis import bernstein, evaluate, knot_value
from knotflow.transforms.domains import Circle, Domain, Interval, Line, clip, with_value
from knotflow.transforms.knots import Knots, Layout, Paper, Parametrisation, Slopes, least_share, supports
from knotflow.transforms.roots import polynomial_root
from knotflow.transforms.search import PrefixSums, prefix_sums

PARAMETRISATIONS: dict[str, type[Slopes | Paper]] = {"slopes": Slopes, "paper": Paper}


class BSpline(Transform):
    r"""Increasing splines of order $k$ (degree $k - 1$) on non-uniform knots.

    $$f(x) = \sum_j \alpha_j B_{j,k,t}(x), \qquad
      f'(x) = \sum_j c_j B_{j,k-1,t}(x), \quad
      c_j = (k-1) \frac{\alpha_j - \alpha_{j-1}}{t_{j+k-1} - t_j} > 0 .$$

    Each map is $k - 2$ times continuously differentiable and so is its inverse; its slope lies between the
    least and the largest $c_j$ (Theorem 1 of Hong & Chun, "Neural Diffeomorphic Non-uniform B-spline
    Flows", AAAI 2023). Raw parameters of zero give the identity.

    * On an `Interval` the map is onto and its end slopes are free (Algorithm 1).
    * On a `Circle` all derivatives up to order $k - 2$ match at the seam (Theorem 2), for any number of bins.
    * On a `Line` the map is the identity outside ``[low, high]``, joined with $k - 2$ derivatives: end slopes
      are 1, higher derivatives 0. Between the joins lie ``bins`` free bins, and k - 2 more on each side.

    Args:
        bins: number of bins, at least 1.
        order: order $k \ge 3$; 4 is the cubic spline, twice continuously differentiable.
        domain: `Interval`, `Circle` or `Line`.
        parametrisation: ``"slopes"`` (bounded slopes, the default), ``"paper"`` (Algorithm 1 as published),
            or an instance of `Slopes` or `Paper` with other floors and bounds.
        phase: on a circle, add a learned rotation (one more raw parameter, in radians), so that ``low`` need
            not be a fixed point.
    """

    def __init__(
        self,
        bins: int = 32,
        order: int = 4,
        domain: Domain | None = None,
        *,
        parametrisation: str | Parametrisation = "slopes",
        phase: bool = False,
    ) -> None:
        check_count("bins", bins, 1)
        check_count("order", order, 3)
        self.domain = Interval() if domain is None else domain
        if phase and not isinstance(self.domain, Circle):
            raise ValueError(f"a phase needs a Circle, got {self.domain}; leave phase=False.")
        self.bins, self.order, self.phase = bins, order, phase
        self.parametrisation = _parametrisation(parametrisation)
        self.layout = Layout(bins, order, self.domain)
        self.parametrisation.check(self.layout)
        self.n_parameters = sum(self.parametrisation.sizes(self.layout)) + phase
        self.smoothness = order - 2
        self.kernel = _kernel(self)

    def __repr__(self) -> str:
        return (
            f"BSpline(bins={self.bins}, order={self.order}, domain={self.domain}, "
            f"parametrisation={self.parametrisation}, phase={self.phase})"
        )

    def _forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        spline = self._spline(raw, x)
        j, knot = spline.knots.locate(x)
        width, coefficients, value = self._piece(spline, j)
        rise, slope = evaluate(coefficients, clip((x - knot) / width, 0.0, 1.0))
        y = self._onto(x, value + width * rise)
        return self.domain.enter(y + self._rotation(raw)) if self.phase else y, slope

    def select(self, x: Tensor, raw: Tensor) -> Tensor:
        """Widths and rises: their sums, those before the bin of a point, those around it and at the seam."""
        raw, (widths, rises) = self._dense(x, raw)
        level = self._level(self.domain.enter(x.detach()), widths)
        right = widths.detach()[..., :-1, :].cumsum(-2)
        return self._columns(x, raw, widths, rises, right <= level)

    def at(self, x: Tensor, selected: Tensor) -> tuple[Tensor, Tensor]:
        piece = self._selected(selected)
        entered = self.domain.enter(x)
        rise, slope = evaluate(piece.coefficients, clip((entered - piece.knot) / piece.width, 0.0, 1.0))
        y = self._onto(entered, piece.value + piece.width * rise)
        if piece.rotation is not None:
            y = self.domain.enter(y + piece.rotation)
        return self._leave(x, y, slope.log())

    def select_inverse(self, y: Tensor, raw: Tensor) -> Tensor:
        """As `select`, of images: the bin is the one between whose knots' values an image lies."""
        raw, (widths, rises) = self._dense(y, raw)
        q, n = self.layout.q, self.layout.pieces
        entered = self.domain.enter(y.detach())
        if self.phase:
            entered = self.domain.enter(entered - self._angle(raw[..., -1, :].detach()).reshape(y.shape))
        level = self._level(entered, rises)
        # Values at all inner knots, in units in which rises are not scaled; those of widths cancel.
        around, above = self._extended(widths.detach(), q), rises.detach()
        if self.layout.periodic:
            above = self._extended(above, q).narrow(-2, q, n + q)
        value = above.narrow(-2, 0, n - 1).cumsum(-2) + knot_value(
            [around.narrow(-2, 1 + i, n - 1) for i in range(2 * q)],
            [above.narrow(-2, 1 + i, n - 1) for i in range(q)],
        )
        if self.layout.periodic:
            seam = [around.narrow(-2, i, 1) for i in range(2 * q)]
            value = value - knot_value(seam, [above.narrow(-2, i, 1) for i in range(q)])
        return self._columns(y, raw, widths, rises, value <= level)

    def inverse_at(self, y: Tensor, selected: Tensor) -> tuple[Tensor, Tensor]:
        piece = self._selected(selected)
        entered = self.domain.enter(y)
        if piece.rotation is not None:
            entered = self.domain.enter(entered - piece.rotation)
        target, d = (entered - piece.value) / piece.width, piece.coefficients
        # What rounding took from the last bin must not be missing at its end.
        whole = sum(d[1:], d[0]) / len(d)
        target = with_value(target, torch.where(entered >= self.domain.high, whole, target))
        u, slope = polynomial_root(d, target)
        return self._leave(y, self._onto(entered, piece.knot + piece.width * u), -slope.log())

    def _dense(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Knots]:
        """Raw parameters (..., p, points), and widths and rises of all bins, not scaled.

        Points are on the last axis, so that the loops that PyTorch compiles run over them, and nothing is
        divided by sums over all bins: what is dense is little more than one exponential a parameter.
        """
        self._check(x, raw)
        raw = raw.to(x.dtype).expand(*x.shape, self.n_parameters)
        raw = (raw if x.ndim else raw.unsqueeze(0)).mT
        return raw, self._knots(raw, -2, scaled=False)

    def _level(self, entered: Tensor, parts: Tensor) -> Tensor:
        """Points of the domain, (..., 1, points), in units of widths or rises that are not scaled."""
        entered = entered if entered.ndim else entered.unsqueeze(0)
        share = (entered - self.domain.low) / self.domain.length
        return (share * parts.detach().sum(-2)).unsqueeze(-2)

    def _extended(self, values: Tensor, margin: int) -> Tensor:
        """Widths or rises with so many more rows at each end, periodic or zero."""
        if self.layout.periodic:
            n = self.layout.pieces
            rows = [values.narrow(-2, i % n, 1) for i in (*range(-margin, 0), *range(margin))]
            return torch.cat([*rows[:margin], values, *rows[margin:]], -2)
        return torch.nn.functional.pad(values, (0, 0, margin, margin))

    def _columns(self, x: Tensor, raw: Tensor, widths: Tensor, rises: Tensor, passed: Tensor) -> Tensor:
        """What is selected at points (...), of which it is known which inner knots they have passed."""
        layout, q, n = self.layout, self.layout.q, self.layout.pieces
        # Sums over masks: their derivatives are masks again, where those of indexing would be scattered. Bins
        # are counted in floating point: masks of another width than the values are slow to make.
        j = passed.to(x.dtype).sum(-2)
        columns = [widths.sum(-2), rises.sum(-2), _sum_before(widths, j), _sum_before(rises, j)]
        columns += [self._pick(widths, j + m) for m in range(-q, q + 1)]
        columns += [self._pick(rises, j + m) for m in range(q + 1)]
        if layout.periodic:
            columns += [widths[..., i % n, :] for i in range(-q, q)]
            columns += [rises[..., i % n, :] for i in range(q)]
        if self.phase:
            columns.append(raw[..., -1, :])
        return torch.stack(columns).movedim(0, -1).reshape(*x.shape, len(columns))

    def _selected(self, selected: Tensor) -> _Piece:
        q, low = self.layout.q, self.domain.low
        columns = iter(selected.unbind(-1))
        across, up = (self.domain.length / total for total in islice(columns, 2))
        knot, coefficient = low + across * next(columns), low + up * next(columns)
        widths = [across * width for width in islice(columns, 2 * q + 1)]
        rises = [up * rise for rise in islice(columns, q + 1)]
        coefficients, offset = bernstein(widths, rises)
        if self.layout.periodic:
            around = [across * width for width in islice(columns, 2 * q)]
            offset = offset - knot_value(around, [up * rise for rise in islice(columns, q)])
        rotation = self._angle(next(columns)) if self.phase else None
        return _Piece(knot, coefficient + offset, widths[q], coefficients, rotation)

    def _pick(self, values: Tensor, index: Tensor) -> Tensor:
        """Row ``index`` of widths or rises, beyond the ends periodic or zero, as a sum over a mask."""
        if self.layout.periodic:
            n = values.shape[-2]
            index = index - n * torch.floor(index / n)
        return torch.where(_rows(values) == index.unsqueeze(-2), values, 0.0).sum(-2)

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
        # difference: x must not pass the right knot, and what is that knot's value up to rounding is its.
        missing = width * (sum(coefficients[1:], coefficients[0]) / len(coefficients) - target)
        rounding = 2 * torch.finfo(x.dtype).eps * self.domain.length
        at_knot = (missing <= rounding) & (coefficients[-1] > 2)
        x = with_value(x, torch.where(at_knot, right, torch.clamp(x, left, right)))
        return self._onto(y, x), slope

    def slope_bounds(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Certified bounds of the slope of each map, by Theorem 1.

        Returns:
            Least and largest slope coefficient, of the shape of ``raw`` without its last axis, widened by
            what rounding can add to a computed slope.
        """
        self.check_raw(raw)
        spline = self._knots(raw)
        slopes = (self.order - 1) * spline.rises / supports(spline.widths, self.layout)
        margin = 8 * self.order * torch.finfo(raw.dtype).eps
        return slopes.amin(-1) * (1 - margin), slopes.amax(-1) * (1 + margin)

    def knots(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        r"""Knots $t$ and coefficients $\alpha$ of each map, as the textbooks and SciPy want them.

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
        t = torch.cat(
            [
                low - torch.stack(before, -1).flip(-1).cumsum(-1).flip(-1),
                low,
                right,
                self.domain.high + torch.stack(after, -1).cumsum(-1),
            ],
            -1,
        )
        rises = spline.rises
        if self.layout.periodic:
            rises = torch.stack([rises[..., i % n] for i in range(n + q)], -1)
            low = low - self._seam_offset(*spline).unsqueeze(-1)
        return t, torch.cat([low, low + rises.cumsum(-1)], -1)

    def _knots(self, raw: Tensor, axis: int = -1, *, scaled: bool = True) -> Knots:
        sizes = self.parametrisation.sizes(self.layout)
        raw_widths, raw_coefficients = raw.narrow(axis, 0, sum(sizes)).split(sizes, axis)
        return self.parametrisation.knots(raw_widths, raw_coefficients, self.layout, axis, scaled=scaled)

    def _spline(self, raw: Tensor, x: Tensor) -> _Spline:
        """The splines of all points; those shared by several points are made once."""
        widths, rises = (part.expand(*x.shape, part.shape[-1]) for part in self._knots(raw))
        low = self.domain.low
        seam = self._seam_offset(widths, rises) if self.layout.periodic else None
        return _Spline(prefix_sums(widths, low), prefix_sums(rises, low), seam)

    def _rotation(self, raw: Tensor) -> Tensor:
        return self._angle(raw[..., -1])

    def _angle(self, raw: Tensor) -> Tensor:
        length = self.domain.length
        return torch.remainder(raw * (length / (2 * math.pi)), length)

    def _window(self, values: Tensor, first: Tensor, size: int) -> tuple[Tensor, ...]:
        """Columns ``first .. first + size - 1`` of widths or rises, beyond the ends periodic or zero."""
        n = values.shape[-1]
        index = first.unsqueeze(-1) + torch.arange(size, device=first.device)
        index = index.expand(*values.shape[:-1], size)
        if self.layout.periodic:
            return values.gather(-1, _modulo(index, n, size)).unbind(-1)
        inside = (index >= 0) & (index < n)
        return torch.where(inside, values.gather(-1, index.clamp(0, n - 1)), 0.0).unbind(-1)

    def _piece(self, spline: _Spline, j: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Width of bin j, Bernstein coefficients of the slope on it, value at its left knot."""
        q = self.layout.q
        widths = self._window(spline.knots.widths, j - q, 2 * q + 1)
        rises = self._window(spline.coefficients.widths, j, q + 1)
        coefficients, offset = bernstein(widths, rises)
        return widths[q], coefficients, spline.value(j, offset)

    def _seam_offset(self, widths: Tensor, rises: Tensor) -> Tensor:
        """How far f(low) lies above the coefficient from which the rises of a circle are summed."""
        q, n = self.layout.q, self.layout.pieces
        around = [widths[..., i % n] for i in range(-q, q)]
        return knot_value(around, [rises[..., i % n] for i in range(q)])

    def _bin_of_value(self, spline: _Spline, y: Tensor) -> Tensor:
        r"""The bin j with $f(t_j) \le y < f(t_{j+1})$.

        The value at a knot is a mean of k - 1 consecutive coefficients, so the coefficients between which y
        lies leave k - 1 bins to choose from: only the k - 2 knots between those are evaluated.
        """
        q, n = self.layout.q, self.layout.pieces
        y, spline = y.detach(), spline.detach()
        if spline.seam is None:
            i, _ = spline.coefficients.locate(y)
        else:
            level = y + spline.seam
            beyond = level >= self.domain.high
            level = torch.where(beyond, level - self.domain.length, level)
            i, _ = spline.coefficients.locate(level)
            i = i + n * beyond
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


class _Piece(NamedTuple):
    """The polynomial on one bin, for each point."""

    knot: Tensor
    """The bin's left end."""
    value: Tensor
    """The map there, without its phase."""
    width: Tensor
    coefficients: list[Tensor]
    """Bernstein coefficients of the slope."""
    rotation: Tensor | None


class _Spline(NamedTuple):
    """Splines of a batch of points."""

    knots: PrefixSums
    coefficients: PrefixSums
    seam: Tensor | None
    """On a circle, how far f(low) lies above its first coefficient."""

    def value(self, j: Tensor, offset: Tensor) -> Tensor:
        """Value at knot j, which lies ``offset`` above coefficient j; the same bits wherever it is taken."""
        return self.coefficients.at(j) + (offset if self.seam is None else offset - self.seam)

    def detach(self) -> _Spline:
        return _Spline(
            self.knots.detach(),
            self.coefficients.detach(),
            None if self.seam is None else self.seam.detach(),
        )


DOMAINS: dict[type[Domain], int] = {Interval: 0, Circle: 1, Line: 2}
"""Domains, as kernels number them."""


def _kernel(spline: BSpline) -> BSplineKernel | None:
    """The native kernel of a family; None if there is none for it."""
    choice, domain = spline.parametrisation, spline.domain
    if type(domain) not in DOMAINS or type(choice) not in (Slopes, Paper):
        return None
    n_widths, n_rises = choice.sizes(spline.layout)
    kind, numbers = 0, {}
    if isinstance(choice, Paper):
        kind, numbers = 1, {"rise_floor": least_share(choice.min_rise, n_rises)}
    elif isinstance(choice, Slopes):
        numbers = {"min_slope": choice.min_slope, "max_slope": choice.max_slope}
    kernel = BSplineKernel(
        *(spline.order, spline.bins, DOMAINS[type(domain)], kind, int(spline.phase), spline.n_parameters),
        *(domain.low, domain.high, least_share(choice.min_width, n_widths)),
        **numbers,
    )
    prepare()
    return kernel if kernel.exists else None


def _define_forward(kernel: BSplineKernel, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """What a kernel computes, by torch functions."""
    domain = next(kind for kind, number in DOMAINS.items() if number == kernel.domain)
    slopes = Slopes(kernel.width_floor, kernel.min_slope, kernel.max_slope)
    parametrisation = Paper(kernel.width_floor, kernel.rise_floor) if kernel.parametrisation else slopes
    limits = domain(kernel.low, kernel.high)
    spline = BSpline(
        kernel.bins, kernel.order, limits, parametrisation=parametrisation, phase=bool(kernel.phase)
    )
    return spline.define_forward(x, raw)


define(_define_forward)


def _parametrisation(choice: str | Parametrisation) -> Parametrisation:
    if isinstance(choice, Parametrisation):
        return choice
    if choice not in PARAMETRISATIONS:
        raise ValueError(
            f"parametrisation must be one of {sorted(PARAMETRISATIONS)} or an instance of Slopes or Paper, "
            f"got {choice!r}."
        )
    return PARAMETRISATIONS[choice]()


def _sum_before(values: Tensor, j: Tensor) -> Tensor:
    """Sum of the rows before row j."""
    return torch.where(_rows(values) < j.unsqueeze(-2), values, 0.0).sum(-2)


def _rows(values: Tensor) -> Tensor:
    """Numbers of the rows (..., rows, points), in the type of the values."""
    return torch.arange(values.shape[-2], dtype=values.dtype, device=values.device).unsqueeze(-1)


def _modulo(index: Tensor, n: int, size: int) -> Tensor:
    """``index % n``; without the slow remainder where one step back or forth is enough."""
    if size > n:
        return index % n
    index = torch.where(index < 0, index + n, index)
    return torch.where(index >= n, index - n, index)
