"""The affine transform of the real line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from knotflow.transforms.base import SlopeTransform
from knotflow.transforms.domains import RealLine


@dataclass(frozen=True)
class Affine(SlopeTransform):
    r"""Scale and shift: $f(x) = e^{s} x + b$ on the whole real line.

    The two raw parameters are the shift $b$ and a log-scale, which is softly bounded:
    $s = B \tanh(\mathrm{raw} / B)$ with $B = \log$ ``max_slope``. Zeros give the identity.

    Args:
        max_slope: every slope lies within ``[1 / max_slope, max_slope]``.
    """

    max_slope: float = 1e3

    def __post_init__(self) -> None:
        if not 1 < self.max_slope < math.inf:
            raise ValueError(f"max_slope must be finite and above 1, got {self.max_slope}.")
        self._derive(domain=RealLine(), n_parameters=2, smoothness=math.inf)

    def _forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        shift, slope = self._parameters(raw)
        return slope * x + shift, slope.expand_as(x)

    def _inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        shift, slope = self._parameters(raw)
        return (y - shift) / slope, slope.expand_as(y)

    def _parameters(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        shift, log_scale = raw.unbind(-1)
        bound = math.log(self.max_slope)
        return shift, torch.exp(bound * torch.tanh(log_scale / bound))
