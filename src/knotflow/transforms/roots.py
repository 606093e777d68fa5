r"""Roots of increasing functions: closed forms for low degrees, a bracketed polish, exact derivatives.

`polynomial_root` inverts the spline on one bin: given the Bernstein coefficients
$d_0, \dots, d_q > 0$ of a slope, it finds $u \in [0, 1]$ with $\int_0^u \sum_i d_i b_i = g$. A closed form
(q = 1, 2, 3) or a parabola gives a first guess, which bracketed Halley steps polish. The code never branches
on values and never leaves the bracket, and a step that is NaN becomes a bisection, so it cannot fail.

Derivatives do not pass through this search. The root is taken as a constant, and two plain Newton steps
from it carry the derivatives. A Newton step squares the error, also as a power series in a change of $g$ and
$d$, so one step makes first derivatives exact, and two make derivatives exact up to third order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from knotflow.transforms.basis import curvature, evaluate
from knotflow.transforms.domains import with_value

POLISH = {2: 1, 3: 4, 4: 7}
"""Halley steps after the closed form, by number of Bernstein coefficients."""
GENERAL_POLISH = 12


def bracketed_halley(
    function: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]],
    target: Tensor,
    guess: Tensor,
    *,
    steps: int,
    trust: float = 1.0,
) -> Tensor:
    """Solve ``function(x) = target`` on [0, 1] by Halley steps that fall back to bisection.

    The bracket shrinks with every step. A step that would leave it, or that is longer than both ``trust``
    and half of the step before, goes to its middle instead. Eager code stops when no point moves.

    Args:
        function: maps points to value, positive slope and second derivative of an increasing function.
        target: wanted values.
        guess: starting points.
        steps: maximum number of steps.
        trust: a step up to this length is always taken if it stays within the bracket.
    """
    x = guess.clamp(0.0, 1.0)
    left, right = torch.zeros_like(x), torch.ones_like(x)
    last = right
    for _ in range(steps):
        value, slope, second = function(x)
        error = value - target
        left = torch.where(error < 0, x, left)
        right = torch.where(error > 0, x, right)
        halley = x - 2 * error * slope / (2 * slope * slope - error * second)
        accept = (halley >= left) & (halley <= right)
        if trust < 1:
            accept = accept & ((halley - x).abs() <= (0.5 * last).clamp(min=trust))
        new = torch.where(accept, halley, 0.5 * (left + right))
        last = (new - x).abs()
        x = new
        if _settled(last):
            break
    return x


def _settled(steps: Tensor) -> bool:
    if torch.compiler.is_compiling() or steps.numel() == 0:
        return False
    try:
        return bool(steps.max() <= torch.finfo(steps.dtype).eps)
    except RuntimeError:  # vmap hides the values
        return False


def attach_derivatives(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], target: Tensor, root: Tensor
) -> tuple[Tensor, Tensor]:
    """A root in [0, 1] that was found without gradients, with exact derivatives to third order; its slope."""
    value, slope = function(root.detach())
    x = (root - (value - target) / slope).clamp(0.0, 1.0).detach()  # one last step with the full formulas
    for _ in range(2):
        value, slope = function(x)
        # The residual is zero up to rounding, which must not enter the derivatives.
        residual = with_value(value - target, torch.zeros_like(value))
        x = x - residual / slope
    return x, function(x)[1]


def polynomial_root(coefficients: Sequence[Tensor], target: Tensor) -> tuple[Tensor, Tensor]:
    """Find the point where the integral of a positive Bernstein polynomial reaches a target.

    Args:
        coefficients: Bernstein coefficients ``d_0 .. d_q`` of the slope on [0, 1].
        target: wanted rise ``g``, between 0 and the mean of the coefficients.

    Returns:
        The root ``u`` in [0, 1] and the slope there, both differentiable up to third order.
    """
    fixed, goal = [d.detach() for d in coefficients], target.detach()
    closed_form = {2: _quadratic, 3: _cubic, 4: _quartic}.get(len(fixed), _parabola)
    root = bracketed_halley(
        lambda u: (*evaluate(fixed, u), curvature(fixed, u)),
        goal,
        closed_form(fixed, goal),
        steps=POLISH.get(len(fixed), GENERAL_POLISH),
    )
    return attach_derivatives(lambda u: evaluate(coefficients, u), target, root)


def _parabola(d: Sequence[Tensor], g: Tensor) -> Tensor:
    """Root of the parabola with the same end slopes, scaled to the same total rise."""
    share = g * (len(d) / sum(d[1:], d[0]))
    return _quadratic([d[0], d[-1]], share * 0.5 * (d[0] + d[-1]))


def _quadratic(d: Sequence[Tensor], g: Tensor) -> Tensor:
    """Root of ``d0 u + (d1 - d0) u^2 / 2 = g``, in the form without cancellation."""
    return 2 * g / (d[0] + (d[0] * d[0] + 2 * (d[1] - d[0]) * g).clamp(min=0).sqrt())


def _cubic(d: Sequence[Tensor], g: Tensor) -> Tensor:
    """Root in [0, 1] of ``c1 u + c2 u^2 + c3 u^3 = g``, increasing on [0, 1]."""
    return increasing_cubic_root(d[0], d[1] - d[0], (d[0] - 2 * d[1] + d[2]) / 3, g)


def increasing_cubic_root(c1: Tensor, c2: Tensor, c3: Tensor, g: Tensor) -> Tensor:
    r"""Closed-form root of a cubic on the stretch around [0, 1] where it increases.

    About its inflection point $u_0$ the cubic reads $s^3 + P s = Q$, $s = u - u_0$. Because it increases on
    [0, 1], each case has one formula and there is no choice of roots. One real root: Cardano's formula. Three
    real roots (Viète): the middle one if $c_3 < 0$, else the outer one on the side of [0, 1]. Where $c_3$ is
    too small to divide by, the root of the quadratic is close enough for the polish.
    """
    negligible = c3.abs() <= torch.finfo(g.dtype).eps ** (1 / 3) * (c1 + c2.abs())
    lead = torch.where(negligible, 1.0, c3)
    centre = -c2 / (3 * lead)
    third_p = (c1 + c2 * centre) / (3 * lead)
    half_q = 0.5 * (g - centre * (c1 + centre * (2.0 / 3.0) * c2)) / lead
    size = half_q.abs()
    discriminant = size * size + third_p * third_p * third_p
    # One real root: a - b with a^3 - b^3 = Q, a b = P / 3; for P > 0 written without a difference.
    tiny = torch.finfo(g.dtype).tiny
    a = (size + discriminant.clamp(min=0).sqrt()).clamp(min=tiny) ** (1.0 / 3.0)
    b = third_p / a
    cardano = half_q.sign() * torch.where(third_p > 0, 2 * size / (a * a + third_p + b * b), a - b)
    # Three real roots: the middle one is 2 sqrt(-P/3) sin(asin(C)/3); a shift by pi/3 gives the outer one.
    radius = (-third_p).clamp(min=tiny).sqrt()
    side = torch.where(centre < 0.5, 1.0, -1.0)
    angle = torch.asin((side * half_q / radius / -third_p.clamp(max=-tiny)).clamp(-1.0, 1.0)) / 3
    middle = lead < 0
    viete = side * 2 * radius * torch.sin(torch.where(middle, -angle, angle + math.pi / 3))
    root = centre + torch.where((discriminant >= 0) & ~middle, cardano, viete)
    quadratic = 2 * g / (c1 + (c1 * c1 + 4 * c2 * g).clamp(min=0).sqrt())
    return torch.where(negligible, quadratic, root)


def _quartic(d: Sequence[Tensor], g: Tensor) -> Tensor:
    """Root in [0, 1] of the quartic with slope coefficients ``d``: the best of Ferrari's candidates."""
    c1, c2 = d[0], 1.5 * (d[1] - d[0])
    c3, c4 = d[0] - 2 * d[1] + d[2], (d[3] - d[0]) / 4 + 0.75 * (d[1] - d[2])
    negligible = c4.abs() <= torch.finfo(g.dtype).eps ** 0.25 * (c1 + c2.abs() + c3.abs())
    lead = torch.where(negligible, 1.0, c4)
    # Depressed quartic z^4 + p z^2 + q z + r, with u = z + centre.
    centre = -c3 / (4 * lead)
    b2, b1, b0 = c2 / lead, c1 / lead, -g / lead
    square = centre * centre
    p = b2 - 6 * square
    q = b1 + 2 * b2 * centre - 8 * square * centre
    r = b0 + centre * (b1 + centre * (b2 - 3 * square))
    # Its resolvent m^3 + p m^2 + (p^2/4 - r) m = q^2/8 has a root m >= 0: take the largest.
    m = _largest_cubic_root(p, p * p / 4 - r, -q * q / 8).clamp(min=1e-30)
    root = (2 * m).sqrt()
    best = increasing_cubic_root(c1, c2, c3, g).clamp(0.0, 1.0)
    least = torch.where(negligible, 0.0, (evaluate(d, best)[0] - g).abs())
    for sign in (1.0, -1.0):
        spread = (-2 * (p + m + sign * q / root)).clamp(min=0).sqrt()
        for other in (1.0, -1.0):
            u = (centre + 0.5 * (sign * root + other * spread)).clamp(0.0, 1.0)
            error = (evaluate(d, u)[0] - g).abs()
            best = torch.where(error < least, u, best)
            least = torch.minimum(error, least)
    return best


def _largest_cubic_root(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Largest real root of ``x^3 + a x^2 + b x + c``."""
    centre = -a / 3
    third_p = b / 3 - centre * centre
    half_q = -0.5 * (c + centre * (b + centre * (centre + a)))
    discriminant = half_q * half_q + third_p * third_p * third_p
    tiny = torch.finfo(c.dtype).tiny
    cube_root = (half_q.abs() + discriminant.clamp(min=0).sqrt()).clamp(min=tiny) ** (1.0 / 3.0)
    single = half_q.sign() * (cube_root - third_p / cube_root)
    radius = (-third_p).clamp(min=tiny).sqrt()
    cosine = (half_q / radius / -third_p.clamp(max=-tiny)).clamp(-1.0, 1.0)
    several = 2 * radius * torch.cos(torch.acos(cosine) / 3)
    return centre + torch.where(discriminant >= 0, single, several)
