"""The one-dimensional spaces on which a transform acts: an interval, a circle, the line."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

ROUNDING_ULPS = 8
"""How far outside an `Interval` a point may lie and still count as rounding, in ulps."""


def rounding(domain: Domain, dtype: torch.dtype) -> float:
    """How far outside the limits of a domain a point may be put by rounding alone."""
    return ROUNDING_ULPS * torch.finfo(dtype).eps * max(abs(domain.low), abs(domain.high))


def with_value(x: Tensor, value: Tensor) -> Tensor:
    """A tensor with the given value and the derivatives of ``x``."""
    return value.detach() + (x - x.detach())


def clip(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp the value of ``x`` to ``[low, high]`` and let its derivative pass unchanged.

    ``torch.clamp`` has derivative 0 outside the bounds, so a point that rounding pushed out by one
    ulp would lose its gradient.
    """
    return with_value(x, x.clamp(low, high))


@dataclass(frozen=True)
class Domain(ABC):
    """A stretch ``[low, high]`` of the real axis on which a spline acts.

    A family asks its domain for two things only: `enter`, which brings the points of a user to
    ``[low, high]``, and `inside`, which says where the spline (and not the identity) acts.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError(f"{name} needs finite limits, got low={self.low}, high={self.high}.")
        if not self.low < self.high:
            raise ValueError(
                f"{name} needs low < high, got low={self.low}, high={self.high}; swap or move the limits."
            )

    @property
    def length(self) -> float:
        """``high - low``."""
        return self.high - self.low

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest number that is a point of it: infinite, but not on an `Interval`."""
        return -math.inf, math.inf

    @abstractmethod
    def enter(self, x: Tensor) -> Tensor:
        """Return ``x`` as points of ``[low, high]``, with derivative 1."""

    def check(self, x: Tensor) -> None:  # noqa: B027  (most domains take any point)
        """Raise ``ValueError`` for points that are not of this domain, where values can be looked at."""

    def inside(self, x: Tensor) -> Tensor | None:
        """Mask of the points on which the spline acts, or None if that is all of them."""
        return None

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """Distance of points; on a circle the shorter way around."""
        return (a - b).abs()


@dataclass(frozen=True)
class Interval(Domain):
    """The closed interval ``[low, high]``; a transform maps it onto itself, end slopes are free.

    A point outside raises ``ValueError``, unless it lies outside by rounding only
    (`ROUNDING_ULPS` ulps of the larger limit): then it is moved to the limit. Inside
    ``torch.compile`` and ``torch.vmap`` no value can be looked at, so every point outside is moved
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
        except RuntimeError:  # vmap: values cannot be looked at
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

    Any real number is a point of it: those outside ``[low, high]`` are taken modulo the length.
    """

    low: float = 0.0
    high: float = 1.0

    def enter(self, x: Tensor) -> Tensor:
        wrapped = self.low + torch.remainder(x - self.low, self.length)
        # Points inside stay untouched: wrapping would round them.
        return clip(torch.where((x < self.low) | (x > self.high), wrapped, x), self.low, self.high)

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        gap = (a - b).abs()
        # Gaps below a turn stay untouched: the remainder would round them.
        gap = torch.where(gap > self.length, torch.remainder(gap, self.length), gap)
        return torch.minimum(gap, self.length - gap)


@dataclass(frozen=True)
class Line(Domain):
    """The whole real line; a transform acts on ``[low, high]`` and is the identity outside."""

    low: float = -5.0
    high: float = 5.0

    def enter(self, x: Tensor) -> Tensor:
        # What is computed for points outside is not used; a finite stand-in keeps its gradients finite.
        return torch.where(self.inside(x), x, self.low)

    def inside(self, x: Tensor) -> Tensor:
        return ~((x < self.low) | (x > self.high))  # NaN is inside, so that all that is made of it is NaN


@dataclass(frozen=True)
class RealLine(Domain):
    """The real line without any special stretch, for maps that act everywhere alike."""

    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if (self.low, self.high) != (-math.inf, math.inf):
            raise ValueError("RealLine takes no limits; use a Line.")

    def enter(self, x: Tensor) -> Tensor:
        return x


class Limits(NamedTuple):
    """Least and largest values of coordinates, the `bounds` of their domains; all of shape (coordinates,)."""

    low: Tensor
    high: Tensor
    middle: Tensor
    """A point inside."""

    @classmethod
    def of(
        cls, domains: Sequence[Domain], like: Tensor, *, margin: float = 0.0, rounded: bool = False
    ) -> Limits:
        """The limits of domains.

        Args:
            domains: Of the coordinates.
            like: A tensor of the dtype and device that the limits get.
            margin: Part of an interval that is cut off at each end.
            rounded: Whether to include what counts as `rounding`.
        """
        gaps = [margin * d.length - (rounding(d, like.dtype) if rounded else 0.0) for d in domains]
        return cls(
            like.new_tensor([d.bounds[0] + gap for d, gap in zip(domains, gaps, strict=True)]),
            like.new_tensor([d.bounds[1] - gap for d, gap in zip(domains, gaps, strict=True)]),
            like.new_tensor([(d.low + d.high) / 2 for d in domains]),
        )

    def within(self, x: Tensor) -> Tensor:
        """Which coordinates (..., coordinates) are finite and between their limits, each for itself."""
        return x.isfinite() & (x >= self.low) & (x <= self.high)

    def hold(self, x: Tensor) -> Tensor:
        """Which points (..., coordinates) have all coordinates `within`; shape (...)."""
        return self.within(x).all(-1)


DOMAINS: Final[dict[str, type[Domain]]] = {"interval": Interval, "circle": Circle, "line": Line}
"""Those on which coordinates live, by the names that files give them, in the order of the kernels."""


def number_of(domain: Domain) -> int:
    """Which domain it is, as the kernels count them."""
    return list(DOMAINS.values()).index(type(domain))
