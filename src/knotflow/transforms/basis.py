r"""The polynomial on one bin of a B-spline, from its coefficients.

Only the derivative is expanded. On a bin of width $w$ the slope $f'$ of a spline of order $k$ is
a polynomial of degree $q = k - 2$ in the local coordinate $u \in [0, 1]$, and its Bernstein coefficients
$d_0, \dots, d_q$ are convex combinations of the spline's slope coefficients
$c_j = (k-1)\,\Delta\alpha_j / (t_{j+k-1} - t_j)$, which are positive (Theorem 1 of the paper). So

$$f'(u) = \sum_i d_i \binom{q}{i} u^i (1-u)^{q-i}, \qquad
  f(u) - f(0) = w \sum_{i \ge 1} \frac{d_0 + \dots + d_{i-1}}{q+1} \binom{q+1}{i} u^i (1-u)^{q+1-i}$$

are sums of positive terms: no digits cancel, neither in the slope nor in the rise.

The conversion is de Boor's triangle at the left knot, then knot insertion at the right one, in the
language of polar forms (Ramshaw 1989): $F(a_1, \dots, a_q)$ is symmetric, affine in each argument, and
$c_i = F(t_{i+1}, \dots, t_{i+q})$, $d_i = F(t_0^{q-i}, t_1^{i})$ for the bin $[t_0, t_1]$.

All functions work on lists of tensors of one shape: the entries of the window around a bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from math import comb
from operator import add

from torch import Tensor


def triangle(
    slopes: Sequence[Tensor], left: Sequence[Tensor], right: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """De Boor's triangle at knot ``t_0``: its first and its last diagonal.

    Args:
        slopes: ``c_-q .. c_-1``.
        left: ``left[a-1] = t_0 - t_-a`` for a = 1 .. q-1 at least.
        right: ``right[b-1] = t_b - t_0`` for b = 1 .. q-1 at least.

    Returns:
        ``first[r-1] = F(t_{r-q}, .., t_-1, t_0^r)`` and ``last[r-1] = F(t_0^r, t_1, .., t_{q-r})``,
        r = 1 .. q. Both end with the slope at ``t_0``.
    """
    level = list(slopes)
    first, last = [level[0]], [level[-1]]
    while len(level) > 1:
        size = len(level) - 1
        level = [
            (right[i] * level[i] + left[size - 1 - i] * level[i + 1]) / (right[i] + left[size - 1 - i])
            for i in range(size)
        ]
        first.append(level[0])
        last.append(level[-1])
    return first, last


def _around(
    widths: Sequence[Tensor], rises: Sequence[Tensor], q: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Distances from ``t_0`` to the knots on its left and right, and slope coefficients ``c_-q, c_-q+1, ..``.

    A slope coefficient is its rise times k - 1, divided by the length of its support.
    """
    left, right = list(accumulate(widths[q - 1 :: -1])), list(accumulate(widths[q:]))
    supports = [left[q - 1 - m] + right[m] if m < q else right[m] for m in range(len(rises))]
    return left, right, [(q + 1) * rise / support for rise, support in zip(rises, supports, strict=True)]


def knot_value(widths: Sequence[Tensor], rises: Sequence[Tensor]) -> Tensor:
    r"""Height of the spline's value at knot ``t_0`` above its coefficient $\alpha_{-(k-1)}$.

    Args:
        widths: widths of the q bins on each side of the knot.
        rises: coefficient increments $\Delta\alpha_{-q}, \dots, \Delta\alpha_{-1}$.
    """
    left, right, slopes = _around(widths, rises, len(rises))
    return _offset(triangle(slopes, left, right)[0], left)


def _offset(first: Sequence[Tensor], left: Sequence[Tensor]) -> Tensor:
    r"""`knot_value`: $\frac{1}{k-1} \sum_{r=1}^{q} (t_0 - t_{r-q-1}) F(t_{r-q}, \dots, t_{-1}, t_0^r)$."""
    terms = (distance * value for distance, value in zip(reversed(left), first, strict=True))
    return reduce(add, terms) / (len(first) + 1)


def bernstein(widths: Sequence[Tensor], rises: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    r"""Slope polynomial of bin 0.

    Args:
        widths: widths of the bins -q .. q around bin 0, zero beyond the ends of an interval.
        rises: coefficient increments $\Delta\alpha_{-q}, \dots, \Delta\alpha_0$.

    Returns:
        Bernstein coefficients ``d_0 .. d_q`` of the slope, and `knot_value` of the left knot.
    """
    q = len(rises) - 1
    left, right, slopes = _around(widths, rises, q)
    first, last = triangle(slopes[:-1], left, right)
    beyond = list(accumulate(widths[q + 1 :]))
    # polar[r] = F(t_0^r, t_1, .., t_{q-r}); each round inserts one more t_1.
    polar = [slopes[-1], *last]
    coefficients = [polar[q], polar[q - 1]]
    polar = polar[:q]
    for copies in range(2, q + 1):
        polar = [
            (beyond[q - r - copies] * polar[r + 1] + right[0] * polar[r]) / right[q - r - copies + 1]
            for r in range(q - copies + 1)
        ]
        coefficients.append(polar[-1])
    return coefficients, _offset(first, left)


def evaluate(coefficients: Sequence[Tensor], u: Tensor) -> tuple[Tensor, Tensor]:
    """Rise from 0 to ``u`` (in units of the bin width) and slope at ``u``, from Bernstein coefficients."""
    p = len(coefficients)
    sums = list(accumulate(coefficients))
    rise = [total * (comb(p, i + 1) / p) for i, total in enumerate(sums)]
    slope = [d * comb(p - 1, i) for i, d in enumerate(coefficients)]
    v = 1 - u
    return u * _bernstein_sum(rise, u, v), _bernstein_sum(slope, u, v)


def curvature(coefficients: Sequence[Tensor], u: Tensor) -> Tensor:
    """Derivative of a slope polynomial at ``u``."""
    q = len(coefficients) - 1
    steps = [(coefficients[i + 1] - coefficients[i]) * (q * comb(q - 1, i)) for i in range(q)]
    return _bernstein_sum(steps, u, 1 - u)


def _bernstein_sum(weights: Sequence[Tensor], u: Tensor, v: Tensor) -> Tensor:
    """``sum_i weights[i] u^i v^(n-i)`` for n = len(weights) - 1, by Horner's rule in u."""
    total = weights[-1]
    power = None
    for weight in reversed(weights[:-1]):
        power = v if power is None else power * v
        total = total * u + weight * power
    return total
