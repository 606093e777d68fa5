"""Mixtures of smooth bumps: infinitely often differentiable, inverted by root finding."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from knotflow.transforms.base import SlopeTransform, check_count
from knotflow.transforms.domains import UNIT, Circle, Domain, Interval
from knotflow.transforms.roots import attach_derivatives, bracketed_halley

MAX_SHAPE = 10.0
EDGE = 1e-3
"""Closer than this to the end of a ramp, exp(-1 / (MAX_SHAPE EDGE)) is below 1e-43: zero in every dtype."""
STEPS = 60


@dataclass(frozen=True)
class Bump(SlopeTransform):
    r"""Mixtures of smooth, compactly supported bumps.

    After Köhler, Krämer & Noé, "Smooth Normalizing Flows", NeurIPS 2021. With the smooth ramp
    $\rho(z) = e^{-1/(\alpha z)}$ for $z > 0$ and 0 elsewhere, the sigmoid
    $\sigma_\alpha(z) = \rho(z) / (\rho(z) + \rho(1 - z))$ climbs from 0 to 1 on $[0, 1]$ and is infinitely
    often differentiable. In the unit coordinate $z$ of the domain,

    $$f(z) = \sum_i w_i \Big[ c_i z + (1 - c_i) \frac{g_i(z) - g_i(0)}{g_i(1) - g_i(0)} \Big], \qquad
      g_i(z) = \sigma_{\alpha_i}\!\big(a_i (z - b_i) + \tfrac12\big).$$

    On a circle $g_i$ is summed over its periodic images, so that all derivatives match at the seam. A map
    takes five parameters per component: weight $w$, shape $\alpha$, shift $b$, scale $a \ge 1$, offset $c$.
    The inverse has no closed form. It is found by bracketed Newton steps, with exact derivatives.

    Args:
        components: number of bumps, at least 1.
        domain: `Interval` or `Circle`.
        min_slope: smallest offset $c$, and thus a lower bound of every slope.
    """

    components: int = 8
    domain: Domain = UNIT
    _: KW_ONLY
    min_slope: float = 1e-2

    def __post_init__(self) -> None:
        check_count("components", self.components, 1)
        if not isinstance(self.domain, Interval | Circle):
            raise ValueError(
                f"Bump acts on an Interval or a Circle, got {self.domain}; on a Line use a BSpline."
            )
        if not 0 < self.min_slope < 1:
            raise ValueError(f"expected 0 < min_slope < 1, got {self.min_slope}.")
        self._derive(n_parameters=5 * self.components, smoothness=math.inf)

    def _forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        domain = self.domain
        z, slope, _ = self._mixture(raw).evaluate((x - domain.low) / domain.length)
        return self._onto(x, domain.low + domain.length * z), slope

    def _inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        domain = self.domain
        mixture, target = self._mixture(raw), (y - domain.low) / domain.length
        goal = target.detach()
        root = bracketed_halley(mixture.detach().evaluate, goal, goal, steps=STEPS, trust=1e-4)
        z, slope = attach_derivatives(lambda z: mixture.evaluate(z)[:2], target, root)
        return self._onto(y, domain.low + domain.length * z), slope

    def _mixture(self, raw: Tensor) -> _Mixture:
        weights, shapes, shifts, scales, offsets = raw.unflatten(-1, (5, self.components)).unbind(-2)
        # Raw parameters of zero give evenly spaced bumps.
        places = (torch.arange(self.components, device=raw.device, dtype=raw.dtype) + 0.5) / self.components
        bound = math.log(MAX_SHAPE)
        return _Mixture(
            torch.softmax(weights, -1),
            torch.exp(bound * torch.tanh(shapes / bound)),
            torch.sigmoid(shifts + torch.logit(places)),
            1 + softplus(scales),
            self.min_slope + (1 - self.min_slope) * torch.sigmoid(offsets),
            periodic=isinstance(self.domain, Circle),
        )


class _Mixture(NamedTuple):
    """Parameters of the components, each of shape (..., components)."""

    weights: Tensor
    shapes: Tensor
    shifts: Tensor
    scales: Tensor
    offsets: Tensor
    periodic: bool

    def detach(self) -> _Mixture:
        return self._replace(**{name: getattr(self, name).detach() for name in self._fields[:-1]})

    def evaluate(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, slope and second derivative at points of the unit interval."""
        value, slope, second = self._climb(z.unsqueeze(-1))
        low, _, _ = self._climb(torch.zeros_like(z).unsqueeze(-1))
        bump = self.weights * (1 - self.offsets)
        if not self.periodic:
            high, _, _ = self._climb(torch.ones_like(z).unsqueeze(-1))
            bump = bump / (high - low)
        line = (self.weights * self.offsets).sum(-1)
        return (
            line * z + (bump * (value - low)).sum(-1),
            line + (bump * slope).sum(-1),
            (bump * second).sum(-1),
        )

    def _climb(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sigmoids g and two derivatives; on a circle summed over three images, enough as a >= 1."""
        centre = self.scales * (z - self.shifts) + 0.5
        value, slope, second = _sigmoid(centre, self.shapes)
        for image in (-1, 1) if self.periodic else ():
            more = _sigmoid(centre + image * self.scales, self.shapes)
            value, slope, second = value + more[0], slope + more[1], second + more[2]
        return value, slope * self.scales, second * self.scales**2


def _sigmoid(z: Tensor, shape: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Smooth sigmoid on [0, 1], constant outside, and its first two derivatives."""
    left = 1 / z.clamp(EDGE, 1 - EDGE)
    right = 1 / (1 - z.clamp(EDGE, 1 - EDGE))
    value = torch.sigmoid((right - left) / shape)
    steepness = (left * left + right * right) / shape
    slope = value * (1 - value) * steepness
    second = slope * (1 - 2 * value) * steepness + value * (1 - value) * 2 * (right**3 - left**3) / shape
    inside = (z > EDGE) & (z < 1 - EDGE)
    return value, torch.where(inside, slope, 0.0), torch.where(inside, second, 0.0)
