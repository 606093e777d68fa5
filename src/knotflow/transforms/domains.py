"""The one-dimensional domains on which transforms act: an interval, a circle, the line."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

ROUNDING_ULPS = 8
"""A point this far outside an `Interval`, in ulps of the larger limit, still counts as rounding."""


def rounding(domain: Domain, dtype: torch.dtype) -> float:
    """The largest distance outside a domain that counts as rounding."""
    return ROUNDING_ULPS * torch.finfo(dtype).eps * max(abs(domain.low), abs(domain.high))


def with_value(x: Tensor, value: Tensor) -> Tensor:
    """A tensor with the given value and the derivatives of ``x``."""
    return value.detach() + (x - x.detach())


def clip(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp the value of ``x`` to ``[low, high]``, but keep its derivative.

    ``torch.clamp`` has derivative 0 outside the bounds, so a point that rounding pushed out by one ulp
    would lose its gradient.
    """
    return with_value(x, x.clamp(low, high))


@dataclass(frozen=True)
class Domain(ABC):
    """A stretch ``[low, high]`` of the real axis on which a spline acts.

    A family uses two methods of its domain: `enter` brings the user's points to ``[low, high]``, and
    `inside` says where the spline acts and not the identity.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(
                f"{type(self).__name__} needs low < high, both finite, got low={self.low}, "
                f"high={self.high}; swap or move the limits."
            )

    @property
    def length(self) -> float:
        """``high - low``."""
        return self.high - self.low

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and largest valid coordinate: infinite except on an `Interval`."""
        return -math.inf, math.inf

    @abstractmethod
    def enter(self, x: Tensor) -> Tensor:
        """Return ``x`` as points of ``[low, high]``, with derivative 1."""

    def check(self, x: Tensor) -> None:  # noqa: B027  (most domains take any point)
        """Raise ``ValueError`` for points outside this domain, unless tracing hides the values."""

    def inside(self, x: Tensor) -> Tensor | None:
        """Mask of the points on which the spline acts, or None for all points."""
        return None

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """Distance of points; on a circle the shorter way around."""
        return (a - b).abs()


@dataclass(frozen=True)
class Interval(Domain):
    """The closed interval ``[low, high]``; a transform maps it onto itself, with free end slopes.

    A point outside raises ``ValueError``. If it is outside only by rounding (`ROUNDING_ULPS`), it is moved
    to the limit. ``torch.compile`` and ``torch.vmap`` hide the values, so there every point outside is moved
    to the limit.
    """

    low: float = 0.0
    high: float = 1.0

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    def enter(self, x: Tensor) -> Tensor:
        self.check(x)
        return clip(x, self.low, self.high)

    def check(self, x: Tensor) -> None:
        if torch.compiler.is_compiling() or x.numel() == 0:
            return
        slack = rounding(self, x.dtype)
        least, most = torch.aminmax(x.detach())
        try:
            smallest, largest = float(least), float(most)
        except RuntimeError:  # vmap hides the values
            return
        if smallest < self.low - slack or largest > self.high + slack:
            raise ValueError(
                f"expected points of the interval [{self.low}, {self.high}], got values from "
                f"{smallest:.9g} to {largest:.9g}; rescale the data, widen the interval, or use a "
                "Line (identity outside) or a Circle (periodic)."
            )


UNIT: Final = Interval()
"""The default domain of transforms."""


@dataclass(frozen=True)
class Circle(Domain):
    """The circle of length ``high - low``; ``low`` and ``high`` are the same point.

    Any real number is a valid point: numbers outside ``[low, high]`` are taken modulo the length.
    """

    low: float = 0.0
    high: float = 1.0

    def enter(self, x: Tensor) -> Tensor:
        wrapped = self.low + torch.remainder(x - self.low, self.length)
        # Points inside are kept as they are: wrapping would round them.
        return clip(torch.where((x < self.low) | (x > self.high), wrapped, x), self.low, self.high)

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        gap = (a - b).abs()
        # Gaps below a turn are kept as they are: the remainder would round them.
        gap = torch.where(gap > self.length, torch.remainder(gap, self.length), gap)
        return torch.minimum(gap, self.length - gap)


@dataclass(frozen=True)
class Line(Domain):
    """The whole real line; a transform acts on ``[low, high]`` and is the identity outside."""

    low: float = -5.0
    high: float = 5.0

    def enter(self, x: Tensor) -> Tensor:
        # Results for points outside are discarded; a finite stand-in keeps their gradients finite.
        return torch.where(self.inside(x), x, self.low)

    def inside(self, x: Tensor) -> Tensor:
        return ~((x < self.low) | (x > self.high))  # NaN counts as inside, so that results are NaN


@dataclass(frozen=True)
class RealLine(Domain):
    """The whole real line, for maps that act everywhere in the same way."""

    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if (self.low, self.high) != (-math.inf, math.inf):
            raise ValueError("RealLine takes no limits; use a Line.")

    def enter(self, x: Tensor) -> Tensor:
        return x


class Limits(NamedTuple):
    """The `Domain.bounds` of several coordinates, as tensors of shape (coordinates,)."""

    low: Tensor
    high: Tensor
    middle: Tensor
    """Points inside."""

    @classmethod
    def of(
        cls, domains: Sequence[Domain], like: Tensor, *, margin: float = 0.0, rounded: bool = False
    ) -> Limits:
        """The limits of domains.

        Args:
            domains: Domain of each coordinate.
            like: Tensor whose dtype and device the limits get.
            margin: Fraction of an interval to cut off at each end.
            rounded: Widen the limits by what counts as `rounding`.
        """
        gaps = [margin * d.length - (rounding(d, like.dtype) if rounded else 0.0) for d in domains]
        return cls(
            like.new_tensor([d.bounds[0] + gap for d, gap in zip(domains, gaps, strict=True)]),
            like.new_tensor([d.bounds[1] - gap for d, gap in zip(domains, gaps, strict=True)]),
            like.new_tensor([(d.low + d.high) / 2 for d in domains]),
        )

    def within(self, x: Tensor) -> Tensor:
        """Mask of the coordinates (..., coordinates) that are finite and within their limits."""
        return x.isfinite() & (x >= self.low) & (x <= self.high)

    def hold(self, x: Tensor) -> Tensor:
        """Mask (...) of the points (..., coordinates) with all coordinates `within` their limits."""
        return self.within(x).all(-1)


DOMAINS: Final[dict[str, type[Domain]]] = {"interval": Interval, "circle": Circle, "line": Line}
"""Domains that coordinates can have, by their names in files, in the order of the kernels."""


def number_of(domain: Domain) -> int:
    """The number by which the kernels know a domain."""
    return list(DOMAINS.values()).index(type(domain))
