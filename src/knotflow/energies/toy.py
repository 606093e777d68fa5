"""Toy densities for tests and figures, cheap enough to be known exactly."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

from knotflow.energies.energy import Energy
from knotflow.transforms import Circle, Interval, Line
from knotflow.transforms.base import check_count

RADII: Final = (1.0, 2.0, 1.5, 2.5)
HEIGHTS: Final = (1.0, 0.8, 0.6, 0.4)


class Rings(Energy):
    r"""Four rings on the unit square, the toy density of Hong & Chun (2023), figures 1, 2 and 5.

    With $z = 2\pi x - \pi$, the square stretched to $[-\pi, \pi]^2$,

    $$u(x) = -\log \sum_i A_i \exp\left(-\frac{(r - R_i)^2}{2\sigma^2}\right), \qquad
      r = |z| \quad\text{or}\quad r = \sqrt{\cos(z_1^2/2) + \cos(z_2^2/2) + 2},$$

    the second if ``periodic``; $R = (1, 2, 1.5, 2.5)$, $A = (1, 0.8, 0.6, 0.4)$, and $\sigma$ is 0.06, or
    0.05 if periodic. The density is not normalised.

    The force is smooth except at $r = 0$ (the centre; if periodic, the four points with
    $|z_1| = |z_2| = \sqrt{2\pi}$), where $r$ is the tip of a cone: the limit of the force depends on the
    direction, and the value returned is 0. The density at these points is below $e^{-130}$ of its maximum.
    The periodic density is continuous at the seam, but its force is not, because $\cos(z^2/2)$ is even in $z$
    with a slope at $\pm\pi$.

    Args:
        periodic: Whether the coordinates are circles (points outside the square are wrapped) or intervals.
    """

    def __init__(self, periodic: bool = False) -> None:
        self.periodic = periodic
        self.sigma = 0.05 if periodic else 0.06
        self.domains = (Circle(), Circle()) if periodic else (Interval(), Interval())

    def energy(self, x: Tensor) -> Tensor:
        _check_points(self, x)
        gap = self._radius(x)[..., None] - x.new_tensor(RADII)
        return -torch.logsumexp(x.new_tensor(HEIGHTS).log() - gap.square() / (2 * self.sigma**2), dim=-1)

    def _radius(self, x: Tensor) -> Tensor:
        if not self.periodic:
            return _norm(2 * math.pi * x - math.pi)
        z = 2 * math.pi * torch.remainder(x, 1.0) - math.pi
        # 1 + cos a = 2 cos²(a/2): again a norm, and no digits cancel near r = 0.
        return math.sqrt(2) * _norm(torch.cos(z.square() / 4))


class Mixed(Energy):
    r"""A normalised density of two angles, two bounded coordinates and an unbounded one, all correlated.

    A chain of conditional densities for $x = (\varphi, \psi, a, b, c)$, with vM the von Mises density and
    $\mathcal N_{[l, h]}$ the normal density truncated at $l$ and $h$ and renormalised:

    $$\begin{aligned}
      \varphi &\sim \mathrm{vM}(-1,\ \kappa = 1) && \text{on the circle } [-\pi, \pi] \\
      \psi &\sim \mathrm{vM}(\varphi + 2,\ \kappa = 2) && \text{on the circle } [-\pi, \pi] \\
      a &\sim \mathcal N_{[0, 1]}(0.5 + 0.2 \sin\varphi,\ 0.25) \\
      b &\sim \mathcal N_{[0.5, 2]}(1.25 + 0.3 \cos\psi + 0.8\,(a - 0.5),\ 0.4) \\
      c &\sim \mathcal N(\sin(\varphi + \psi) + b - 1.25,\ 0.5\, e^{0.2 \cos\varphi}).
    \end{aligned}$$

    It is infinitely differentiable, also across the seams, and positive at both ends of the intervals. Its
    score is bounded for bounded $c$, so a flow with finite slopes can match it. The energy is exactly
    $-\log p$. Points outside an interval are not refused: the formula continues there.
    """

    ANGLE: Final = (-1.0, 1.0)
    """Mean and concentration of the first angle."""
    TURN: Final = (2.0, 2.0)
    """Mean and concentration of the second angle, relative to the first."""
    WIDTHS: Final = (0.25, 0.4)
    """Standard deviations of the bounded coordinates before truncation."""

    def __init__(self) -> None:
        self._intervals = (Interval(0.0, 1.0), Interval(0.5, 2.0))
        circle = Circle(-math.pi, math.pi)
        self.domains = (circle, circle, *self._intervals, Line(-5.0, 5.0))

    def energy(self, x: Tensor) -> Tensor:
        _check_points(self, x)
        phi, psi, a, b, c = x.unbind(-1)
        log_prob = _von_mises(phi, *self.ANGLE) + _von_mises(psi - phi, *self.TURN)
        log_prob = log_prob + _cut_normal(a, self._mean_a(phi), self.WIDTHS[0], self._intervals[0])
        log_prob = log_prob + _cut_normal(b, self._mean_b(psi, a), self.WIDTHS[1], self._intervals[1])
        log_width = self._log_width_c(phi)
        return -(log_prob + _normal((c - self._mean_c(phi, psi, b)) / log_width.exp()) - log_width)

    def sample(
        self, n: int, generator: torch.Generator | None = None, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Draw ``n`` exact, independent samples, shape ``(n, 5)``.

        Args:
            n: Number of samples.
            generator: Source of randomness, which sets the device; default: torch's own on the CPU.
            dtype: Dtype of the result; default: torch's default. The draws themselves are in float64.
        """
        check_count("n", n, 1)
        phi = self.domains[0].enter(_draw_von_mises(n, *self.ANGLE, generator))
        psi = self.domains[1].enter(phi + _draw_von_mises(n, *self.TURN, generator))
        a = _draw_cut_normal(self._mean_a(phi), self.WIDTHS[0], self._intervals[0], generator)
        b = _draw_cut_normal(self._mean_b(psi, a), self.WIDTHS[1], self._intervals[1], generator)
        noise = torch.randn(n, generator=generator, dtype=phi.dtype, device=phi.device)
        c = self._mean_c(phi, psi, b) + self._log_width_c(phi).exp() * noise
        return torch.stack([phi, psi, a, b, c], dim=-1).to(dtype or torch.get_default_dtype())

    @staticmethod
    def _mean_a(phi: Tensor) -> Tensor:
        return 0.5 + 0.2 * phi.sin()

    @staticmethod
    def _mean_b(psi: Tensor, a: Tensor) -> Tensor:
        return 1.25 + 0.3 * psi.cos() + 0.8 * (a - 0.5)

    @staticmethod
    def _mean_c(phi: Tensor, psi: Tensor, b: Tensor) -> Tensor:
        return (phi + psi).sin() + b - 1.25

    @staticmethod
    def _log_width_c(phi: Tensor) -> Tensor:
        return math.log(0.5) + 0.2 * phi.cos()


