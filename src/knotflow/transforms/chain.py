"""The composition of transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from knotflow.kernels.ops import SplineKernel
from knotflow.transforms.affine import Affine
from knotflow.transforms.base import Kernel, Transform
from knotflow.transforms.domains import Line, RealLine


@dataclass(frozen=True)
class Chain(Transform):
    r"""The composition $f_n \circ \dots \circ f_1$ of families, with the raw parameters of all of them.

    ``Chain([Affine(), BSpline(8, domain=Line())])`` first shifts and scales a point, then applies a spline.
    Where the mean of a coordinate depends on others, a network then learns a single number, the shift,
    instead of moving all knots.

    Args:
        parts: applied in this order. All act on the same domain, except that any part may act on the whole
            real line if the others act on a `Line`.
    """

    parts: Sequence[Transform]

    def __post_init__(self) -> None:
        parts = tuple(self.parts)
        if not parts:
            raise ValueError("a chain needs at least one transform, got none.")
        own = [f.domain for f in parts if not isinstance(f.domain, RealLine)] or [parts[0].domain]
        mixed = any(isinstance(f.domain, RealLine) for f in parts) and not isinstance(own[0], Line | RealLine)
        if mixed or len(set(own)) > 1:
            domains = ", ".join(str(f.domain) for f in parts)
            raise ValueError(f"the transforms of a chain must act on the same domain, got {domains}.")
        self._derive(
            parts=parts,
            domain=own[0],
            n_parameters=sum(f.n_parameters for f in parts),
            smoothness=min(f.smoothness for f in parts),
        )
        self._derive(kernel=self._kernel())

    def define_forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        return self._through(x, raw, "forward")

    def define_inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        return self._through(y, raw, "inverse")

    def split(self, raw: Tensor) -> list[tuple[Transform, Tensor]]:
        """Each part with its raw parameters."""
        return list(zip(self.parts, raw.split([f.n_parameters for f in self.parts], -1), strict=True))

    def _through(self, x: Tensor, raw: Tensor, method: str) -> tuple[Tensor, Tensor]:
        ladj = torch.zeros_like(x)
        steps = self.split(raw)
        for f, part in reversed(steps) if method == "inverse" else steps:
            x, more = getattr(f, method)(x, part)
            ladj = ladj + more
        return x, ladj

    def _kernel(self) -> Kernel | None:
        """An affine map followed by a B-spline on a line has a kernel of its own."""
        first, last = self.parts[0], self.parts[-1]
        if len(self.parts) == 2 and isinstance(first, Affine) and isinstance(last.kernel, SplineKernel):
            definition = partial(self._through, method="define_forward")  # without the kernels of the parts
            return last.kernel.after_affine(math.log(first.max_slope), definition)
        return None
