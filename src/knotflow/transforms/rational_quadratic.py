"""Rational-quadratic splines: closed form in both directions, once continuously differentiable."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from knotflow.kernels.ops import SplineKernel, prepare
from knotflow.transforms.base import SlopeTransform, check_count
from knotflow.transforms.domains import UNIT, Circle, Domain, Line, clip, number_of, with_value
from knotflow.transforms.knots import check_floor, least_share, shares
from knotflow.transforms.roots import attach_derivatives
from knotflow.transforms.search import PrefixSums


@dataclass(frozen=True)
class RationalQuadratic(SlopeTransform):
    r"""Monotone rational-quadratic splines (Durkan et al., "Neural Spline Flows", NeurIPS 2019).

    On a bin of width $w$, height $h$, mean slope $s = h / w$ and end slopes $d_0, d_1$, with the local
    coordinate $u \in [0, 1]$ and $v = 1 - u$,

    $$f = y_0 + h\,\frac{s u^2 + d_0 u v}{s (1 - 2uv) + (d_0 + d_1) u v}, \qquad
      f' = \frac{s^2 (d_1 u^2 + 2 s u v + d_0 v^2)}{(s (1 - 2uv) + (d_0 + d_1) u v)^2} .$$

    Values and slopes are continuous, but second derivatives jump at every knot, so a flow of such splines has
    discontinuous forces. Raw parameters of zero give the identity. One map takes ``3 bins + 1`` parameters on
    an interval, ``3 bins`` on a circle (slopes match at the seam), ``3 bins - 1`` on a line (end slopes 1).

    Args:
        bins: number of bins, at least 1.
        domain: `Interval`, `Circle` or `Line`.
        min_width: floor of a bin's width, as a fraction of the domain; by default a tenth of a uniform width.
        min_height: floor of a bin's height, likewise.
        min_slope: floor of the slopes at the knots.
    """

    bins: int = 32
    domain: Domain = UNIT
    _: KW_ONLY
    min_width: float | None = None
    min_height: float | None = None
    min_slope: float = 1e-2

    def __post_init__(self) -> None:
        check_count("bins", self.bins, 1)
        check_floor("min_width", self.min_width, self.bins)
        check_floor("min_height", self.min_height, self.bins)
        if not 0 < self.min_slope < 1:
            raise ValueError(f"expected 0 < min_slope < 1, got {self.min_slope}.")
        extra = {Circle: 0, Line: -1}.get(type(self.domain), 1)
        self._derive(n_parameters=3 * self.bins + extra, smoothness=1)
        kernel = SplineKernel(
            family=1,
            bins=self.bins,
            domain=number_of(self.domain),
            n_parameters=self.n_parameters,
            low=self.domain.low,
            high=self.domain.high,
            width_floor=least_share(self.min_width, self.bins),
            rise_floor=least_share(self.min_height, self.bins),
            min_slope=self.min_slope,
            definition=self.define_forward,
        )
        self._derive(kernel=kernel)
        prepare()

    def _forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        spline = self._spline(raw, x)
        bin_ = spline.at(spline.knots.locate(x))
        fraction, slope = bin_.evaluate(clip((x - bin_.left) / bin_.width, 0.0, 1.0))
        return self._onto(x, bin_.value + bin_.height * fraction), slope * bin_.mean_slope

    def _inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        spline = self._spline(raw, y)
        j = spline.values.locate(y)
        bin_ = spline.at(j)
        target = (y - bin_.value) / bin_.height
        u, slope = attach_derivatives(bin_.evaluate, target, bin_.root(target))
        x = bin_.left + bin_.width * u
        x = with_value(x, torch.clamp(x, bin_.left, spline.knots.at(j + 1)))
        return self._onto(y, x), slope * bin_.mean_slope

    def _spline(self, raw: Tensor, x: Tensor) -> _Spline:
        length, low = self.domain.length, self.domain.low
        sizes = [self.bins, self.bins, self.n_parameters - 2 * self.bins]
        raw_widths, raw_heights, raw_slopes = raw.split(sizes, -1)
        widths = shares(raw_widths, self.min_width, length)
        heights = shares(raw_heights, self.min_height, length)
        shift = math.log(math.expm1(1 - self.min_slope))
        # By default torch replaces softplus(x) with x above 20, where float64 still sees the difference.
        slopes = self.min_slope + softplus(raw_slopes + shift, threshold=40)
        if isinstance(self.domain, Circle):
            slopes = torch.cat([slopes, slopes[..., :1]], -1)
        elif isinstance(self.domain, Line):
            one = torch.ones_like(raw[..., :1])
            slopes = torch.cat([one, slopes, one], -1)
        widths, heights, slopes = (
            part.expand(*x.shape, part.shape[-1]) for part in (widths, heights, slopes)
        )
        return _Spline(PrefixSums(widths, low), PrefixSums(heights, low), slopes)


class _Spline(NamedTuple):
    knots: PrefixSums
    values: PrefixSums
    slopes: Tensor

    def at(self, j: Tensor) -> _Bin:
        index = j.unsqueeze(-1)
        ends = self.slopes.gather(-1, index + torch.arange(2, device=j.device))
        return _Bin(
            left=self.knots.at(j),
            width=self.knots.widths.gather(-1, index).squeeze(-1),
            value=self.values.at(j),
            height=self.values.widths.gather(-1, index).squeeze(-1),
            first_slope=ends[..., 0],
            last_slope=ends[..., 1],
        )


class _Bin(NamedTuple):
    left: Tensor
    width: Tensor
    value: Tensor
    height: Tensor
    first_slope: Tensor
    last_slope: Tensor

    @property
    def mean_slope(self) -> Tensor:
        return self.height / self.width

    def evaluate(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Fraction of the bin's height reached at ``u``, and its derivative."""
        v, s, d0, d1 = 1 - u, self.mean_slope, self.first_slope, self.last_slope
        uv = u * v
        denominator = s * (1 - 2 * uv) + (d0 + d1) * uv
        fraction = u * (s * u + d0 * v) / denominator
        return fraction, s * (d1 * u * u + 2 * s * uv + d0 * v * v) / (denominator * denominator)

    def root(self, target: Tensor) -> Tensor:
        """Point ``u`` at which a fraction of the height is reached, in the form without cancellation."""
        s, d0, d1 = self.mean_slope, self.first_slope, self.last_slope
        bend = (d0 + d1 - 2 * s) * target
        a, b, c = s - d0 + bend, d0 - bend, s * target
        return (2 * c / (b + (b * b + 4 * a * c).clamp(min=0).sqrt())).clamp(0.0, 1.0)