def _check_points(energy: Energy, x: Tensor) -> None:
    d = len(energy.domains)
    if not torch.is_floating_point(x) or x.shape[-1:] != (d,):
        raise ValueError(
            f"{type(energy).__name__} takes floating-point points of shape (..., {d}), got {x.dtype} of "
            f"shape {tuple(x.shape)}; put the coordinates on the last axis."
        )


def _norm(z: Tensor) -> Tensor:
    """Norm over the last axis, with derivative 0 (not NaN, as for a plain square root) where it is 0."""
    square = z.square().sum(-1)
    positive = square > 0
    # The inner where keeps the unused branch finite: 0 times an infinite slope would be NaN.
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


def _normal(z: Tensor) -> Tensor:
    """Log density of the standard normal."""
    return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)


def _von_mises(angle: Tensor, mean: float, concentration: float) -> Tensor:
    """Log density of the von Mises distribution."""
    # log I₀(κ) = κ + log(e⁻ᵏ I₀(κ))
    log_bessel: Tensor = concentration + torch.special.i0e(angle.new_tensor(concentration)).log()
    return concentration * (angle - mean).cos() - math.log(2 * math.pi) - log_bessel


def _cut_normal(x: Tensor, mean: Tensor, width: float, interval: Interval) -> Tensor:
    """Log density of the normal distribution truncated to an interval."""
    high, low = _cumulative(mean, width, interval)
    return _normal((x - mean) / width) - math.log(width) - (high - low).log()


def _cumulative(mean: Tensor, width: float, interval: Interval) -> tuple[Tensor, Tensor]:
    """Cumulative normal distribution at the high and the low end of an interval."""
    return ndtr((interval.high - mean) / width), ndtr((interval.low - mean) / width)


def _draw_von_mises(n: int, mean: float, concentration: float, generator: torch.Generator | None) -> Tensor:
    """Exact draws, by rejection from the uniform density; efficient for small concentrations."""
    device = None if generator is None else generator.device
    drawn: list[Tensor] = []
    while sum(map(len, drawn)) < n:
        angle, height = torch.rand(2, n, generator=generator, dtype=torch.float64, device=device)
        angle = math.pi * (2 * angle - 1)
        drawn.append(angle[height.log() < concentration * (angle.cos() - 1)])
    return mean + torch.cat(drawn)[:n]


def _draw_cut_normal(
    mean: Tensor, width: float, interval: Interval, generator: torch.Generator | None
) -> Tensor:
    """Exact draws, by the inverse of the cumulative distribution."""
    high, low = _cumulative(mean, width, interval)
    uniform = torch.rand(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    normal: Tensor = ndtri(low + uniform * (high - low))
    return (mean + width * normal).clamp(interval.low, interval.high)
