r"""The native kernels of the cubic B-spline on an interval: what they move and what they compute.

With $n$ bins a map has $p = 2 n + 2$ raw parameters: $n$ of widths and $n + 2$ of rises. *Bytes* are those of
the numbers that a kernel must read and write, each once: raw parameters, directions and gradients of them
are $p$ numbers a point, all else one number.

*Operations* are additions, multiplications, divisions and roots, counted in the source for parametrisation
``slopes`` and float32; comparisons, choices and moves are not counted. An exponential takes 22, a logarithm
22, a sigmoid 24. A count has a part for each width, for each rise and for the point:

* Forward: a width takes 25 for its share of the whole, a rise 31 for its own; each takes 9 more for two sums
  that keep what rounding takes. The point takes 30 for the polynomial of its bin, 36 for its value there, 22
  for the logarithm.
* Inverse: the same of widths and rises; the point takes 44 to choose among knots, 30 for the polynomial, 53
  for each of Halley's steps, 114 for start, last step and result. Points side by side go on until the last of
  them stands still: with normal raw parameters and 16 points, 5 steps on average.
* Backward: another 5 a width and 15 a rise for the way back through the shares; the point takes 169.
* Double backward is forward and backward on dual numbers, with one set of knots, on which an addition counts
  2 and a multiplication 4: 65 a width, 104 a rise, and for the point three times what both take on plain
  ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import knotflow as kf
from knotflow.kernels.ops import SplineKernel

SINGLE = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Work:
    """What one kernel does, as factors of the sizes of a map."""

    operator: str
    rows: int
    """Tensors of p numbers a point, read or written."""
    points: int
    """Tensors of one number a point."""
    per_width: int
    per_rise: int
    per_point: int

    def bytes_of(self, bins: int) -> int:
        """Bytes a point."""
        return SINGLE * (self.rows * (2 * bins + 2) + self.points)

    def operations(self, bins: int) -> int:
        """Operations a point."""
        return self.per_width * bins + self.per_rise * (bins + 2) + self.per_point


WORK = {
    "forward": Work("spline", 1, 3, 34, 40, 88),
    "inverse": Work("spline_inverse", 1, 3, 34, 40, 44 + 30 + 5 * 53 + 114),
    "backward": Work("spline_backward", 2, 4, 39, 50, 169),
    "double backward": Work("spline_double_backward", 3, 7, 65, 104, 3 * (88 + 169)),
}


def kernel_calls(bins: int, elements: int, seed: int) -> dict[str, Callable[[], Any]]:
    """A call of each kernel of `WORK`, on uniform points and normal raw parameters of float32."""
    transform = kf.BSpline(bins)
    kernel = transform.kernel
    if not isinstance(kernel, SplineKernel) or not kernel.takes(torch.empty(0), torch.empty(0)):
        raise ValueError("this machine has no native kernels to time: run make setup with a C++ compiler.")
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x, p = torch.rand(elements, generator=generator), transform.n_parameters
    raw, h_raw = normal(elements, p), normal(elements, p)
    gy, gl, hx = (normal(elements) for _ in range(3))
    given = (x, raw, gy, gl, hx, h_raw)
    takes = {"forward": 2, "inverse": 2, "backward": 4, "double backward": 6}
    described = kernel.spec

    def bound(name: str) -> Callable[[], Any]:
        operator = getattr(torch.ops.knotflow, WORK[name].operator)
        arguments = given[: takes[name]]
        return lambda: operator(*arguments, *described)

    return {name: bound(name) for name in WORK}
